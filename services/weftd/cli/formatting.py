"""Times, counts and other people's text, as a person reads them. Pure."""

import re
from datetime import datetime, tzinfo

from weft.domain.quantity import duration_text
from weft.domain.shares import WHOLE, Share
from weft.domain.text import plural

NAMED_MAX = 4  # nodes in a line
_DAY = 86400


def span(seconds: float) -> str:
    """A duration: `12s`, `3m12s`, `2h5m`. Negative ones count as 0: clocks of two machines differ."""
    whole = max(0, int(seconds))
    return f"{whole}s" if whole < 60 else duration_text(whole)


def ago(seconds: float) -> str:
    """An age in one unit: `just now`, `12s ago`, `3m ago`, `5h ago`, `3d ago`."""
    for limit, unit, letter in ((60, 1, "s"), (3600, 60, "m"), (2 * _DAY, 3600, "h")):
        if seconds < limit:
            return "just now" if seconds < 1 else f"{int(seconds // unit)}{letter} ago"
    return f"{int(seconds // _DAY)}d ago"


def clock(at: float, *, now: float, zone: tzinfo | None = None) -> str:
    """A time of today, or with its day."""
    then, today = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%Y-%m-%d %H:%M:%S")


def zone_name(at: float, zone: tzinfo | None = None) -> str:
    """`CEST`, `UTC`: the zone in which times are shown; None is the one of this machine."""
    return clean(datetime.fromtimestamp(at, zone).astimezone(zone).strftime("%Z"))


def number(value: float) -> str:
    """`3`, `0.31`, `1e-05`: whole numbers whole, others with three or four digits."""
    return f"{int(value)}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


def share_text(share: Share) -> str:
    """`0.5`, `0.5 to 0.8`: the part of a GPU that is promised, and up to how much may be used."""
    request, limit = number(share.request / WHOLE), number(share.limit / WHOLE)
    return request if share.request == share.limit else f"{request} to {limit}"


def emulated_gpus(how_many: int, emulated: int) -> str:
    """`8 GPUs`, `8 emulated GPUs`, or `8 GPUs, 4 of them emulated`: an emulated one is never passed off as hardware."""
    if emulated == how_many and emulated:
        return plural(how_many, "emulated GPU")
    return plural(how_many, "GPU") + (f", {emulated} of them emulated" if emulated else "")


def indexes(numbers: tuple[int, ...]) -> str:
    """`0-3,6`: GPUs by index, runs of them joined."""
    spans: list[list[int]] = []
    for index in sorted(numbers):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def natural(name: str) -> list[tuple[int, str]]:
    """The sorting key of a name by which `node-2` comes before `node-10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def clean(text: str) -> str:
    """A foreign text that cannot steer this terminal: each control character becomes a space."""
    return "".join(char if char.isprintable() else " " for char in text)


def clean_lines(text: str) -> str:
    """The same of a text that may have several lines."""
    return "\n".join(line if line.isprintable() else clean(line) for line in text.split("\n"))
