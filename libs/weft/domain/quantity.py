"""Sizes and durations as people write them: `16GiB`, `1h30m`."""

import re
from functools import lru_cache

# `$` alone would accept a line break at the end.
SIZE_PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,3})?(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB)$(?!\n)"
DURATION_PATTERN = r"^([0-9]{1,7}(\.[0-9]{1,3})?(ms|s|m|h|d)){1,5}$(?!\n)"

_BYTES = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@lru_cache(maxsize=4096)
def size_bytes(text: str) -> int:
    """`16GiB` → 17179869184. Raises ValueError for anything that is not a size."""
    found = re.match(SIZE_PATTERN, text)
    if found is None:
        raise ValueError(f"expected a size such as 512MiB or 16GiB, got {text!r}")
    unit = found.group(2)
    return int(float(text.removesuffix(unit)) * _BYTES[unit])


@lru_cache(maxsize=4096)
def duration_seconds(text: str) -> float:
    """`1h30m` → 5400.0. Raises ValueError for anything that is not a duration."""
    if re.match(DURATION_PATTERN, text) is None:
        raise ValueError(f"expected a duration such as 30s or 1h30m, got {text!r}")
    parts = re.findall(r"([0-9.]+)(ms|s|m|h|d)", text)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size_text(count: float) -> str:
    """17179869184 → `16GiB`, for people: at most one decimal."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f}".removesuffix(".0") + unit
        count /= 1024
    return f"{count:.1f}".removesuffix(".0") + "TiB"


def duration_text(seconds: float) -> str:
    """5400 → `1h30m`, for people: the two largest units."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
