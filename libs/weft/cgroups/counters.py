"""Numbers in the kernel's files: counters, lines of a name and a number, traffic, pressure."""

from collections.abc import Sequence

from msgspec import Struct

_DIGITS_MAX = 20  # of a counter of 64 bits


class Traffic(Struct, frozen=True):
    """Bytes since the counters began. None: not known."""

    inbound: int | None = None  # read, received
    outbound: int | None = None  # written, sent

    @staticmethod
    def sum(parts: Sequence["Traffic"]) -> "Traffic":
        """The sum of all known parts; unknown only if no part is known."""
        inbound = [part.inbound for part in parts if part.inbound is not None]
        outbound = [part.outbound for part in parts if part.outbound is not None]
        return Traffic(sum(inbound) if inbound else None, sum(outbound) if outbound else None)


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
