"""Weft's planner against Sia's rule on GPUs of three models; at its end one line of JSON.

`--seed` draws the generated workloads; the first Philly workload is measured beside them. Sia has Sia's knowledge; Weft
is measured with the same, and with curves of workloads.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.bench.figures import Aim, line_of
from tests.bench.kinds.runs import PLANNERS, SIA, WEFT, WEFT_AS_SIA, KindsCase, KindsRun, run
from tests.bench.policies.setups import data
from tests.bench.policies.tables import geomean, table

BOUNDS = {"mean_h": 0.92, "p99_h": 1.0, "restarts": 0.7, "gpu_hours": 1.15}
GENERATED = 3
HEADER = ("workload", "planner", "average JCT, h", "p50, h", "p99, h", "makespan, h", "GPU-hours", "restarts")


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
    with ProcessPoolExecutor(2) as executor:
        found = dict(zip(cases, executor.map(run, cases, [where] * len(cases)), strict=True))
    print(f"every GPU is simulated\n\n{_shown(found)}\n")
    aims = _aims(found, seeds)
    print(line_of(aims, seed=asked.seed))
    return 0 if all(aim.met for aim in aims.values()) else 1


def _aims(found: Mapping[KindsCase, KindsRun], seeds: Sequence[int]) -> dict[str, Aim]:
    def ratio(planner: str, field: str) -> float:
        return round(
            geomean(
                getattr(found[KindsCase(planner, seed)], field) / getattr(found[KindsCase(SIA, seed)], field)
                for seed in seeds
            ),
            3,
        )

    aims = {f"{field} of Sia's": Aim(value=ratio(WEFT, field), aim=bound) for field, bound in BOUNDS.items()}
    aims["mean_h of Sia's, as Sia knows"] = Aim(value=ratio(WEFT_AS_SIA, "mean_h"), aim=1.0)
    return aims


def _shown(found: Mapping[KindsCase, KindsRun]) -> str:
    rows = [
        [
            f"generated {case.seed}" if case.seed else "Philly 1",
            case.planner,
            *(f"{value:.2f}" for value in (it.mean_h, it.p50_h, it.p99_h, it.makespan_h, it.gpu_hours, it.restarts)),
        ]
        for case, it in found.items()
    ]
    return table(HEADER, rows)
