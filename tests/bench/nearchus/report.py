"""The page's tables, from the raw results: nothing in them is written by hand."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

from tests.bench.nearchus.comparing import ASKED, EQUAL, GRID, ORACLE, OURS, OUTSCALED
from tests.bench.nearchus.measured import BUSY_ELSEWHERE, Action, Measured, Traced, measured, traced
from tests.bench.nearchus.queueing import SIDES, TRACES
from tests.bench.nearchus.quiet import S6
from tests.bench.nearchus.scenarios import SCENARIOS, Scenario, Share
from tests.bench.policies.tables import change, lacks, put, table
from tests.support.corpus import Recorded, accuracy, confusion, recorded, wrong

FASTER, FASTER_MOST, NEAR = 1.714, 2.291, 0.90
SHORTER_QUEUE, SHORTER_JOBS = 1.0 - 0.678, 1.0 - 0.356
RIGHT = 0.95
PARTS = ("aims", *SCENARIOS, *TRACES, S6.name, "corpus")
NOT_RUN = "Not run yet."
TIMES = {"queued": "queueing", "whole": "JCT"}


def report(results: Path, page: Path, corpus: Path) -> None:
    if missing := lacks(page, PARTS):
        raise SystemExit(f"{page} has no place for {', '.join(missing)}: two marker comments each")
    found = measured(results, (*SCENARIOS, S6.name))
    traces = traced(results, TRACES)
    put(page, "aims", aims(found, traces))
    for name, scenario in SCENARIOS.items():
        put(page, name, compared(scenario, found[name]))
    for name, trace in TRACES.items():
        put(page, name, queues(trace.what, traces[name]))
    put(page, S6.name, quiet(found[S6.name]))
    put(page, "corpus", verdicts(recorded(corpus)))


def of_side(runs: Iterable[Measured], side: str) -> list[Measured]:
    """Those that nothing disturbed; where all were disturbed, all of them."""
    every = [run for run in runs if run.side == side]
    return [run for run in every if not run.disturbed] or every


def speed_of(runs: Iterable[Measured], side: str) -> float | None:
    found = of_side(runs, side)
    return median(run.steady for run in found) if found else None


def best_baseline(runs: Sequence[Measured]) -> float | None:
    return max((speed for side in (EQUAL, ASKED) if (speed := speed_of(runs, side)) is not None), default=None)


def compared(scenario: Scenario, runs: Sequence[Measured]) -> str:
    best = best_baseline(runs)
    if best is None:
        return f"{_sentence(scenario.what)} {NOT_RUN}"
    rows = [
        _row(scenario, side, of_side(runs, side), best)
        for side in (EQUAL, ASKED, OURS, OUTSCALED, ORACLE)
        if of_side(runs, side)
    ]
    header = ("side", "share", "samples/s, median (least–most)", "to the best baseline", "its last quarter", "runs")
    parts = [
        f"{_sentence(scenario.what)} {scenario.extra}".strip(),
        f"Each replica: `python -m {scenario.program} {' '.join(scenario.arguments)}`.",
        table(header, rows),
        _disturbed(runs),
        _grid(scenario, runs),
        *(_changes(run.actions) for run in of_side(runs, OURS)[:1]),
        *(_changes(run.actions, OUTSCALED) for run in of_side(runs, OUTSCALED)[:1]),
    ]
    return "\n\n".join(part for part in parts if part)


def _row(scenario: Scenario, side: str, runs: Sequence[Measured], best: float) -> tuple[str, ...]:
    speeds = sorted(run.steady for run in runs)
    settled = median(run.settled for run in runs)
    last = runs[-1]
    share = _share(scenario, Share(cpus=last.cpus, memory=last.memory, egress=last.egress))
    return (
        side,
        f"begins with {share}" if side in (OURS, OUTSCALED) else share,
        f"{median(speeds):,.0f} ({speeds[0]:,.0f}–{speeds[-1]:,.0f})",
        change(median(speeds) / best),
        f"{settled:,.0f} ({change(settled / best)})",
        f"{len(runs)} × {runs[0].seconds:.0f} s",
    )


def _share(scenario: Scenario, share: Share) -> str:
    words = ", ".join(f"{count} {role} × {share.cpus[role]:g}" for role, count in scenario.replicas.items())
    if share.egress:
        words += f"; {_rates(share.egress)}"
    return words if share.memory == scenario.equal.memory == "384MiB" else f"{words}, {share.memory}"


def _rates(egress: Mapping[str, int]) -> str:
    return ", ".join(f"{role} {rate * 8 / 1000:.3g} Mbit/s" for role, rate in egress.items())


def _disturbed(runs: Sequence[Measured]) -> str:
    count = sum(run.disturbed for run in runs if run.side != GRID)
    every = sum(run.side != GRID for run in runs)
    if not count:
        return ""
    of = f"In {count} of {every} runs others kept more than {BUSY_ELSEWHERE:g} cores busy"
    return f"{of}: left out, where the side has runs without."


def _grid(scenario: Scenario, runs: Sequence[Measured]) -> str:
    looks = {_point(run): run.settled for run in runs if run.side == GRID}  # the latest at each
    points = [point for share in scenario.grid if (point := _point(share)) in looks]
    told = "; ".join(f"{point}: {looks[point]:,.0f}" for point in points)
    return f"The oracle's grid, samples/s: {told}." if points else ""


def _point(of: Measured | Share) -> str:
    if of.egress:
        return _rates({"ps": of.egress["ps"]})
    return f"ps {of.cpus['ps']:g}" if "ps" in of.cpus else of.memory


def _changes(actions: Sequence[Action], side: str = "") -> str:
    of_side = f" of the side {side}" if side else ""
    if not actions:
        return f"It changed nothing{of_side and ' in the first run' + of_side}."
    lines = [f"- {action.at:.0f} s, {action.code}: {action.sentence}" for action in actions]
    return "\n".join([f"What it did in its first run{of_side}:", "", *lines])


def queues(what: str, traces: Sequence[Traced]) -> str:
    if not traces:
        return f"{_sentence(what)} {NOT_RUN}"
    rows = []
    for of in _by_kind(traces):
        for side in SIDES:
            if runs := [run for run in of if run.side == side]:
                times = [_told(_means(of, side, part), _means(of, "off", part)) for part in TIMES]
                makespan = f"{median(run.seconds for run in runs):.0f} s"
                rows.append((_asked(of), side, *times, makespan, str(len(runs))))
    header = ("jobs that ask for", "side", "mean queueing, s", "mean JCT, s", "makespan", "runs")
    return f"{_sentence(what)}\n\n{table(header, rows)}"


def _by_kind(traces: Sequence[Traced]) -> list[list[Traced]]:
    """By what its first job asks for, and how many steps it makes."""
    kinds = sorted({(run.cpus, run.steps) for run in traces}, key=lambda kind: (-kind[0], kind[1]))
    return [[run for run in traces if (run.cpus, run.steps) == kind] for kind in kinds]


def _asked(traces: Sequence[Traced]) -> str:
    """What the jobs ask for, and how long the first takes alone."""
    first = traces[0]
    alone = min(run.jobs[0].whole - run.jobs[0].queued for run in traces)
    behind = "" if first.behind in (None, first.cpus) else f"; those behind it, {first.behind:g}"
    return f"{first.cpus:g} cores, for {alone:.0f} s ({first.steps} steps){behind}"


def _means(traces: Iterable[Traced], side: str, part: str) -> list[float]:
    """Of each run, over its jobs; sorted."""
    return sorted(mean(float(getattr(job, part)) for job in run.jobs) for run in traces if run.side == side)


def _told(times: Sequence[float], off: Sequence[float]) -> str:
    """The median over the runs, with the least and the most of several, and its change."""
    spread = f" ({times[0]:.1f}–{times[-1]:.1f})" if len(times) > 1 else ""
    changed = f", {change(median(times) / median(off))}" if off else ""
    return f"{median(times):.1f}{spread}{changed}"


def quiet(runs: Sequence[Measured]) -> str:
    if not runs:
        return f"{_sentence(S6.what)} {NOT_RUN}"
    lines = [
        f"- {run.seconds / 60:.0f} minutes at {run.speed:,.0f} samples/s: {len(run.actions)} changes. "
        f"Verdicts: {', '.join(f'{code} {count}' for code, count in run.verdicts.items()) or 'none'}."
        for run in runs
    ]
    return "\n".join([_sentence(S6.what), "", *lines])


def aims(found: dict[str, list[Measured]], traces: Mapping[str, Sequence[Traced]]) -> str:
    rows = []
    for names, aim in ((("S1", "S2"), FASTER), (("S1-most", "S2-most"), FASTER_MOST)):
        gains = {name: gain for name in names if (gain := _gain(found[name])) is not None}
        told = ", ".join(f"{name} {change(gain)}" for name, gain in gains.items()) or "not run"
        rows.append(
            (f"{' or '.join(names)}: speed to the best baseline, search included", change(aim), told, _met(gains, aim))
        )
    nears = {name: near for name in SCENARIOS if (near := _near(found[name])) is not None}
    told = ", ".join(f"{name} {change(near)}" for name, near in nears.items()) or "not run"
    all_near = all(near >= NEAR for near in nears.values())
    rows.append(
        ("once settled, to the oracle, everywhere", f"within {1 - NEAR:.0%}", told, _yes(all_near) if nears else "–")
    )
    rows += _outscaling_aims(found)
    for name, of in traces.items():
        rows += _queueing_aims(name, of)
    runs = found[S6.name]
    count = sum(len(run.actions) for run in runs)
    minutes = sum(run.seconds for run in runs) / 60
    reached = _yes(count == 0) if minutes >= 30 else "–"
    rows.append(("S6: changes", "0 in 30 minutes", f"{count} in {minutes:.0f} minutes" if runs else "not run", reached))
    return table(("what", "aim", "measured", "reached"), rows)


def _outscaling_aims(found: Mapping[str, Sequence[Measured]]) -> list[tuple[str, ...]]:
    """None until the side that may try more replicas was run."""
    to_ours: dict[str, float] = {}
    for name in SCENARIOS:
        ours, more = speed_of(found[name], OURS), speed_of(found[name], OUTSCALED)
        if ours and more:
            to_ours[name] = more / ours
    if not to_ours:
        return []
    told = ", ".join(f"{name} {change(ratio)}" for name, ratio in to_ours.items())
    rows = [("more replicas allowed besides: speed to ours", "no less", told, _yes(min(to_ours.values()) >= 1.0))]
    best, more = best_baseline(found["S2"]), speed_of(found["S2"], OUTSCALED)
    if best and more:
        rows.append(
            (
                "S2 with them: speed to the best baseline",
                change(FASTER),
                change(more / best),
                _yes(more / best >= FASTER),
            )
        )
    return rows


def _queueing_aims(name: str, traces: Sequence[Traced]) -> list[tuple[str, ...]]:
    rows = []
    for of in _by_kind(traces):
        for (part, what), aim in zip(TIMES.items(), (SHORTER_QUEUE, SHORTER_JOBS), strict=True):
            off, on = _means(of, "off", part), _means(of, "reclaim", part)
            if off and on:
                ratio = median(on) / median(off)
                rows.append((f"{name}: mean {what}, {_asked(of)}", change(aim), change(ratio), _yes(ratio <= aim)))
    return rows or [
        (f"{name}: mean queueing and JCT", f"{change(SHORTER_QUEUE)} and {change(SHORTER_JOBS)}", "not run", "–")
    ]


def verdicts(corpus: Sequence[Recorded]) -> str:
    """The confusion matrix, and each that is wrong."""
    if not corpus:
        return NOT_RUN
    pairs = confusion(corpus)
    labels = sorted({label for label, _ in pairs})
    codes = [*labels, *sorted({code for _, code in pairs} - set(labels))]
    rows = [(label, *(str(pairs.get((label, code), "")) for code in codes)) for label in labels]
    right = accuracy(pairs)
    told = f"{right:.1%} of {sum(pairs.values())} recordings are concluded as they were made (aim: {RIGHT:.0%})."
    mistakes = wrong(corpus)
    lines = ["Concluded otherwise, or of another role:", "", *(f"- {one}" for one in mistakes)] if mistakes else []
    return "\n\n".join([told, table(("made, concluded →", *codes), rows), "\n".join(lines)]).strip()


def _gain(runs: Sequence[Measured]) -> float | None:
    ours, best = speed_of(runs, OURS), best_baseline(runs)
    return ours / best if ours and best else None


def _near(runs: Sequence[Measured]) -> float | None:
    """Once it has found its split: our last quarter to the oracle's."""
    ours, oracle = of_side(runs, OURS), of_side(runs, ORACLE)
    return median(run.settled for run in ours) / median(run.settled for run in oracle) if ours and oracle else None


def _met(gains: dict[str, float], aim: float) -> str:
    return _yes(max(gains.values()) >= aim) if gains else "–"


def _yes(so: bool) -> str:
    return "yes" if so else "**no**"


def _sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}."
