"""Events: the story of one job with every cause, and the news of all of them, a line each."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from rich.table import Table
from rich.text import Text

from weft.domain.job import Cause, JobState, Placement
from weft.domain.text import listed
from weft.messages.http import EventData, EventView
from weftd.cli.formatting import NAMED_MAX, indexes, number
from weftd.cli.rendering.context import STATE_STYLES, Emulated, RenderContext, plain, table

NO_NAMES: Mapping[str, str] = {}
_EVENT_STYLES = {
    "submitted": "bold",
    "waiting": STATE_STYLES[JobState.QUEUED],
    "requeued": STATE_STYLES[JobState.QUEUED],
    "placed": STATE_STYLES[JobState.PLACED],
    "starting": STATE_STYLES[JobState.STARTING],
    "started": STATE_STYLES[JobState.RUNNING],
    "stopping": STATE_STYLES[JobState.STOPPING],
    "succeeded": STATE_STYLES[JobState.SUCCEEDED],
    "failed": STATE_STYLES[JobState.FAILED],
    "cancelled": STATE_STYLES[JobState.CANCELLED],
    "lost": "bold red",
    "drained": "yellow",
}


def happened(event: EventView) -> str:
    """`weft.jobs.started` → `started`."""
    return event.type.rpartition(".")[2]


def happened_at(event: EventView) -> float:
    return datetime.fromisoformat(event.time).timestamp()


def story_table(
    events: Sequence[EventView],
    context: RenderContext,
    *,
    start: float,
    emulated: Emulated,
    names: Mapping[str, str] = NO_NAMES,
) -> Table:
    """Every event of a job: when, how long after the submission, what, why, and by whose action (`names`: of jobs)."""
    last = ("WHY", "BY") if context.bars else ("BY", "WHY")  # in a pipe the long column comes last
    made = table("TIME", "AFTER", "EVENT", "EPOCH", *last, context=context, right=("AFTER", "EPOCH"), flexible="WHY")
    for event in events:
        why = _why(event, places=_gpus(event.data.placement, emulated))
        by = plain(_by(event, names))
        made.add_row(
            context.clock(happened_at(event)),
            _after(happened_at(event) - start),
            Text(happened(event), _EVENT_STYLES.get(happened(event), "")),
            number(event.data.epoch),
            *((why, by) if context.bars else (by, why)),
        )
    return made


def _by(event: EventView, names: Mapping[str, str]) -> str:
    """`bert (j-bbbbbbbbbb)`, if the causing job's name is known."""
    by = event.data.cause.by if event.data.cause else ""
    return f"{names[by]} ({by})" if by in names else by


def event_line(event: EventView, context: RenderContext, *, named: bool = True) -> Text:
    """One event of any job or node, in one line; `named`: with its subject."""
    what = happened(event)
    parts = [Text(context.clock(happened_at(event)), "dim")]
    if named:
        parts.append(_name(event))
    parts += [Text(what, _EVENT_STYLES.get(what, "")), _why(event, places=_nodes(event.data.placement))]
    return Text("  ").join(part for part in parts if part)


def _name(event: EventView) -> Text:
    data = event.data
    if not data.name:
        return plain(data.node_id or event.subject, "bold")
    return Text.assemble(plain(data.name, "bold"), " ", plain(event.subject, "dim"))


def _why(event: EventView, *, places: str) -> Text:
    """The cause as a code and a sentence, with the details of the step: a place, an exit status."""
    data, cause = event.data, event.data.cause
    if cause is None:
        return plain(data.sentence)
    code = "" if cause.code == happened(event) else cause.code.value
    line = Text.assemble((f"{code}{': ' if code and cause.sentence else ''}", "dim"), plain(cause.sentence))
    for told in (_numbers(cause), places, _exit(data)):
        if told:
            line.append(f" ({told})", "dim")
    return line


def _numbers(cause: Cause) -> str:
    """The numbers that no sentence has; `weft explain` shows all of them."""
    if cause.sentence:
        return ""
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in cause.numbers.items())


def _nodes(placement: Placement | None) -> str:
    nodes = dict.fromkeys(each.node_id for each in placement.allocations) if placement else ()
    return f"on {listed(list(nodes), NAMED_MAX)}" if nodes else ""


def _gpus(placement: Placement | None, emulated: Emulated) -> str:
    """`node-1 emulated GPU 0-1`: the GPUs of a placement; `emulated`: which of them are no hardware."""
    held = []
    for each in placement.allocations if placement else ():
        fake = each.gpus and all(emulated.get((each.node_id, index), False) for index in each.gpus)
        gpus = f" {'emulated ' if fake else ''}GPU {indexes(each.gpus)}" if each.gpus else ""
        held.append(f"{each.node_id}{gpus}")
    return listed(held, NAMED_MAX)


def _exit(data: EventData) -> str:
    known = data.exit_code is not None and not (data.cause and f"{data.exit_code}" in data.cause.sentence)
    return f"exit status {data.exit_code}" if known else ""


def _after(seconds: float) -> str:
    seconds = max(0.0, seconds)
    return f"+{max(seconds, 0.0):.1f}s" if seconds < 60 else f"+{int(seconds // 60)}m{int(seconds % 60):02d}s"
