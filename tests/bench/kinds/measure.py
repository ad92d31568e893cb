"""Weft's planner against Sia's rule on GPUs of three models; at its end one line of JSON.

`--seed` draws the generated workloads; the first Philly workload is measured beside them. Sia has Sia's knowledge; Weft
is measured with the same, and with curves of workloads. Both know all speeds of rigid jobs. Then the GPUs inside a node
(`tests/bench/inside_node.py`), and what gangs lose across nodes where the scheduler must learn it (`penalties.py`).
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.bench import inside_node
from tests.bench.figures import Aim, line_of
from tests.bench.kinds import penalties, planning
from tests.bench.kinds.runs import PLANNERS, SIA, WEFT, WEFT_AS_SIA, KindsCase, KindsRun, run
from tests.bench.policies.setups import data
from tests.bench.policies.tables import geomean, table

BOUNDS = {"mean_h": 0.92, "p99_h": 1.0, "restarts": 0.7, "gpu_hours": 1.15}
RIGID_BOUNDS = {"mean_h": 1.0, "p99_h": 1.1}
GENERATED = 3
HEADER = ("workload", "planner", "average JCT, h", "p50, h", "p99, h", "makespan, h", "GPU-hours", "restarts")
PENALTIES_HEADER = ("workload", *(f"{name}, h" for name in penalties.KNOWLEDGE))
LEARNT_BOUNDS = {penalties.USUAL: 0.95, penalties.ORACLE: 1.03}
PLANNING_HEADER = ("jobs", "first plan, s", "next plan, s", "memory, MiB", "not started", "GPUs idle")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench kinds", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first Philly workload alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="the folder of measured data (default: WEFT_DATA)")
    asked = parser.parse_args(arguments)
    where = data() if asked.data is None else asked.data
    if not where.is_dir():
        sys.exit("no measured data here: WEFT_DATA or --data names no folder")
    seeds = [0] if asked.quick else [0, *range(asked.seed, asked.seed + GENERATED)]
    cases = [KindsCase(planner, seed) for seed in seeds for planner in PLANNERS]
    cases += [KindsCase(planner, seed, rigid=True) for seed in seeds for planner in (SIA, WEFT)]
    with ProcessPoolExecutor(2) as executor:
        found = dict(zip(cases, executor.map(run, cases, [where] * len(cases)), strict=True))
        apart = penalties.measured(executor, asked.seed, quick=asked.quick)
    plans = [planning.run(jobs, asked.seed, where) for jobs in planning.SIZES]
    print(f"every GPU is simulated\n\n{_shown(found)}\n\n{_shown_plans(plans)}\n\n{_shown_penalties(apart)}\n")
    inside = inside_node.measured(count=inside_node.QUICK if asked.quick else inside_node.MIXES, seed=asked.seed)
    print(inside_node.shown(inside), end="\n\n")
    aims = _aims(found, seeds) | _planning_aims(plans) | _penalty_aims(apart) | _inside_aims(inside)
    print(line_of(aims, seed=asked.seed))
    return 0 if all(aim.met for aim in aims.values()) else 1


def _aims(found: Mapping[KindsCase, KindsRun], seeds: Sequence[int]) -> dict[str, Aim]:
    def ratio(planner: str, field: str, *, rigid: bool = False) -> float:
        def value(of: str, seed: int) -> float:
            return float(getattr(found[KindsCase(of, seed, rigid)], field))

        return round(geomean(value(planner, seed) / value(SIA, seed) for seed in seeds), 3)

    aims = {f"{field} of Sia's": Aim(value=ratio(WEFT, field), aim=bound) for field, bound in BOUNDS.items()}
    aims["mean_h of Sia's, as Sia knows"] = Aim(value=ratio(WEFT_AS_SIA, "mean_h"), aim=1.0)
    for field, bound in RIGID_BOUNDS.items():
        aims[f"{field} of Sia's, rigid"] = Aim(value=ratio(WEFT, field, rigid=True), aim=bound)
    return aims


def _planning_aims(plans: Sequence[planning.PlanningRun]) -> dict[str, Aim]:
    """Every job that fits is started: no GPU is idle while a job waits."""
    aims: dict[str, Aim] = {}
    for it in plans:
        slower = round(max(it.first_s, it.next_s), 2)
        aims[f"planning {it.jobs} jobs, s"] = Aim(value=slower, aim=planning.SIZES[it.jobs])
        aims[f"planning {it.jobs} jobs, jobs that fit and wait"] = Aim(value=min(it.waiting, it.idle), aim=0)
    return aims


def _penalty_aims(apart: penalties.Measured) -> dict[str, Aim]:
    """The average JCT where penalties are learnt, against the two bounds of knowledge."""

    def ratio(against: str) -> float:
        return round(geomean(each[penalties.LEARNT] / each[against] for each in apart.values()), 3)

    return {
        f"mean_h with learnt penalties, of {name}": Aim(value=ratio(name), aim=bound)
        for name, bound in LEARNT_BOUNDS.items()
    }


def _inside_aims(inside: Mapping[str, Mapping[str, float]]) -> dict[str, Aim]:
    """By topology; how much more bandwidth than by scores alone only where the best that is free has as much more."""
    bounds, aims = inside_node.AIMS, dict[str, Aim]()
    for name, each in inside.items():
        aims[f"{name}: bandwidth of the best"] = Aim(value=each["of_best"], aim=bounds["of_best"], at_least=True)
        aims[f"{name}: ms a decision"] = Aim(value=each["decision_ms_more"], aim=bounds["decision_ms"])
        if each["over_scores_max"] >= bounds["over_scores"]:
            over = Aim(value=each["over_scores"], aim=bounds["over_scores"], at_least=True)
            aims[f"{name}: bandwidth more than by scores"] = over
    return aims


def _shown_penalties(apart: penalties.Measured) -> str:
    return table(
        PENALTIES_HEADER, [[name, *(f"{each[of]:.3f}" for of in penalties.KNOWLEDGE)] for name, each in apart.items()]
    )


def _shown(found: Mapping[KindsCase, KindsRun]) -> str:
    rows = [
        [
            (f"generated {case.seed}" if case.seed else "Philly 1") + (", rigid" if case.rigid else ""),
            case.planner,
            *(f"{value:.2f}" for value in (it.mean_h, it.p50_h, it.p99_h, it.makespan_h, it.gpu_hours, it.restarts)),
        ]
        for case, it in found.items()
    ]
    return table(HEADER, rows)


def _shown_plans(plans: Sequence[planning.PlanningRun]) -> str:
    rows = [
        [str(it.jobs), f"{it.first_s:.2f}", f"{it.next_s:.2f}", f"{it.memory_mib:.0f}", str(it.waiting), str(it.idle)]
        for it in plans
    ]
    return table(PLANNING_HEADER, rows)
