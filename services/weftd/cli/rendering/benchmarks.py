"""Results of benchmarks: each GPU, its times, and how they compare with others of its model."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from weft.messages.http import GpuView, JobView
from weft.samples.benchmark_result import Measurement, measurement_of
from weftd.cli.formatting import number
from weftd.cli.rendering.context import STATE_STYLES, RenderContext, plain, table
from weftd.cli.rendering.nodes import model_text

ALIKE_MIN = 3  # GPUs of one model, for a meaningful median


class Benched(Struct, frozen=True, kw_only=True):
    """One GPU, and its benchmark once it is over."""

    node_id: str
    gpu: GpuView
    job: JobView

    @property
    def measurement(self) -> Measurement | None:
        return measurement_of(self.job.progress)


def benchmarks_table(benched: Sequence[Benched], context: RenderContext) -> Table:
    made = table(
        *("NODE", "GPU", "MODEL", "COMPUTE", "± ", "MEMORY", "±", "CLOCK", "POWER", "OF MEDIAN"),
        context=context,
        right=("GPU", "COMPUTE", "± ", "MEMORY", "±", "CLOCK", "POWER"),
        flexible="MODEL",
    )
    for one in sorted(benched, key=lambda one: (one.node_id, one.gpu.index)):
        who = (plain(one.node_id), number(one.gpu.index), plain(_model(one)))
        found = one.measurement
        if found is None:
            state = Text(str(one.job.state), STATE_STYLES[one.job.state])
            made.add_row(*who, state, "", plain(f"see weft logs {one.job.id}"))
            continue
        made.add_row(
            *who,
            _time(found.compute_s),
            f"{found.compute_spread:.1%}",
            _time(found.memory_s),
            f"{found.memory_spread:.1%}",
            "-" if found.clock_mhz is None else f"{found.clock_mhz:.0f} MHz",
            "-" if found.power_w is None else f"{found.power_w:.0f} W",
            _of_median(one, found, benched),
        )
    return made


def _model(one: Benched) -> str:
    found = one.measurement
    return model_text(one.gpu.model, emulated=one.gpu.emulated or (found is not None and found.emulated > 0))


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.4g} ms"


def _of_median(one: Benched, found: Measurement, benched: Sequence[Benched]) -> str:
    """`1.21x compute, 1.00x memory`: against the GPUs of its model that were measured now; empty if they are few."""
    alike = [other.measurement for other in benched if _model(other) == _model(one)]
    known = [measurement for measurement in alike if measurement is not None]
    if len(known) < ALIKE_MIN:
        return "-"
    compute = found.compute_s / median(each.compute_s for each in known)
    memory = found.memory_s / median(each.memory_s for each in known)
    return f"{compute:.2f}x compute, {memory:.2f}x memory"
