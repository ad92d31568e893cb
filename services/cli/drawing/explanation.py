"""Why a job waits or why it is where it is: the sentence first, then the numbers, then who holds what it needs."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from libs.domain.job import JobState
from libs.planning.explain import Explanation, HolderSeen
from services.cli.drawing.look import Look, plain, state_text, table
from services.cli.words import count, number, span

_TIMES = frozenset({"not_before"})  # numbers that the sentence tells better


def explanation(told: Explanation, look: Look, *, emulated: Mapping[str, int]) -> RenderableType:
    head = Text.assemble(plain(told.name, "bold"), "  ", plain(told.job_id, "dim"), "  ", state_text(told.state))
    parts: list[RenderableType] = [head, Text.assemble((told.code, "yellow"), ": ", plain(told.sentence))]
    parts += [Text(line, "dim") for line in (_numbers(told), _queue(told, look), _policy(told)) if line]
    if told.holders:
        parts += [Text(), Text("what it needs is held by", "bold"), _holders(told.holders, look, emulated)]
    return Group(*parts)


def _numbers(told: Explanation) -> str:
    shown = {name: value for name, value in told.numbers.items() if name not in _TIMES and name != "ahead"}
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in shown.items())


def _queue(told: Explanation, look: Look) -> str:
    if told.state is not JobState.QUEUED:
        return ""
    ahead = f"{count(told.ahead, 'job')} ahead of it" if told.ahead else "first in the queue"
    if told.estimate_at is None:
        return f"{ahead}; nobody can tell when it starts: no time limit is set" if told.holders else ahead
    return f"{ahead}; starts in {span(told.estimate_at - look.now)} at the latest, as far as time limits tell"


def _policy(told: Explanation) -> str:
    """By what the queue is served, as `order+placement+backfill`."""
    parts = told.policy.split("+")
    return f"order {parts[0]}, placement {parts[1]}, backfill {parts[2]}" if len(parts) == 3 else ""


def _holders(holders: Sequence[HolderSeen], look: Look, emulated: Mapping[str, int]) -> Table:
    columns: dict[str, Callable[[HolderSeen], Text | str]] = {
        "ID": lambda held: plain(held.job_id),
        "NAME": lambda held: plain(held.name),
        "TENANT": lambda held: plain(held.tenant),
        "STATE": lambda held: state_text(held.state),
        "GPUS": lambda held: f"{held.gpus}{' emulated' if emulated.get(held.job_id, 0) >= held.gpus > 0 else ''}",
        "PRIO": lambda held: number(held.priority),
        "FOR": lambda held: span(look.now - held.since),
        "ENDS": lambda held: "?" if held.ends_at is None else f"in {span(held.ends_at - look.now)}",
        "ON": lambda held: plain(", ".join(held.nodes)),
    }
    if look.narrow:
        del columns["TENANT"], columns["STATE"]
    made = table(*columns, look=look, right=("PRIO",), flexible="ON")
    for held in holders:
        made.add_row(*(cell(held) for cell in columns.values()))
    return made
