"""Scores that change: how much is lost by who goes by old ones, or learns the new from noisy step times."""

from msgspec.structs import replace

from tests.bench.policies.runs import Lab, Results, Run
from tests.bench.policies.scale import Scale
from tests.bench.policies.setups import sia
from tests.bench.policies.tables import geomean, losses, table

OURS, PAL = "weft-best", "pal"
HOUR_S = 3600.0


def drift(lab: Lab, scale: Scale) -> str:
    oracles = [
        Run(
            cluster=f"drifting {seed}",
            workload=sia(number),
            policy=f"{order}+{placement}+easy",
            drift_s=hours * HOUR_S,
            durations_known=True,
            seed=seed,
        )
        for hours in scale.drifts_h
        for order in scale.orders
        for placement in (OURS, PAL)
        for seed in (scale.seeds if placement == OURS else scale.seeds[:1])  # PAL online is slow
        for number in scale.workloads
    ]
    results = lab.results([_with(run, scores) for run in oracles for scores in ("oracle", "offline", "online")])
    groups: dict[tuple[float, str], list[Run]] = {}
    for run in oracles:
        groups.setdefault((run.drift_s, run.policy), []).append(run)
    rows = [
        [
            f"{drift_s / HOUR_S:g} h",
            policy,
            str(len(runs)),
            f"{geomean(results[run].mean_s for run in runs) / HOUR_S:.3f}",
            *_against_oracle("offline", runs, results),
            *_against_oracle("online", runs, results),
        ]
        for (drift_s, policy), runs in groups.items()
    ]
    header = ["redrawn every", "policy", "cases", "oracle, h", "offline ÷ oracle", "worst", "online ÷ oracle", "worst"]
    ours = [run for run in oracles if OURS in run.policy]
    both = [run for run in ours if _by_pal(run) in results]
    return "\n\n".join(
        [
            "Average JCT, geometric means over clusters and workloads. Aim: online within 3 % of the oracle.",
            table(header, rows),
            losses("weft-best online ÷ PAL online", {_case(run): _against_pal(run, results) for run in both}),
            losses(
                "weft-best online ÷ weft-best that sees the truth", {_case(run): _lag(run, results) for run in ours}
            ),
        ]
    )


def _by_pal(run: Run) -> Run:
    return replace(run, policy=run.policy.replace(OURS, PAL))


def _with(run: Run, scores: str) -> Run:
    return replace(run, scores=scores)


def _against_oracle(scores: str, runs: list[Run], results: Results) -> list[str]:
    ratios = [results[_with(run, scores)].mean_s / results[run].mean_s for run in runs]
    return [f"{geomean(ratios):.3f}", f"{max(ratios):.3f}"]


def _against_pal(run: Run, results: Results) -> float:
    return results[_with(run, "online")].mean_s / results[_with(_by_pal(run), "online")].mean_s


def _lag(run: Run, results: Results) -> float:
    return results[_with(run, "online")].mean_s / results[run].mean_s


def _case(run: Run) -> str:
    order = run.policy.partition("+")[0]
    return f"every {run.drift_s / HOUR_S:g} h, {order}, cluster {run.seed}, workload {run.workload.split()[-1]}"
