"""A job's pace, its verdicts and proposals, its limits now and as requested, its speed at other sizes."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from weft.domain.quantity import size_text
from weft.domain.text import plural
from weft.messages.http import JobView, LimitsView, RunView
from weft.messages.nodes import Pace
from weft.messages.signals import NOT_TUNED, CurvePoint, RankVerdict
from weftd.cli.formatting import clean, number, span
from weftd.cli.rendering.context import RenderContext, plain, table

WELL = "healthy"
UNKNOWN = "unknown"
UNUSED = "over-provisioned"
NOTHING_TO_DO = frozenset({WELL, UNKNOWN})


def tuning_lines(job: JobView, context: RenderContext) -> list[tuple[str, Text]]:
    """Facts of a job, the most wanted first."""
    lines: list[tuple[str, Text]] = []
    paces = [run.pace for run in job.runs if run.pace is not None]
    if paces:
        lines.append(("pace", plain(pace_text(paces))))
    if disbelieved := sum(run.disbelieved for run in job.runs):
        told = f"it told {plural(disbelieved, 'value')} that make{'s' * (disbelieved == 1)} no sense, not believed"
        lines.append(("", Text(told, "yellow")))
    return lines + verdict_lines(job, context)


def verdict_lines(job: JobView, context: RenderContext) -> list[tuple[str, Text]]:
    """The verdicts on a job, the proposals for it, and its changed limits."""
    lines = [(_holds(one), _verdict(one, context)) for one in told_once(job.verdicts)]
    for finding in job.findings:
        label = "tuner says" if finding.code == NOT_TUNED else "to improve"
        lines.append((label, plain(finding.sentence.removeprefix(f"{job.name}: "))))
    tuned = [run for run in job.runs if run.asked is not None]
    lines += [("tuned" if number == 0 else "", plain(tuned_text(run))) for number, run in enumerate(tuned)]
    return lines


def told_once(verdicts: Sequence[RankVerdict]) -> list[RankVerdict]:
    """Verdicts without those of ranks that repeat the whole job's, and of those that are alike the first rank's."""
    kept: dict[tuple[str, str], RankVerdict] = {}
    of_job = {one.code for one in verdicts if one.rank < 0}
    for one in verdicts:
        if one.rank < 0 or one.code not in of_job:
            kept.setdefault((one.code, one.sentence), one)
    return list(kept.values())


def _holds(verdict: RankVerdict) -> str:
    """The words before a verdict: not every verdict holds a job back."""
    return {WELL: "tuner says", UNKNOWN: "tuner says", UNUSED: "leaves unused"}.get(verdict.code, "held back by")


def pace_text(paces: Sequence[Pace]) -> str:
    """The pace of all ranks: the slowest rank's steps a second, and the samples of all together."""
    slowest = min(paces, key=lambda pace: pace.steps_rate)
    parts = [f"{number(slowest.steps_rate)} steps/s"]
    samples = [pace.samples_rate for pace in paces if pace.samples_rate is not None]
    if samples:
        parts.append(f"{number(sum(samples))} samples/s")
    parts.append(f"{number(slowest.step_seconds)} s a step")
    if slowest.phases:
        parts.append(" ".join(f"{clean(name)} {number(seconds)} s" for name, seconds in sorted(slowest.phases.items())))
    return ", ".join(parts)


def tuned_text(run: RunView) -> str:
    """`rank 0 has 3 CPUs instead of 1, 2GiB of memory instead of 1GiB`."""
    assert run.asked is not None
    return f"rank {run.rank} has " + ", ".join(_instead(run, run.asked))


def _instead(run: RunView, asked: LimitsView) -> list[str]:
    found: list[str] = []
    if run.cpus != asked.cpus:
        found.append(f"{plural(run.cpus, 'CPU')} instead of {number(asked.cpus)}")
    if run.memory != asked.memory:
        found.append(f"{size_text(run.memory)} of memory instead of {size_text(asked.memory)}")
    if run.egress != asked.egress:
        found.append(f"{_rate(run.egress)} to send instead of {_rate(asked.egress)}")
    return found


def _rate(egress: int | None) -> str:
    return "no limit" if egress is None else f"{size_text(egress)}/s"


def _verdict(verdict: RankVerdict, context: RenderContext) -> Text:
    whose = "" if verdict.rank < 0 else f"rank {verdict.rank} "
    since = f" for {span(context.now - verdict.since)}" if verdict.since else ""
    style = "green" if verdict.code == WELL else "yellow"
    sentence = f": {verdict.sentence}" if verdict.sentence else ""
    return Text.assemble(plain(whose), plain(verdict.code, style), plain(sentence), plain(since, "dim"))


def curve_table(points: Sequence[CurvePoint], context: RenderContext) -> Table:
    made = table("REPLICAS", "CPUS", "SPEED", "SPREAD", "WINDOWS", context=context, right=("REPLICAS", "CPUS", "SPEED"))
    for point in sorted(points, key=lambda point: (point.replicas, point.cpus)):
        made.add_row(
            number(point.replicas),
            number(point.cpus),
            f"{number(point.speed)}/s",
            f"{point.spread:.0%}",
            number(point.windows),
        )
    return made
