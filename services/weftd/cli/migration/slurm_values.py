"""Values as Slurm writes them: `1-12:00:00`, `8G`, `gpu:h100:4`, `2-4`."""

import re

NUMBER_MAX = 1_000_000
SECONDS_MAX = 366 * 86400
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class NoValueError(ValueError):
    """A value that cannot be understood; the message says what was expected."""


def number_of(text: str) -> int:
    """A count of at least one."""
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and 0 < int(text) <= NUMBER_MAX):
        raise NoValueError(f"expected a number, not {text[:60]!r}")
    return int(text)


def range_of(text: str) -> tuple[int, int]:
    """`4`, `2-4` as the least and the most."""
    least, dash, most = text.partition("-")
    first = number_of(least)
    last = number_of(most) if dash else first
    if last < first:
        raise NoValueError(f"expected a range such as 2-4, not {text[:60]!r}")
    return first, last


def seconds_of(text: str) -> int:
    """`30` (minutes), `30:00`, `2:00:00`, `1-12`, `1-12:30`, `1-12:30:00`; 0 for no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "0"):
        return 0
    found = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,6})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?", text)
    if found is None:
        raise NoValueError(f"expected a time such as 1-12:00:00, not {text[:60]!r}")
    days, *rest = found.groups()
    parts = [int(part) for part in rest if part is not None]
    units = (3600, 60, 1) if days is not None or len(parts) == 3 else (60, 1)
    seconds = int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    if seconds > SECONDS_MAX:
        raise NoValueError(f"{text} is longer than {SECONDS_MAX // 86400} days")
    return seconds


def memory_bytes(text: str) -> int:
    """`16G`, `4000` (MiB); 0 is all of a node."""
    found = re.fullmatch(r"([0-9]{1,12})([KMGT]?)B?", text.upper())
    if found is None:
        raise NoValueError(f"expected a size such as 16G, not {text[:60]!r}")
    return int(found[1]) * _UNITS[found[2]]


def size_of(count: int) -> str:
    """Bytes as a job file has them: in the largest unit that keeps them whole."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count % size == 0 and count:
            return f"{count // size}{unit}"
    return f"{count}B"


def gpus_of(text: str) -> tuple[str, int]:
    """`4`, `h100:4`, `gpu:4`, `gpu:h100:4` as model and count. Raises NoValueError for a resource that is no GPU."""
    parts = text.split(":")
    if len(parts) > 1 and parts[0] == "gpu":
        parts = parts[1:]
    elif parts[0] == "gpu":
        return "", 1
    if len(parts) > 2 or not parts[-1]:
        raise NoValueError(f"expected GPUs such as gpu:4 or h100:4, not {text[:60]!r}")
    if len(parts) == 1 and not parts[0].isdecimal() and re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,60}", parts[0]):
        return parts[0], 1
    return parts[0] if len(parts) == 2 else "", number_of(parts[-1])
