"""The services of simulated runs side by side, as a table. Pure."""

from collections.abc import Sequence

from rich.console import RenderableType

from weft.simulator.counted import Counted
from weft.simulator.outcome import Outcome
from weft.simulator.report.compared import labels_of, significant
from weftd.cli.drawing.look import Look, plain, table

HEADS = ("RUN", "SERVICE", "REQUESTS", "KEPT %", "BAD", "BAD WINDOWS", "P50 ms", "P99 ms", "COLD", "COLD MAX s")
MORE = ("GPU h", "STARTS", "REVERSALS", "LOANS", "BORROWED h")


def services_table(outcomes: Sequence[Outcome], look: Look) -> RenderableType | None:
    """A row for each service of each run; None if there are no services."""
    if not any(outcome.services for outcome in outcomes):
        return None
    heads = (*HEADS, *MORE)
    made = table(*heads, look=look, right=heads[2:], flexible="RUN")
    for label, outcome in zip(labels_of(outcomes), outcomes, strict=True):
        for place, service in enumerate(outcome.services):
            made.add_row(plain("" if place else label), *(plain(text) for text in _row(service)))
    return made


def _row(service: Counted) -> list[str]:
    return [
        service.name,
        f"{service.arrived:,}",
        f"{service.attainment * 100:.3f}",
        f"{service.bad:,}",
        f"{service.bad_windows:,}",
        _milliseconds(service.latency_p50_s),
        _milliseconds(service.latency_p99_s),
        f"{service.cold_waits:,}",
        significant(service.cold_wait_most_s),
        significant(service.gpu_s / 3600),
        f"{service.starts:,}",
        f"{service.reversals:,}",
        f"{service.loans:,}",
        significant(service.borrowed_gpu_s / 3600),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else significant(seconds * 1000)
