"""A pool in which nothing is set: `python -m tests.bench shipped [--quick] [--seed N] [--data DIR] [--only PARTS]`.

All settings are read as the services read them. Part `policies`, below; `dorm`: Dorm's table with the shipped planner;
`mixed`: DynamoML's mixed day against Kubernetes with two autoscalers and with fixed replicas; `elastic` and `tuner`, on
jobs that really run: see `tests.bench.shipped_live`.

Sia-Philly (160 jobs in 8 hours, 64 simulated GPUs) under the default settings of the scheduler, read as the service
reads them, against the rules of PAL's artifact. All jobs, half of them or none write a checkpoint when they are
stopped; one that writes none stays where it is until it ends, as all jobs have the same priority here. A move is
weighed, and paid, as the scheduler weighs it. Then the same jobs with all checkpoints made elastic, from one GPU to
twice as many as they ask for, with the planner under the default settings of the reallocator, against rigid ones.

The price of kept nodes was chosen on the artifact's own draw of GPU speeds (seed 42), on draw 7 and on draw 1 from
Longhorn; the order by size and the promotion of short jobs with `--seed` 1 to 5 and 35, the hours for which small jobs
come first with 2. `--seed` picks which jobs write checkpoints, and the other draws: a sample of 256 measured GPUs,
Longhorn and Frontera. The elastic jobs are on seed 42 and on the draw of `--seed`; nothing was chosen on the latter.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from msgspec import Struct, structs

from tests.bench import shipped_live as live
from tests.bench.figures import Aim, line_of
from tests.bench.partition import dorm
from tests.bench.partition.dorm import shipped_planner, shipped_scheduler
from tests.bench.policies.rounds import simulate_rounds
from tests.bench.policies.setups import SEED_42, cluster, data, sia, workload
from tests.bench.policies.tables import geomean, table
from tests.bench.serving import mixed
from weft.planning.preemption.minimum_run import MinimumRun
from weft.simulator.metrics import Metrics, metrics
from weft.simulator.model import World
from weft.simulator.run import simulate
from weft.simulator.sizing import Partitioning
from weft.simulator.workload import with_checkpoints
from weftd.cli.study.simulation.inputs import made_elastic

PARTS = {"all jobs checkpoint": 1.0, "half of them": 0.5, "none": 0.0}
AIMS = {"all jobs checkpoint": 0.13, "half of them": 0.17, "none": 0.25}
ELSEWHERE = 1.2  # times the aim, on other draws
ELASTIC = {30.0: 0.75, 120.0: 0.82}  # by the seconds of a restart
RESTARTS = tuple(ELASTIC)
TIMES, EXPONENT = 2.0, 0.85  # as in `tests.bench partition`
WORKLOADS = ("1", "2", "3", "4")
ROWS = ("policies", "dorm", "mixed", "elastic", "tuner")


class Case(Struct, frozen=True):
    """One simulation; `part` None: by the artifact's rules. `restart_s`: seconds of a restart of the
    elastic jobs; None: all jobs are rigid."""

    cluster: str
    workload: str
    part: float | None
    seed: int
    restart_s: float | None = None


def main(arguments: Sequence[str]) -> int:
    asked = _asked(arguments)
    if asked.data is not None:
        os.environ["WEFT_DATA"] = str(asked.data.resolve())
    if "policies" in asked.only and not data().is_dir():
        sys.exit("no measured data here: WEFT_DATA or --data names no folder")
    quick, seed = asked.quick, asked.seed
    aims: dict[str, Aim] = {}
    with ProcessPoolExecutor(2) as executor:
        if "policies" in asked.only:
            aims |= _policies(executor, seed, quick=quick)
        if "dorm" in asked.only:
            exponents, paper = (dorm.SPEED_UPS, ["Dorm (0.1, 0.2)"]) if quick else (dorm.EXPONENTS, dorm.PAPER)
            cases = dorm.cases([seed], exponents, paper)
            table_of_dorm = dorm.compared(dict(zip(cases, executor.map(dorm.run_dorm, cases), strict=True)))
            print(f"\n{dorm.dorm_table(table_of_dorm)}\n", flush=True)
            aims |= dorm.dorm_aims(table_of_dorm)
        if "mixed" in asked.only:
            aims |= mixed.against_kubernetes(seed, executor, quick=quick)
    if "elastic" in asked.only:
        aims |= live.sizes(seed, quick=quick)
    if "tuner" in asked.only:
        aims |= live.tuner(quick=quick)
    for name, aim in aims.items():
        if not name.startswith("JCT"):  # those are in the table
            bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
            print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}")
    print(line_of(aims, seed=seed))
    return 0 if all(aim.met for aim in aims.values()) else 1


def _policies(executor: Executor, seed: int, *, quick: bool) -> dict[str, Aim]:
    workloads = WORKLOADS[:1] if quick else WORKLOADS
    elsewhere = [f"draw {seed}", f"longhorn {seed}", f"frontera {seed}"]
    clusters = [SEED_42] if quick else [SEED_42, *elsewhere]
    cases = [
        Case(where, number, part, seed)
        for where in clusters
        for number in workloads
        for part in (None, *PARTS.values())
    ]
    cases += [
        Case(where, number, 1.0, seed, restart_s)
        for where in clusters[:2]
        for number in workloads
        for restart_s in ([RESTARTS[0]] if quick else RESTARTS)
    ]
    found = dict(zip(cases, executor.map(ran, cases), strict=True))
    policy = shipped_scheduler().core.policy
    print(f"{policy}, the defaults of the scheduler, against PAL's artifact; every GPU is simulated.\n")
    print(_shown(found, clusters, workloads, seed), flush=True)
    return _aims(found, clusters, workloads, seed) | _elastic_aims(found)


def ran(case: Case) -> Metrics:
    jobs, there = workload(sia(case.workload)), cluster(case.cluster)
    if case.part is None:
        return metrics(simulate_rounds(jobs, there, "pal", penalty=shipped_scheduler().locality_penalty))
    jobs = with_checkpoints(jobs, case.part, seed=1000 * case.seed + int(case.workload))
    core = shipped_scheduler().core
    world = World(
        penalty=core.locality_penalty,
        rack_penalty=core.rack_penalty,
        move_s=core.moves.cost_seconds,
        moves=core.moves,
        patience_s=core.patience_seconds,
        minimum_run=MinimumRun(core.preemption_after_seconds),
    )
    planner: Partitioning | None = None
    if case.restart_s is not None:
        jobs = made_elastic(jobs, times=TIMES, exponent=EXPONENT, resize_s=case.restart_s, gpus_most=there.gpus)
        planner = shipped_planner()
    return metrics(simulate(jobs, there, core.policy, world, keep_spells=False, partitioning=planner))


def _ratio(
    found: Mapping[Case, Metrics], where: Sequence[str], workloads: Sequence[str], part: float, field: str, seed: int
) -> float:
    return geomean(
        getattr(found[Case(name, number, part, seed)], field) / getattr(found[Case(name, number, None, seed)], field)
        for name in where
        for number in workloads
    )


def _aims(
    found: Mapping[Case, Metrics], clusters: Sequence[str], workloads: Sequence[str], seed: int
) -> dict[str, Aim]:
    aims: dict[str, Aim] = {}
    for name, part in PARTS.items():
        ratio = _ratio(found, clusters[:1], workloads, part, "jct_mean_s", seed)
        aims[f"JCT, {name}"] = Aim(value=round(ratio, 3), aim=AIMS[name])
        for other in clusters[1:]:
            ratio = _ratio(found, [other], workloads, part, "jct_mean_s", seed)
            aims[f"JCT, {name}, {other}"] = Aim(value=round(ratio, 3), aim=round(ELSEWHERE * AIMS[name], 3))
    everyone = [found[Case(clusters[0], number, 1.0, seed)] for number in workloads]
    worst = max(one.slowdown_max for one in everyone)
    aims["worst slowdown, all jobs checkpoint"] = Aim(value=round(worst, 1), aim=50.0)
    p99 = _ratio(found, clusters[:1], workloads, 1.0, "jct_p99_s", seed)
    aims["p99 JCT, all jobs checkpoint"] = Aim(value=round(p99, 3), aim=0.75)
    return aims


def _elastic_aims(found: Mapping[Case, Metrics]) -> dict[str, Aim]:
    ratios: dict[tuple[str, float], list[float]] = {}
    for case, run in found.items():
        if case.restart_s is not None:
            rigid = found[structs.replace(case, restart_s=None)]
            ratios.setdefault((case.cluster, case.restart_s), []).append(run.jct_mean_s / rigid.jct_mean_s)
    aims: dict[str, Aim] = {}
    for (where, restart_s), of_rigid in ratios.items():
        name = f"elastic, JCT of rigid, restarts of {restart_s:g} s, {where}"
        aims[name] = Aim(value=round(geomean(of_rigid), 3), aim=ELASTIC[restart_s])
        aims[f"{name}, worst workload"] = Aim(value=round(max(of_rigid), 3), aim=1.0)
    return aims


def _shown(found: Mapping[Case, Metrics], clusters: Sequence[str], workloads: Sequence[str], seed: int) -> str:
    rows = []
    for where in clusters:
        for name, part in PARTS.items():
            ours = [found[Case(where, number, part, seed)] for number in workloads]
            rows.append(
                [
                    where,
                    name,
                    f"{_ratio(found, [where], workloads, part, 'jct_mean_s', seed):.3f}",
                    f"{_ratio(found, [where], workloads, part, 'jct_p99_s', seed):.3f}",
                    f"{max(one.slowdown_max for one in ours):,.0f}",
                    str(sum(one.moves for one in ours)),
                    str(sum(one.evictions for one in ours)),
                ]
            )
    header = ("GPU speeds", "which jobs", "average JCT", "p99 JCT", "worst slowdown", "moves", "evictions")
    return table(header, rows)


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench shipped", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer workloads, and shorter ones")
    parser.add_argument("--only", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}, with commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="the folder of measured data (default: WEFT_DATA)")
    asked = parser.parse_args(arguments)
    asked.only = asked.only.split(",")
    if unknown := set(asked.only) - set(ROWS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return asked
