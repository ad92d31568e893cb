"""The single values of one GPU: quick ones change from second to second, slow ones hardly change."""

from typing import Any, Final

from weft.gpus.asking import Asker
from weft.gpus.nvml import (
    CLOCK_MEMORY,
    CLOCK_SM,
    ECC_AGGREGATE,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    ECC_VOLATILE,
    MEMORY_V2,
    NVLINKS_MAX,
    POLICY_POWER,
    POLICY_THERMAL,
    SENSOR_GPU,
    TEMPERATURE_SLOWDOWN,
    Handle,
    Nvml,
    available,
)
from weft.messages.signals import CLOCK_EVENTS

NANOSECONDS: Final = 1e9

Values = dict[str, Any]
"""Fields of a GpuSample, by name, in its units."""


def quick_values(nvml: Nvml, handle: Handle, asker: Asker) -> Values:
    """The values that change from second to second: about a dozen calls of some microseconds each."""
    rates = asker.ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    # Version 2 counts the memory that jobs use; version 1 adds the driver's own.
    memory = asker.ask(nvml.nvmlDeviceGetMemoryInfo, handle, MEMORY_V2) or asker.ask(
        nvml.nvmlDeviceGetMemoryInfo, handle
    )
    return {
        "utilisation": part(rates.gpu) if rates else None,
        "memory_utilisation": part(rates.memory) if rates else None,
        "memory_used": available(memory.used) if memory else None,
        "memory_total": available(memory.total) if memory else None,
        "power_watts": _over(asker.number(nvml.nvmlDeviceGetPowerUsage, handle), 1000),
        "energy_joules": _over(asker.number(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1000),
        "temperature": _over(asker.number(nvml.nvmlDeviceGetTemperature, handle, SENSOR_GPU), 1),
        "sm_clock_mhz": _over(asker.number(nvml.nvmlDeviceGetClockInfo, handle, CLOCK_SM), 1),
        "memory_clock_mhz": _over(asker.number(nvml.nvmlDeviceGetClockInfo, handle, CLOCK_MEMORY), 1),
        "clock_events": _clock_events(nvml, handle, asker),
        "power_capped_seconds": _violated(nvml, handle, asker, POLICY_POWER),
        "thermal_seconds": _violated(nvml, handle, asker, POLICY_THERMAL),
    }


def slow_values(nvml: Nvml, handle: Handle, asker: Asker) -> Values:
    """The values that hardly change: limits, error counts, links."""
    rows = asker.ask(nvml.nvmlDeviceGetRemappedRows, handle)
    return {
        "power_limit_watts": _over(asker.number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1000),
        "sm_clock_max_mhz": _over(asker.number(nvml.nvmlDeviceGetMaxClockInfo, handle, CLOCK_SM), 1),
        "ecc_corrected": asker.number(nvml.nvmlDeviceGetTotalEccErrors, handle, ECC_CORRECTED, ECC_AGGREGATE),
        "ecc_uncorrected": asker.number(nvml.nvmlDeviceGetTotalEccErrors, handle, ECC_UNCORRECTED, ECC_AGGREGATE),
        "ecc_uncorrected_volatile": asker.number(
            nvml.nvmlDeviceGetTotalEccErrors, handle, ECC_UNCORRECTED, ECC_VOLATILE
        ),
        "rows_remapped_corrected": available(rows[0]) if rows else None,
        "rows_remapped_uncorrected": available(rows[1]) if rows else None,
        "row_remap_pending": bool(rows[2]) if rows else None,
        "row_remap_failed": bool(rows[3]) if rows else None,
        "pcie_generation": asker.number(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        "pcie_width": asker.number(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        "pcie_replays": asker.number(nvml.nvmlDeviceGetPcieReplayCounter, handle),
        "temperature_slowdown": _over(
            asker.number(nvml.nvmlDeviceGetTemperatureThreshold, handle, TEMPERATURE_SLOWDOWN), 1
        ),
        "nvlinks_active": _nvlinks(nvml, handle, asker),
    }


def part(percent: float) -> float | None:
    """A percentage as a fraction; None above 100, which some drivers answer for a value that they do not measure."""
    return percent / 100 if 0 <= percent <= 100 else None


def _clock_events(nvml: Nvml, handle: Handle, asker: Asker) -> tuple[str, ...]:
    bits = asker.ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if bits is None:  # its name before driver 535
        bits = asker.ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if bits is None or available(bits) is None:
        return ()
    return tuple(name for place, name in enumerate(CLOCK_EVENTS) if bits >> place & 1)


def _violated(nvml: Nvml, handle: Handle, asker: Asker, policy: int) -> float | None:
    status = asker.ask(nvml.nvmlDeviceGetViolationStatus, handle, policy)
    return None if status is None else _over(available(status.violationTime), NANOSECONDS)


def _nvlinks(nvml: Nvml, handle: Handle, asker: Asker) -> int | None:
    active = None
    for link in range(NVLINKS_MAX):
        state = asker.ask(nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # the GPU has no more links
            break
        active = (active or 0) + (1 if state else 0)
    return active


def _over(value: int | None, divisor: float) -> float | None:
    return None if value is None else value / divisor
