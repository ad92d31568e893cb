"""GPUs: the use of each, its job, its score for each class of jobs, and the confidence of the score."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from weft.domain.quantity import size_text
from weft.domain.text import plural
from weft.messages.http import GpuView
from weft.messages.signals import GpuSample
from weftd.cli.formatting import clean, number, span
from weftd.cli.rendering.context import RenderContext, fitting, plain, table
from weftd.cli.rendering.nodes import health_style, holder_text, model_text, score_style

_DROPPED_FIRST = ("KNOWN", "CLOCK", "TEMP", "POWER", "SCORES", "MODEL", "MEMORY")  # on a narrow terminal
UNUSED_SECONDS_SHOWN = 300.0
ORDINARY = frozenset({"idle", "applications-clocks"})  # harmless reasons for low clocks


def table_of_gpus(gpus: Sequence[GpuView], context: RenderContext) -> Table:
    columns: dict[str, Callable[[GpuView], Text | str]] = {
        "NODE": lambda gpu: plain(gpu.node_id),
        "GPU": lambda gpu: number(gpu.index),
        "MODEL": lambda gpu: plain(_model(gpu)),
        "BUSY": lambda gpu: _told(gpu.use, lambda use: use.utilisation, "{:.0%}"),
        "MEMORY": _memory,
        "TEMP": lambda gpu: _told(gpu.use, lambda use: use.temperature, "{:.0f} °C"),
        "POWER": lambda gpu: _told(gpu.use, lambda use: use.power_watts, "{:.0f} W"),
        "CLOCK": lambda gpu: _told(gpu.use, lambda use: use.sm_clock_mhz, "{:.0f} MHz"),
        "SCORES": scores_text,
        "KNOWN": lambda gpu: known_text(gpu, context),
        "WORRIES": worries,
        "HELD BY": holder_text,
    }
    if not any(gpu.use and gpu.use.power_watts is not None for gpu in gpus):
        del columns["POWER"], columns["CLOCK"], columns["TEMP"]
    if not any(worries(gpu).plain for gpu in gpus):
        del columns["WORRIES"]
    cells = {title: [cell(gpu) for gpu in gpus] for title, cell in columns.items()}
    shown = fitting(cells, context, drop=_DROPPED_FIRST, flexible="HELD BY")
    if "MODEL" not in shown:  # an emulated GPU is called so in every table
        cells["GPU"] = [f"{gpu.index}{' emulated' * gpu.emulated}" for gpu in gpus]
    made = table(*shown, context=context, right=("GPU",), flexible="HELD BY")
    for row in zip(*(cells[title] for title in shown), strict=True):
        made.add_row(*row)
    return made


def scores_text(gpu: GpuView) -> Text:
    """`compute 1.21 · memory 1.00`: the scores for placement, slow ones in colour."""
    told = [Text(f"{clean(one.job_class)} {one.believed:.2f}", score_style(one)) for one in gpu.scores]
    return Text(" · ", "dim").join(told) if told else Text("-", "dim")


def known_text(gpu: GpuView, context: RenderContext) -> str:
    """The confidence, the samples, the age and the source of the score that is furthest from typical."""
    if not gpu.scores:
        return "-"
    furthest = max(gpu.scores, key=lambda score: abs(score.score - 1.0))
    parts = [f"{furthest.confidence:.0%} sure"]
    if furthest.samples:
        parts.append(plural(furthest.samples, "sample"))
    if furthest.age_seconds is not None:
        parts.append(f"{span(furthest.age_seconds)} old")
    if furthest.source:
        parts.append(clean(furthest.source))
    if furthest.quarantined_until is not None and furthest.quarantined_until > context.now:
        parts.append(f"not forgiven for {span(furthest.quarantined_until - context.now)}")
    return ", ".join(parts)


def worries(gpu: GpuView) -> Text:
    """The state of its health and why, that it is held but idle, the driver's error, and why its clocks are low if that
    is not ordinary."""
    use, health = gpu.use, gpu.health
    sick = [] if health is None or health.well else [plain(f"{health.state}: {health.sentence}", health_style(health))]
    if (unused := gpu.unused_seconds) is not None and unused >= UNUSED_SECONDS_SHOWN:
        sick.append(plain(f"held, but idle for {span(unused)}", "yellow"))
    if use is None:
        return Text(", ").join(sick)
    low = [event for event in use.clock_events if event not in ORDINARY]
    found = [plain(use.problem, "bold red")] if use.problem else []
    return Text(", ").join([*sick, *found, *(plain(event, "yellow") for event in low)])


def _model(gpu: GpuView) -> str:
    model = model_text(gpu.model, emulated=gpu.emulated)
    provider = gpu.use.provider if gpu.use is not None else ""
    return f"{model} ({clean(provider)})" if provider == "fake" else model


def _memory(gpu: GpuView) -> str:
    used = gpu.use.memory_used if gpu.use is not None else None
    return size_text(gpu.memory) if used is None else f"{size_text(used)}/{size_text(gpu.memory)}"


def _told(use: GpuSample | None, value: Callable[[GpuSample], float | None], shape: str) -> str:
    found = value(use) if use is not None else None
    return "-" if found is None else shape.format(found)
