"""The demo's output: a live table on a terminal, plain lines elsewhere, and the table at the end."""

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from weft.domain.job import FINAL, HOLDING, JobState
from weft.domain.quantity import duration_text
from weft.messages.http import JobView
from weftd.cli.demo.board import in_words
from weftd.cli.demo.checks import CheckResult, Evidence, spent
from weftd.cli.screen import Screen

WIDTH = 120  # where there is no terminal to ask
LINES_SHOWN = 8
BAR_WIDTH = 30
COLOURS = {
    JobState.QUEUED: "yellow",
    JobState.RUNNING: "cyan",
    JobState.STOPPING: "magenta",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "bright_black",
}


class Show:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._jobs: Mapping[str, JobView] = {}
        self._lines: list[Text] = []
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None

    def live(self) -> AbstractContextManager[object]:
        """Draw the table during the block, if there is a terminal."""
        return self._live or nullcontext()

    def watch(self, jobs: Mapping[str, JobView]) -> None:
        self._jobs = jobs

    def say(self, line: str) -> None:
        """Print a line about the cluster."""
        self._line(Text.assemble((self._clock(), "bright_black"), f"  {line.strip()}"))

    def tell(self, name: str, line: str) -> None:
        """Print a line about a job."""
        self._line(Text.assemble((self._clock(), "bright_black"), "  ", (f"{name:<8}", "bold"), f"  {line}"))

    def draw(self) -> None:
        if self._live:
            self._live.update(Group(jobs_table(self._jobs.values()), Text(), *self._lines[-LINES_SHOWN:]))

    def close(self, line: str) -> None:
        self._console.print(Text(line))

    def ends(self, evidence: Mapping[str, Evidence], verdicts: Mapping[str, CheckResult]) -> None:
        """Print the final table."""
        self._console.print()
        self._console.print(ends_table(evidence, verdicts))

    def _line(self, line: Text) -> None:
        self._lines.append(line)
        if not self._live:
            self._console.print(line, soft_wrap=True)
        self.draw()

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


def console() -> Console:
    found = Screen(highlight=False)
    return found if found.is_terminal else Screen(highlight=False, width=WIDTH)


def jobs_table(jobs: Iterable[JobView]) -> RenderableType:
    """Every job now, with a bar for its progress."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    for column, width in (("job", 8), ("state", 9), ("GPUs", 4), ("progress", BAR_WIDTH), ("loss", 6)):
        table.add_column(column, no_wrap=True, width=width)
    table.add_column("where", no_wrap=True, ratio=1)
    for job in jobs:
        step, steps, loss = (job.progress.get(key) for key in ("step", "steps", "loss"))
        table.add_row(
            job.name,
            state_text(job.state),
            str(job.gpus),
            ProgressBar(total=steps, completed=step or 0.0, width=BAR_WIDTH) if steps else "",
            "" if loss is None else f"{loss:.4f}",
            "" if job.state in FINAL else ", ".join(job.nodes) or in_words(job).partition(": ")[2],
        )
    return table


def ends_table(evidence: Mapping[str, Evidence], verdicts: Mapping[str, CheckResult]) -> RenderableType:
    """Job, state, waited, ran, where, why; a cross where something is not as it should be."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "job", "state", "waited", "ran", "where"):
        table.add_column(column, no_wrap=True)
    table.add_column("why")
    for name, left in evidence.items():
        verdict = verdicts[name]
        table.add_row(
            Text("ok", "green") if verdict.good else Text("BAD", "bold red"),
            name,
            state_text(left.job.state),
            duration_text(spent(left.story, JobState.QUEUED)),
            duration_text(spent(left.story, *HOLDING)),
            ", ".join(_where(left)),
            verdict.why,
        )
    return table


def state_text(state: JobState) -> Text:
    return Text(str(state), COLOURS.get(state, ""))


def _where(left: Evidence) -> list[str]:
    """Every node it was on, in the order of its story."""
    placements = [event.data.placement for event in left.story if event.data.placement]
    nodes = [allocation.node_id for placement in placements for allocation in placement.allocations]
    return list(dict.fromkeys(nodes))
