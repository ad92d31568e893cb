"""How much goes over a GPU's PCIe link and NVLinks, from the driver's counters of bytes."""

from typing import Any, Final

from msgspec import Struct

from libs.gpus.asking import Asker
from libs.gpus.nvml import Handle, Nvml
from libs.gpus.values import Values

# NVML's numbers of these counters, their units in bytes, and the field that their growth makes.
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
"""The scope in which NVML adds up the counters of all NVLinks; what is not of a link has the scope 0."""

_OF_PCIE: Final = (PCIE_SENT_BYTES, PCIE_RECEIVED_BYTES)

_TYPES: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by NVML's number of the type
_UNSIGNED_INT: Final = 1


class _Counters(Struct, frozen=True):
    """Bytes since the counters began, by the field that they make; `at` in seconds of a clock that only goes on."""

    at: float
    grown: dict[str, float]


class Links:
    """Remembers the last counters of one GPU. Without them there are no rates yet, which are unknown and not 0."""

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
            # At 64 GB/s one of 32 bits is full 15 times a second, so its growth says nothing.
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
            if name in before.grown and grown[name] >= before.grown[name]  # else it began anew
        }


def field_value(value: Any) -> float | None:
    """One answer of `nvmlDeviceGetFieldValues`; each of them has an error code of its own."""
    if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_TYPES):
        return None
    number = float(getattr(value.value, _TYPES[value.valueType]))
    return number if 0 <= number < 2**64 - 1 else None
