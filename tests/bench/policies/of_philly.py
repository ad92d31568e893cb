"""Philly itself, at several loads, on a small cluster and on a large one."""

from collections.abc import Mapping

from tests.bench.policies.runs import Lab, Result, Run
from tests.bench.policies.scale import OfPhilly, Scale
from tests.bench.policies.setups import philly
from tests.bench.policies.tables import hours, losses, table

OURS, PAL = "las+weft-best+easy", "fifo+pal+easy"
POLICIES = ("fifo+packed-sticky+easy", PAL, "las+packed-sticky+easy", OURS)
PAL_EVERY_S = 300.0  # the others decide whenever something happens
FIELDS = {"average JCT": "mean_s", "p50": "p50_s", "p99": "p99_s", "makespan": "makespan_s"}
HEADER = ("load", "policy", *FIELDS, "moves", "evictions", "average JCT of ours ÷ this")

Key = tuple[OfPhilly, float, str]


def of_philly(lab: Lab, scale: Scale) -> str:
    runs = {
        (case, load, policy): _run(case, load, policy)
        for case in scale.philly
        for load in scale.loads
        for policy in _of(case)
    }
    found = lab.results(runs.values())
    results = {key: found[run] for key, run in runs.items()}
    tables = [
        f"{case.gpus:,} GPUs, the first {case.jobs:,} jobs, their arrivals spread to the load. Hours.\n\n"
        + table(HEADER, [_row(results, (case, load, policy)) for load in scale.loads for policy in _of(case)])
        for case in scale.philly
    ]
    ratios = {
        f"{case.gpus:,} GPUs, {case.jobs:,} jobs, load {load:g}, {what}, against {policy}": _ratio(
            results, (case, load, policy), field
        )
        for case, load, policy in results
        if policy != OURS
        for what, field in FIELDS.items()
    }
    return "\n\n".join([*tables, losses(f"{OURS} ÷ the others", ratios)])


def _of(case: OfPhilly) -> list[str]:
    return [policy for policy in POLICIES if policy != PAL or case.with_pal]


def _run(case: OfPhilly, load: float, policy: str) -> Run:
    return Run(
        cluster=f"philly {case.gpus}",
        workload=philly(case.jobs, load, case.gpus),
        policy=policy,
        decide_every_s=PAL_EVERY_S if policy == PAL else 0.0,
    )


def _row(results: Mapping[Key, Result], key: Key) -> list[str]:
    _, load, policy = key
    found = results[key]
    return [
        f"{load:g}",
        policy + (f", every {PAL_EVERY_S:g} s" if policy == PAL else ""),
        *(hours(getattr(found, field)) for field in FIELDS.values()),
        f"{found.moves:,}",
        f"{found.evictions:,}",
        f"{_ratio(results, key, 'mean_s'):.3f}",
    ]


def _ratio(results: Mapping[Key, Result], key: Key, field: str) -> float:
    case, load, _ = key
    return float(getattr(results[case, load, OURS], field) / getattr(results[key], field))
