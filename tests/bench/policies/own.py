"""PAL's own figures: by the artifact's rules, against packed-sticky; and where they come from."""

from tests.bench.policies.parity import PLACEMENTS
from tests.bench.policies.runs import Lab, Result, by_artifact
from tests.bench.policies.scale import Scale
from tests.bench.policies.setups import FLAT, MENDED, ONE_SLOW, SEED_42, cluster, sia, slowest_gpu
from tests.bench.policies.tables import MINUS, change, geomean, hours, table

PUBLISHED = ["published (abstract)", f"{MINUS}42 %", "", f"{MINUS}47 %"]
BASELINE = "packed-sticky"


def own(lab: Lab, scale: Scale) -> str:
    where = (SEED_42, MENDED, ONE_SLOW, FLAT, *scale.draws, *scale.honest)
    runs = {
        (name, number, placement): by_artifact(placement, cluster=name, workload=sia(number))
        for name in where
        for number in scale.workloads
        for placement in PLACEMENTS
    }
    results = lab.results(runs.values())

    def result(name: str, number: str, placement: str) -> Result:
        return results[runs[name, number, placement]]

    def cell(number: str, placement: str) -> str:
        found = result(SEED_42, number, placement)
        return " / ".join(hours(value) for value in (found.mean_s, found.p99_s, found.makespan_s))

    def against_baseline(placement: str, field: str) -> float:
        return geomean(
            getattr(result(SEED_42, number, placement), field) / getattr(result(SEED_42, number, BASELINE), field)
            for number in scale.workloads
        )

    def against_drawn(name: str, placement: str) -> float:
        return geomean(
            result(name, number, placement).mean_s / result(SEED_42, number, BASELINE).mean_s
            for number in scale.workloads
        )

    figures = table(
        ["workload", *PLACEMENTS],
        ([number, *(cell(number, placement) for placement in PLACEMENTS)] for number in scale.workloads),
    )
    fields = ("mean_s", "p99_s", "makespan_s")
    gains = table(
        [f"against {BASELINE}", "average JCT", "p99 JCT", "makespan"],
        [
            *(
                [placement, *(change(against_baseline(placement, field)) for field in fields)]
                for placement in PLACEMENTS
                if placement != BASELINE
            ),
            PUBLISHED,
        ],
    )
    shown = ("packed-sticky", "packed", "pal")
    origins = table(
        ["cluster", *shown, "pal ÷ packed-sticky there"],
        (
            [
                name,
                *(f"{against_drawn(name, placement):.3f}" for placement in shown),
                f"{against_drawn(name, 'pal') / against_drawn(name, BASELINE):.3f}",
            ]
            for name in where
        ),
    )
    scores = cluster(SEED_42).scores["A"]
    slow = slowest_gpu(scores)
    others = max(score for gpu, score in enumerate(scores) if gpu != slow)
    told = (
        f"GPU {slow} takes {scores[slow]:.2f} times as long as a typical one (class A), no other more than {others:.2f}"
    )
    return "\n\n".join(
        [
            "Hours: average JCT / p99 JCT / makespan.",
            figures,
            "Geometric means over the workloads.",
            gains,
            f"Average JCT ÷ that of {BASELINE} on the seed-42 cluster as it was drawn, geometric means. {told}.",
            origins,
        ]
    )
