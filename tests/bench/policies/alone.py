"""Placement alone: the same order, backfill, costs and knowledge for weft-best and for PAL."""

from math import inf

from msgspec.structs import replace

from tests.bench.policies.runs import Lab, Results, Run
from tests.bench.policies.scale import Scale
from tests.bench.policies.setups import FLAT, SEED_42, sia
from tests.bench.policies.tables import MINUS, geomean, losses, table

LITTLE = 0.005  # a gap smaller than this is none that could be closed


def alone(lab: Lab, scale: Scale) -> str:
    pals = [
        Run(
            cluster=name,
            workload=sia(number),
            policy=f"{order}+pal+easy",
            move_s=cost,
            decide_every_s=cadence,
            durations_known=True,
        )
        for name in (SEED_42, *scale.honest)
        for order in scale.orders
        for cost in scale.costs_s
        for cadence in scale.cadences_s
        for number in scale.workloads
    ]
    sane = [replace(run, cluster=FLAT, penalty=1.0) for run in pals if run.move_s == scale.costs_s[0]]
    sane = list(dict.fromkeys(replace(run, move_s=0.0, decide_every_s=0.0) for run in sane))
    every = [*pals, *(_flat(run) for run in pals), *sane]
    results = lab.results([*every, *(_ours(run) for run in [*pals, *sane])])
    return "\n\n".join(
        [
            *(_at_cadence(cadence, pals, results, scale) for cadence in scale.cadences_s),
            _summary(pals, results, scale),
            losses("Average JCT against PAL", {_case(run): _ratio(run, results) for run in pals}),
            _sanity(sane, results),
        ]
    )


def _ours(run: Run) -> Run:
    return replace(run, policy=run.policy.replace("pal", "weft-best"))


def _flat(run: Run) -> Run:
    return replace(run, cluster=FLAT)


def _ratio(run: Run, results: Results) -> float:
    return results[_ours(run)].mean_s / results[run].mean_s


def _bound(run: Run, results: Results) -> float:
    return results[_flat(run)].mean_s / results[run].mean_s


def _at_cadence(cadence: float, pals: list[Run], results: Results, scale: Scale) -> str:
    when = f"Decided every {cadence:g} s" if cadence else "Decided whenever something happens"
    runs = [run for run in pals if run.decide_every_s == cadence]
    rows = []
    for name in (SEED_42, *scale.honest):
        for order in scale.orders:
            cells = [
                _cell(
                    [run for run in runs if (run.cluster, run.policy, run.move_s) == (name, f"{order}+pal+easy", cost)],
                    results,
                )
                for cost in scale.costs_s
            ]
            rows.append([name, order, *cells])
    header = ["cluster", "order", *(f"a move costs {cost:g} s" for cost in scale.costs_s)]
    return f"{when}: weft-best ÷ PAL / bound ÷ PAL / part of the gap closed / worst trace.\n\n" + table(header, rows)


def _cell(runs: list[Run], results: Results) -> str:
    ratios = [_ratio(run, results) for run in runs]
    ours, bound = geomean(ratios), geomean(_bound(run, results) for run in runs)
    return f"{ours:.3f} / {bound:.3f} / {_percent(_closed(ours, bound))} / {max(ratios):.3f}"


def _closed(ours: float, bound: float) -> float:
    return (1 - ours) / (1 - bound) if 1 - bound > LITTLE else inf


def _percent(part: float) -> str:
    return "–" if part == inf else f"{part * 100:.0f} %".replace("-", MINUS)


def _summary(pals: list[Run], results: Results, scale: Scale) -> str:
    """Over all clusters and orders."""
    rows = []
    for cadence in scale.cadences_s:
        for cost in scale.costs_s:
            runs = [run for run in pals if (run.decide_every_s, run.move_s) == (cadence, cost)]
            ratios = [_ratio(run, results) for run in runs]
            ours, bound = geomean(ratios), geomean(_bound(run, results) for run in runs)
            moves = sum(results[_ours(run)].moves for run in runs), sum(results[run].moves for run in runs)
            closed = _percent(_closed(ours, bound))
            rows.append(
                [
                    f"{cadence:g} s" if cadence else "always",
                    f"{cost:g} s",
                    f"{ours:.3f}",
                    f"{bound:.3f}",
                    closed,
                    f"{max(ratios):.3f}",
                    f"{moves[0]:,} / {moves[1]:,}",
                ]
            )
    header = ["decided every", "a move costs", "weft-best ÷ PAL", "bound ÷ PAL", "closed", "worst", "moves, ours / PAL"]
    return "All clusters and orders together (aim: half of the gap closed, no trace above 1.01).\n\n" + table(
        header, rows
    )


def _case(run: Run) -> str:
    order = run.policy.partition("+")[0]
    when = f"every {run.decide_every_s:g} s" if run.decide_every_s else "always"
    return f"{run.cluster}, {order}, a move costs {run.move_s:g} s, decided {when}, workload {run.workload.split()[-1]}"


def _sanity(sane: list[Run], results: Results) -> str:
    ratios = [_ratio(run, results) for run in sane]
    told = "Sanity: no variability, locality penalty 1.0, free moves: weft-best ÷ PAL is"
    return f"{told} {geomean(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f} in {len(ratios)} cases)."
