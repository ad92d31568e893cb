"""Arrays: one row for each, and how one ended."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from weft.domain.job import JobState
from weft.messages.http import ArrayView
from weftd.cli.formatting import number, span
from weftd.cli.rendering.context import RenderContext, fitting, plain, state_text, table

_SHOWN = (
    JobState.RUNNING,
    JobState.STARTING,
    JobState.PLACED,
    JobState.STOPPING,
    JobState.QUEUED,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.SUCCEEDED,
)


def ended_line(array: ArrayView) -> Text:
    """`part a-abc 39 succeeded, 1 failed`."""
    return Text.assemble(plain(array.name, "bold"), " ", plain(array.id, "dim"), " ", states_text(array))


def arrays_table(arrays: Sequence[ArrayView], context: RenderContext, *, tenants: bool) -> Table:
    """One line for each array, with how many of its elements are in each state."""
    columns: dict[str, Callable[[ArrayView], Text | str]] = {
        "ARRAY": lambda each: plain(each.id),
        "NAME": lambda each: plain(each.name),
        "TENANT": lambda each: plain(each.tenant),
        "FOR": lambda each: span((each.ended_at or context.now) - each.submitted_at),
        "GPUS": lambda each: number(each.gpus) if each.gpus else "-",
        "AT ONCE": lambda each: "-" if each.at_once is None else str(each.at_once),
        "ELEMENTS": states_text,
    }
    if not tenants:
        del columns["TENANT"]
    cells = {title: [cell(each) for each in arrays] for title, cell in columns.items()}
    shown = fitting(cells, context, drop=("GPUS", "AT ONCE", "TENANT", "FOR"), flexible="ELEMENTS")
    made = table(*shown, context=context, right=("AT ONCE",), flexible="ELEMENTS", one_line=context.tiny)
    for row in zip(*(cells[title] for title in shown), strict=True):
        made.add_row(*row)
    return made


def states_text(array: ArrayView) -> Text:
    """`8 running, 90 queued, 2 failed`, and why those that wait do."""
    parts = [
        Text.assemble(f"{array.states[state]} ", state_text(state)) for state in _SHOWN if state.value in array.states
    ]
    why = array.waiting_for.sentence if array.waiting_for is not None and JobState.QUEUED in array.states else ""
    return Text(", ").join(parts).append(f" · {why}" if why else "", "dim")
