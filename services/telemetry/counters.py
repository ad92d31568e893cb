"""The kernel's counters: what they are called, and what two readings of one say."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

_DIGITS_MAX = 20  # of a counter of 64 bits
_INTERFACE_FIELDS = 16  # of a line of /proc/net/dev, after the name


class Traffic(Struct, frozen=True):
    """Bytes since the counters began. None: not known."""

    inbound: int | None = None  # read, received
    outbound: int | None = None  # written, sent

    @staticmethod
    def sum(parts: Sequence["Traffic"]) -> "Traffic":
        """Of all parts that are known; unknown only if none is."""
        inbound = [part.inbound for part in parts if part.inbound is not None]
        outbound = [part.outbound for part in parts if part.outbound is not None]
        return Traffic(sum(inbound) if inbound else None, sum(outbound) if outbound else None)


def rate(before: float | None, after: float | None, seconds: float) -> float | None:
    """How fast a counter grew. None if either reading is missing, no time passed, or it began anew."""
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return rounded((after - before) / seconds)


def part(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Which part of the new events, the second number, were of the kind of the first. None if there were none."""
    if before is None or after is None or after[1] <= before[1] or after[0] < before[0]:
        return None
    return rounded(min(1.0, (after[0] - before[0]) / (after[1] - before[1])))


def rounded(value: float) -> float:
    """To six digits: more are noise, and each costs a byte in every message."""
    return float(f"{value:.6g}")


def number(text: str | None) -> int | None:
    """A counter; None for anything else, such as `max` or -1 where there is no limit."""
    digits = (text or "").strip()
    return int(digits) if digits.isdecimal() and len(digits) <= _DIGITS_MAX else None


def keyed(text: str | None) -> dict[str, int]:
    """Lines of a name and a number, as in cpu.stat and memory.stat."""
    numbers = {}
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if value.isdecimal() and len(value) <= _DIGITS_MAX:
            numbers[name] = int(value)
    return numbers


def interfaces(net_dev: str | None) -> Iterator[tuple[str, Traffic]]:
    """Each network interface of /proc/net/dev."""
    for line in (net_dev or "").splitlines():
        name, colon, counters = line.partition(":")
        fields = counters.split()
        if colon and len(fields) >= _INTERFACE_FIELDS:
            yield name.strip(), Traffic(number(fields[0]), number(fields[8]))


def segments_resent(snmp: str | None) -> int | None:
    """RetransSegs of /proc/net/snmp, where a line of names is followed by one of numbers."""
    lines = [line.split() for line in (snmp or "").splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2 or "RetransSegs" not in lines[0]:
        return None
    place = lines[0].index("RetransSegs")
    return number(lines[1][place]) if place < len(lines[1]) else None


def stalled_seconds(pressure: str | None) -> float | None:
    """For how long, in all, some task has waited for the resource. None: the kernel keeps no count."""
    for line in (pressure or "").splitlines():
        if line.startswith("some "):
            for field in line.split():
                name, _, value = field.partition("=")
                if name == "total":
                    microseconds = number(value)
                    return None if microseconds is None else microseconds / 1e6
    return None
