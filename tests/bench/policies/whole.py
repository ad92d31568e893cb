"""Whole policies: las+weft-best+easy, which knows no durations and pays for moves, against the artifact's PAL."""

from tests.bench.policies.runs import Lab, Result, Run, by_artifact
from tests.bench.policies.scale import Scale
from tests.bench.policies.setups import SEED_42, sia
from tests.bench.policies.tables import geomean, losses, table

OURS = "las+weft-best+easy"
FIELDS = {"average JCT": "mean_s", "p99 JCT": "p99_s", "makespan": "makespan_s"}
HEADER = (*FIELDS, "largest slowdown, ours (PAL)", "worst job against itself under PAL", "moves", "evictions")
AIMS = ["aim", "≤ 0.15", "≤ 0.75", "≤ 1.0", "", "", "", ""]

Pair = tuple[Result, Result]
"""Ours, and PAL's."""


def whole(lab: Lab, scale: Scale) -> str:
    ours = {
        (name, number): Run(cluster=name, workload=sia(number), policy=OURS)
        for name in scale.clusters
        for number in scale.workloads
    }
    theirs = {key: by_artifact("pal", cluster=run.cluster, workload=run.workload) for key, run in ours.items()}
    results = lab.results([*ours.values(), *theirs.values()])
    pairs = {key: (results[ours[key]], results[theirs[key]]) for key in ours}

    by_workload = [[number, *_row([pairs[SEED_42, number]])] for number in scale.workloads]
    by_cluster = [[name, *_row([pairs[name, number] for number in scale.workloads])] for name in scale.clusters]
    ratios = {
        f"{name}, workload {number}, {what}": _ratio(pair, field)
        for (name, number), pair in pairs.items()
        for what, field in FIELDS.items()
    }
    return "\n\n".join(
        [
            f"{OURS} ÷ the artifact's PAL on the seed-42 cluster, by workload.",
            table(["workload", *HEADER], by_workload),
            "Geometric means over the workloads, by cluster (slowdown and worst job: the largest of all).",
            table(["cluster", *HEADER], [*by_cluster, AIMS]),
            losses("Against the artifact's PAL", ratios),
        ]
    )


def _row(pairs: list[Pair]) -> list[str]:
    """Ratios in the mean, the worst of all, moves and evictions in sum."""
    return [
        *(f"{geomean(_ratio(pair, field) for pair in pairs):.3f}" for field in FIELDS.values()),
        f"{max(ours.slowdown_max for ours, _ in pairs):.0f} ({max(pal.slowdown_max for _, pal in pairs):.0f})",
        f"{max(_worst(pair) for pair in pairs):.2f}",
        str(sum(ours.moves for ours, _ in pairs)),
        str(sum(ours.evictions for ours, _ in pairs)),
    ]


def _ratio(pair: Pair, field: str) -> float:
    ours, theirs = pair
    return float(getattr(ours, field) / getattr(theirs, field))


def _worst(pair: Pair) -> float:
    """The largest ratio of one job's JCT to the same job's under PAL."""
    ours, theirs = pair
    return max(ours.jct_s[job] / theirs.jct_s[job] for job in ours.jct_s)
