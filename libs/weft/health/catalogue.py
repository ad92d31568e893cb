"""The signs of sickness, and what each leads to: NVIDIA's Xids by their number, and levels that are there or not.

The classes of the Xids follow NVIDIA's catalogue as gpud and GCM generate their tables from it.
"""

from collections.abc import Mapping

from msgspec import Struct

from weft.domain.health import HealthState


class Verdict(Struct, frozen=True, kw_only=True):
    """The state that a sign leads to. `words`: the sign, for a sentence. `lost`: runs on the GPU cannot go on.
    `resets`: the GPU is out of use until a reset or a reboot was seen, and not only until the sign is gone. `hours`:
    for how long a node is out of use whose sign comes only while it is used; the time doubles likewise."""

    state: HealthState
    words: str
    lost: bool = False
    resets: bool = False
    hours: float = 0.0


def _lost(words: str) -> Verdict:
    return Verdict(state=HealthState.QUARANTINED, words=words, lost=True, resets=True)


def _suspect(words: str) -> Verdict:
    return Verdict(state=HealthState.SUSPECT, words=words)


_SYSTEM_PROCESSOR = "its system processor does not answer"
_BROKEN_MEMORY = "its memory has errors that cannot be corrected"
_LINKS = "its NVLinks fail"

XIDS: Mapping[int, Verdict] = {
    46: _lost("its driver stopped processing work"),
    48: Verdict(state=HealthState.BROKEN, words=_BROKEN_MEMORY, lost=True, resets=True),
    62: _lost("its internal micro-controller halted"),
    63: Verdict(state=HealthState.QUARANTINED, words="a row of its memory is to be remapped at a reset", resets=True),
    64: Verdict(state=HealthState.BROKEN, words="a row of its memory could not be remapped", lost=True, resets=True),
    74: _suspect(_LINKS),
    79: _lost("it fell off the bus"),
    94: _suspect("a contained memory error ended a job"),
    95: _lost("an uncontained memory error"),
    110: _lost("a security fault of its firmware"),
    119: _lost(_SYSTEM_PROCESSOR),
    120: _lost(_SYSTEM_PROCESSOR),
    136: _lost("its link training failed"),
    140: _lost("an unrecovered memory error"),
    143: _lost(_SYSTEM_PROCESSOR),
    144: _suspect(_LINKS),
    145: _suspect(_LINKS),
    146: _suspect(_LINKS),
    147: _suspect(_LINKS),
    148: _suspect(_LINKS),
    149: _suspect(_LINKS),
    150: _suspect(_LINKS),
    155: _lost("its NVLinks need a reset"),
    156: _lost("its firmware asks for a reset"),
    158: _lost("its firmware asks for a reset"),
}
"""Xids that say something of the GPU. All others, such as 13, 31, 43 and 45, are mostly a program's fault."""

OFF_BUS = "off-bus"
ECC_UNCORRECTED = "ecc-uncorrected"
REMAP_FAILED = "row-remap-failed"
REMAP_PENDING = "row-remap-pending"
RESET_WANTED = "reset-wanted"
REBOOT_WANTED = "reboot-wanted"
DRAIN_WANTED = "drain-wanted"
LINKS_WANTED = "links-wanted"
THROTTLED = "throttled"
HOT = "hot"
ECC_CORRECTED = "ecc-corrected"
ROWS_REMAPPED = "rows-remapped"
PCIE_SLOW = "pcie-slow"
PCIE_REPLAYS = "pcie-replays"
LINKS_DOWN = "links-down"
MEMORY_HELD = "memory-held"
PREFLIGHT = "preflight"
DISK_FILLS = "disk-fills"
DISK_FULL = "disk-full"
DRIVER_HANGS = "driver-hangs"
FAILS_OFTEN = "fails-often"
LEMON = "lemon"

LEVELS: Mapping[str, Verdict] = {
    OFF_BUS: _lost("the driver cannot reach it"),
    ECC_UNCORRECTED: _lost("its memory has errors that were not corrected since the last reset"),
    REMAP_FAILED: Verdict(
        state=HealthState.BROKEN, words="a row of its memory could not be remapped", lost=True, resets=True
    ),
    REMAP_PENDING: Verdict(
        state=HealthState.QUARANTINED, words="a row of its memory is to be remapped at a reset", resets=True
    ),
    RESET_WANTED: _lost("the driver asks for a reset of it"),
    REBOOT_WANTED: _lost("the driver asks for a reboot of its node"),
    DRAIN_WANTED: Verdict(state=HealthState.QUARANTINED, words="the driver asks to drain it and reset it", resets=True),
    LINKS_WANTED: _suspect("the driver asks to use it without its links to other GPUs"),
    THROTTLED: _suspect("its hardware slows it down again and again"),
    HOT: _suspect("it is so hot that it is about to slow down"),
    ECC_CORRECTED: _suspect("its memory has many errors, which were corrected"),
    ROWS_REMAPPED: Verdict(state=HealthState.BROKEN, words="too many rows of its memory were remapped", resets=True),
    PCIE_SLOW: _suspect("its PCIe link is narrower or slower than it was"),
    PCIE_REPLAYS: _suspect("its PCIe link sends many packets again"),
    LINKS_DOWN: _suspect("an NVLink that it had is down"),
    MEMORY_HELD: Verdict(
        state=HealthState.QUARANTINED, words="memory is in use there, and the run that had the GPU is over"
    ),
    PREFLIGHT: Verdict(state=HealthState.QUARANTINED, words="it failed the check before a job", hours=1.0),
    DISK_FILLS: _suspect("its disk is almost full"),
    DISK_FULL: Verdict(state=HealthState.QUARANTINED, words="its disk is full"),
    DRIVER_HANGS: Verdict(state=HealthState.QUARANTINED, words="the GPU driver does not answer"),
    FAILS_OFTEN: _suspect("runs fail there more often than elsewhere"),
    LEMON: Verdict(state=HealthState.QUARANTINED, words="runs fail there far more often than elsewhere", hours=1.0),
}
"""Signs that are there now, or not. The last five are signs of a node, of which the scheduler finds two itself; all
others are of a GPU."""

SEVERITY = (HealthState.SUSPECT, HealthState.QUARANTINED, HealthState.BROKEN)


def code_of_xid(xid: str) -> str:
    return f"xid-{xid}"


def verdict_of(code: str) -> Verdict | None:
    """The verdict on a sign by its code, such as `xid-79`; None of one that says nothing of the GPU."""
    number = code.removeprefix("xid-")
    if number != code:
        return XIDS.get(int(number)) if number.isdecimal() and len(number) <= 3 else None
    return LEVELS.get(code)


def severity(verdict: Verdict) -> tuple[int, bool]:
    return (SEVERITY.index(verdict.state), verdict.lost)
