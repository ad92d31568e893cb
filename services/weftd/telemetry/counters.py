"""The kernel's counters: their names, and the rate or part from two readings of one."""

from collections.abc import Iterator

from weft.cgroups.counters import Traffic, number

_INTERFACE_FIELDS = 16  # numbers of a line of /proc/net/dev, after the name


def rate(before: float | None, after: float | None, seconds: float) -> float | None:
    """How fast a counter grew. None if either reading is missing, no time passed, or the counter was reset."""
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return rounded((after - before) / seconds)


def part(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """The part of the new events (second number) that are of one kind (first number). None without new events."""
    if before is None or after is None or after[1] <= before[1] or after[0] < before[0]:
        return None
    return rounded(min(1.0, (after[0] - before[0]) / (after[1] - before[1])))


def rounded(value: float) -> float:
    """To six digits: more are noise, and each costs a byte in every message."""
    return float(f"{value:.6g}")


def interfaces(net_dev: str | None) -> Iterator[tuple[str, Traffic]]:
    """Each network interface of /proc/net/dev."""
    for line in (net_dev or "").splitlines():
        name, colon, counters = line.partition(":")
        fields = counters.split()
        if colon and len(fields) >= _INTERFACE_FIELDS:
            yield name.strip(), Traffic(number(fields[0]), number(fields[8]))


def segments_resent(snmp: str | None) -> int | None:
    """RetransSegs of /proc/net/snmp, where a line of names is followed by a line of numbers."""
    lines = [line.split() for line in (snmp or "").splitlines() if line.startswith("Tcp:")]
    if len(lines) != 2 or "RetransSegs" not in lines[0]:
        return None
    place = lines[0].index("RetransSegs")
    return number(lines[1][place]) if place < len(lines[1]) else None
