"""Shared by all tables: the time, colours, bars, names and state words."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo

from msgspec import Struct
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from weft.domain.job import JobState
from weftd.cli.formatting import clean, clock, number, zone_name

STATE_STYLES = {
    JobState.QUEUED: "yellow",
    JobState.PLACED: "cyan",
    JobState.STARTING: "cyan",
    JobState.RUNNING: "green",
    JobState.STOPPING: "magenta",
    JobState.SUCCEEDED: "bright_green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
}
# Colours of jobs, with black text on them; red and yellow are kept for errors and waiting.
JOB_COLOURS = ("#7aa2f7", "#9ece6a", "#bb9af7", "#7dcfff", "#e0af68", "#73daca", "#f7a8c4", "#b4c0e8")

FULL, HALF, EMPTY = "━", "╸", "─"
_STEPS, _TOTALS = ("step", "epoch"), {"step": ("steps", "total", "total_steps", "max_steps"), "epoch": ("epochs",)}


Emulated = Mapping[tuple[str, int], bool]  # (node, GPU index) → is it emulated?

NO_SILENCE: Mapping[str, float] = {}

FLEXIBLE_MIN = 20  # columns that the column that gives way needs at least
TINY = 80  # columns of a terminal below which a row is cut rather than broken into lines
WIDE = 100  # columns of a terminal from which on there is room for everything


class RenderContext(Struct, frozen=True, kw_only=True):
    """The look of an output. `bars`: bars and colours, for a terminal; else the same in words, for search and cut."""

    now: float
    width: int = 120
    bars: bool = True
    zone: tzinfo | None = None

    @property
    def narrow(self) -> bool:
        return self.bars and self.width < WIDE

    @property
    def tiny(self) -> bool:
        return self.bars and self.width < TINY

    def clock(self, at: float) -> str:
        return clock(at, now=self.now, zone=self.zone)

    def zoned(self, at: float) -> str:
        """The time with its zone, once on a page."""
        return f"{self.clock(at)} {zone_name(at, self.zone)}"


def table(
    *columns: str, context: RenderContext, right: Iterable[str] = (), flexible: str = "", one_line: bool = False
) -> Table:
    """A table without lines. Where the terminal is too narrow, only the `flexible` column gives way.

    It is broken into lines, or with `one_line` cut, so that a screen knows how many rows it has.
    """
    cut = one_line and context.bars
    made = Table(box=None, header_style="bold dim", pad_edge=False, padding=(0, 2, 0, 0), expand=cut)
    for column in columns:
        gives_way = column == flexible
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=cut or not gives_way,
            overflow="fold" if gives_way and not cut else "ellipsis",
            ratio=1 if gives_way and cut else None,
        )
    return made


def fitting(
    cells: Mapping[str, Sequence[Text | str]], context: RenderContext, *, drop: Sequence[str], flexible: str
) -> list[str]:
    """The columns that fit, without as many of `drop` as are necessary; a pipe has room for all."""
    shown = list(cells)

    def width(title: str) -> int:
        widest = max(len(title), *(cell_len(str(cell)) for cell in cells[title])) if cells[title] else len(title)
        return min(widest, FLEXIBLE_MIN) if title == flexible else widest

    for title in drop if context.bars else ():
        if sum(width(each) + 2 for each in shown) - 2 <= context.width:
            break
        if title in shown:
            shown.remove(title)
    return shown


def plain(text: str, style: str = "") -> Text:
    """A text as it is: markup in it has no effect."""
    return Text(clean(text), style=style)


def state_text(state: JobState, *, hung: bool = False) -> Text:
    return Text("hung", style="bold red") if hung else Text(state.value, style=STATE_STYLES[state])


def job_colour(job_id: str) -> str:
    """The colour of a job, the same everywhere."""
    return JOB_COLOURS[zlib.crc32(job_id.encode()) % len(JOB_COLOURS)]


def bar(part: float, width: int, *, style: str = "green", behind: float = 0.0, behind_style: str = "green dim") -> Text:
    """A bar with `part` (0–1) of `width` filled; behind it, fainter, the part that is held but not used."""
    halves = round(2 * width * min(1.0, max(0.0, part)))
    filled = FULL * (halves // 2) + (HALF if halves % 2 else "")
    given = FULL * max(0, round(width * min(1.0, behind)) - len(filled))
    left = EMPTY * (width - len(filled) - len(given))
    return Text.assemble((filled, style), (given, behind_style), (left, "bright_black"))


def done_part(progress: dict[str, float]) -> float | None:
    """The part of the job that is done, 0–1, if the job reports its number of steps."""
    found = _step_of(progress)
    if found is None or found[1] is None or found[1] <= 0:
        return None
    return min(1.0, max(0.0, found[0] / found[1]))


def progress_text(progress: dict[str, float], context: RenderContext, *, width: int = 16) -> Text:
    """`━━━━━━───  40 % 120/300 loss 0.31`; empty without progress."""
    text = Text()
    part = done_part(progress)
    if part is not None:
        if context.bars:
            text.append_text(bar(part, width)).append(" ")
        text.append(f"{part:4.0%} " if context.bars else f"{part:.0%} ")
    found = _step_of(progress)
    if found is not None:
        step, total = found
        text.append(f"{number(step)}/{number(total)} " if total else f"step {number(step)} ")
    if "loss" in progress:
        text.append(f"loss {number(progress['loss'])}")
    text.rstrip()
    return text


def other_progress(progress: dict[str, float]) -> str:
    """The job's progress besides its step and its loss."""
    shown = {"loss", *_STEPS, *(total for totals in _TOTALS.values() for total in totals)}
    return " ".join(f"{clean(key)}={number(value)}" for key, value in progress.items() if key not in shown)


def _step_of(progress: dict[str, float]) -> tuple[float, float | None] | None:
    for key in _STEPS:
        if key in progress:
            total = next((progress[name] for name in _TOTALS[key] if name in progress), None)
            return progress[key], total
    return None
