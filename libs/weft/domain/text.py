"""Counts and lists in sentences: `2 GPUs`, `a, b and c`."""

from collections.abc import Sequence


def plural(count: float, noun: str) -> str:
    """`1 GPU`, `1,200 GPUs`, `0.5 CPUs`: the number with its noun, which takes an s."""
    number = f"{int(count):,}" if count % 1 == 0 else f"{count:,.4g}"
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], most: int | None = None) -> str:
    """`a`, `a and b`, `a, b and c`; of more than `most` names the first ones: `a, b and 7 more`."""
    if most is not None and len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def gpu_text(count: float) -> str:
    """`2 GPUs`, `0.5 of a GPU`; `CPUs` where it has no GPU."""
    if 0 < count < 1:
        return f"{count:.4g} of a GPU"
    return plural(count, "GPU") if count else "CPUs and memory"
