"""The traffic of a GPU's PCIe link and NVLinks, from the driver's counters of bytes."""

from typing import Any, Final

from msgspec import Struct

from weft.gpus.asking import Asker
from weft.gpus.nvml import Handle, Nvml
from weft.gpus.values import Values

# NVML's numbers of these counters, their units in bytes, and the field for the rate of their growth.
PCIE_SENT_BYTES: Final = 197
PCIE_RECEIVED_BYTES: Final = 198
NVLINK_SENT_KIB: Final = 138
NVLINK_RECEIVED_KIB: Final = 139
_PCIE: Final = ((PCIE_SENT_BYTES, 1, "pcie_send_rate"), (PCIE_RECEIVED_BYTES, 1, "pcie_receive_rate"))
_NVLINK: Final = (
    (NVLINK_SENT_KIB, 1024, "nvlink_send_rate"),
    (NVLINK_RECEIVED_KIB, 1024, "nvlink_receive_rate"),
)
ALL_LINKS: Final = 0xFFFF_FFFF
"""The scope in which NVML adds up the counters of all NVLinks; values that are not of a link have the scope 0."""

_OF_PCIE: Final = (PCIE_SENT_BYTES, PCIE_RECEIVED_BYTES)

_TYPES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by NVML's number of the type
_UNSIGNED_INT: Final = 1


class _Counters(Struct, frozen=True):
    """Bytes since the counters began, by the field of their rate; `at` in seconds on a monotonic clock."""

    at: float
    grown: dict[str, float]


class Links:
    """Keeps the last counters of one GPU. Until there are some, rates are unknown, and not 0."""

    def __init__(self) -> None:
        self._before: _Counters | None = None
        self.pcie_counted = False

    def rates(self, nvml: Nvml, handle: Handle, asker: Asker, *, now: float, nvlinks: int | None) -> Values:
        wanted = [*_PCIE, *(_NVLINK if nvlinks else ())]
        fields = [(field, 0 if field in _OF_PCIE else ALL_LINKS) for field, _, _ in wanted]
        values = asker.ask(nvml.nvmlDeviceGetFieldValues, handle, fields)
        grown: dict[str, float] = {}
        for (field, unit, name), value in zip(wanted, values or (), strict=False):
            counted = field_value(value)
            # At 64 GB/s a counter of 32 bits wraps 15 times a second, so its growth is meaningless.
            narrow = field in _OF_PCIE and value.valueType == _UNSIGNED_INT
            if counted is not None and not narrow:
                grown[name] = counted * unit
        self.pcie_counted = "pcie_send_rate" in grown
        before, self._before = self._before, _Counters(at=now, grown=grown)
        if before is None or now <= before.at:
            return {}
        return {
            name: (grown[name] - before.grown[name]) / (now - before.at)
            for name in grown
            if name in before.grown and grown[name] >= before.grown[name]  # else the counter was reset
        }


def field_value(value: Any) -> float | None:
    """One value of `nvmlDeviceGetFieldValues`, where each value has its own error code; None after an error."""
    if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_TYPES):
        return None
    number = float(getattr(value.value, _TYPES[value.valueType]))
    return number if 0 <= number < 2**64 - 1 else None
