"""Runs side by side as one page (`.html`) that needs no network; the same runs, the same bytes.

Only this part needs matplotlib, and imports it when something is drawn.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.simulator.outcome import Outcome

ENDING = ".html"
MISSING = "a report is drawn with matplotlib, which is not installed here: pip install 'weft-gpu[report]'"


class ReportError(Exception):
    """The report cannot be drawn."""


def write_report(
    outcomes: Sequence[Outcome], path: Path, *, scores: Mapping[str, tuple[float, ...]] | None = None
) -> None:
    """Write the report; all runs are compared with the first. `scores`: by class, the time of each GPU, to mark slow
    ones.

    Raises ReportError if it cannot be drawn, OSError if the file cannot be written.
    """
    check_drawable(path)
    if not outcomes:
        raise ReportError("no run, so there is nothing to report")
    from weft.simulator.report.page import page_bytes

    path.write_bytes(page_bytes(outcomes, scores or {}))


def check_drawable(path: Path) -> None:
    """Raises ReportError before a long simulation whose report could not be drawn."""
    if path.suffix.lower() != ENDING:
        raise ReportError(f"{path}: a report is a file that ends in {ENDING}")
    try:
        import matplotlib  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ReportError(MISSING) from error
