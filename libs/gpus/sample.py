"""What GPUs do now: one reading of each. It blocks; `watch.py` does it beside the event loop."""

from collections.abc import Iterable

from libs.domain.cluster import Gpu
from libs.gpus.nvml import CLOCK_SM, DRIVER, SENSOR_GPU, Handle, Nvml, NvmlError, known, number
from libs.messages.signals import GpuSample


def sample(gpus: Iterable[Gpu], *, nvml: Nvml = DRIVER) -> tuple[GpuSample, ...]:
    """One sample for each of `gpus`, whatever goes wrong; the driver must be initialised if any of them is real.

    An emulated GPU does nothing that could be measured, so nothing is said of it but its size.
    """
    return tuple(unknown(gpu) if gpu.emulated else _sampled(gpu, nvml) for gpu in gpus)


def unknown(gpu: Gpu, problem: str = "") -> GpuSample:
    return GpuSample(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        emulated=gpu.emulated,
        memory_total=gpu.memory or None,
        problem=problem,
    )


def _sampled(gpu: Gpu, nvml: Nvml) -> GpuSample:
    try:
        # By uuid each time: it is cheap, and an old handle means nothing once its GPU was reset or lost.
        return _reading(gpu, nvml, nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    except NvmlError as error:
        return unknown(gpu, problem=str(error))


def _reading(gpu: Gpu, nvml: Nvml, handle: Handle) -> GpuSample:
    memory = known(nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = known(nvml.nvmlDeviceGetUtilizationRates, handle)
    temperature = number(nvml.nvmlDeviceGetTemperature, handle, SENSOR_GPU)
    return GpuSample(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        utilisation=_part(rates.gpu) if rates else None,
        memory_used=memory.used if memory else None,
        memory_total=memory.total if memory else gpu.memory or None,
        power_watts=_thousandth(number(nvml.nvmlDeviceGetPowerUsage, handle)),
        power_limit_watts=_thousandth(number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        temperature=None if temperature is None else float(temperature),
        sm_clock_mhz=_mhz(number(nvml.nvmlDeviceGetClockInfo, handle, CLOCK_SM)),
        sm_clock_max_mhz=_mhz(number(nvml.nvmlDeviceGetMaxClockInfo, handle, CLOCK_SM)),
    )


def _part(percent: int) -> float | None:
    """Some drivers answer nonsense above 100 for what they do not measure."""
    return percent / 100 if 0 <= percent <= 100 else None


def _thousandth(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _mhz(clock: int | None) -> float | None:
    return None if clock is None else float(clock)
