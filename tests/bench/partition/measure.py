"""All of it: Dorm's table, Sia-Philly made elastic, and how long planning takes; at its end one line of JSON."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from typing import TypeVar

from tests.bench.figures import Aim, Figures, line_of
from tests.bench.partition import dorm, philly
from tests.bench.planning_partitions import add_planning, measure_planning
from tests.bench.policies.setups import data

PARTS = ("dorm", "philly", "planning")
SEEDS = 2  # workloads like Dorm's, drawn one after the other from the seed on
Case = TypeVar("Case")
Run = TypeVar("Run")


def main(arguments: Sequence[str]) -> int:
    asked = _asked(arguments)
    began = time.monotonic()
    aims: dict[str, Aim] = {}
    with ProcessPoolExecutor(asked.jobs) as executor:
        if "dorm" in asked.only:
            aims |= _dorm(executor, asked.seed, quick=asked.quick)
        if "philly" in asked.only:
            aims |= _philly(executor, quick=asked.quick)
    if "planning" in asked.only:
        aims |= _planning(asked.seed, quick=asked.quick)
    _tell(aims)
    print(f"{time.monotonic() - began:.0f} s on {len(os.sched_getaffinity(0))} cores")
    print(line_of(aims, seed=asked.seed))
    return 0


def _tell(aims: Mapping[str, Aim]) -> None:
    for name, aim in aims.items():
        bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
        print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}")
    print(f"{sum(not aim.met for aim in aims.values())} of {len(aims)} aims not met")


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench partition", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer settings, seeds and workloads")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2, help="simulations at once")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    found = parser.parse_args(arguments)
    found.only = found.only.split(",")
    if unknown := set(found.only) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return found


def _dorm(executor: Executor, seed: int, *, quick: bool) -> dict[str, Aim]:
    cases = (
        dorm.cases([seed], dorm.SPEED_UPS, ["Dorm (0.1, 0.2)"])
        if quick
        else dorm.cases(range(seed, seed + SEEDS), dorm.EXPONENTS, dorm.PAPER)
    )
    found = dorm.compared(_run(executor, dorm.run_dorm, cases))
    print(f"\n{dorm.dorm_table(found)}\n", flush=True)
    return dorm.dorm_aims(found)


def _philly(executor: Executor, *, quick: bool) -> dict[str, Aim]:
    if not data().is_dir():
        print("Sia-Philly: not measured, because WEFT_DATA names no folder")
        return {}
    cases = philly.cases(["1"], [30.0]) if quick else philly.cases(philly.WORKLOADS, philly.RESTARTS_S)
    runs = _run(executor, philly.run_philly, cases)
    print(f"\n{philly.philly_table(runs)}\n", flush=True)
    return philly.philly_aims(runs)


def _planning(seed: int, *, quick: bool) -> dict[str, Aim]:
    figures = Figures()
    found = measure_planning(seed, quick=quick)
    add_planning(figures, found)
    return {
        f"planning.{it.servers}x{it.jobs}_p99_ms": Aim(value=round(it.p99_s * 1000, 1), aim=it.aim_s * 1000)
        for it in found
    }


def _run(executor: Executor, run: Callable[[Case], Run], cases: Iterable[Case]) -> dict[Case, Run]:
    futures = {executor.submit(run, case): case for case in cases}
    found: dict[Case, Run] = {}
    for done, future in enumerate(as_completed(futures), 1):
        found[futures[future]] = future.result()
        print(f"{done} of {len(futures)}: {futures[future]}", file=sys.stderr, flush=True)
    return {case: found[case] for case in futures.values()}
