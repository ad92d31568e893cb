"""The table of schedules."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from weft.domain.job import JobState
from weft.messages.http.schedules import ScheduleView
from weftd.cli.rendering.context import RenderContext, plain, state_text, table


def schedule_table(schedules: Sequence[ScheduleView], context: RenderContext) -> Table:
    """One line per schedule. A note is shown if the newest run that was due was not submitted."""
    tenants = len({each.tenant for each in schedules}) > 1
    columns = ("NAME", *(("TENANT",) if tenants else ()), "TIMES", "ZONE", "NEXT RUN", "LAST RUN", "STATE", "NOTE")
    made = table(*columns, context=context, flexible="NOTE")
    for each in schedules:
        paused = each.next_run_at is None
        made.add_row(
            plain(each.name, "bold"),
            *((plain(each.tenant),) if tenants else ()),
            plain(each.cron),
            plain(each.timezone),
            Text("paused", "yellow") if paused else context.clock(each.next_run_at or 0.0),
            "–" if each.last_run_at is None else plain(f"{context.clock(each.last_run_at)} {each.last_job}"),
            _state(each.last_state),
            plain(_note(each, context)),
        )
    return made


def _state(state: str) -> Text:
    known = {one.value: one for one in JobState}
    return state_text(known[state]) if state in known else Text(state)


def _note(each: ScheduleView, context: RenderContext) -> str:
    if each.noted_at is None or each.noted_at < (each.last_run_at or 0.0):
        return ""
    return f"{context.clock(each.noted_at)} {each.note}"
