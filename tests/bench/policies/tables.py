"""Tables in Markdown, what is counted for them, and the file that they go to."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

MINUS = "\N{MINUS SIGN}"
WORSE = 1.01  # from which ratio on it is told that we lose

Row = Sequence[str]


def table(header: Row, rows: Iterable[Row]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def hours(seconds: float) -> str:
    value = seconds / 3600
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def change(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f} %".replace("-", MINUS)


def losses(what: str, ratios: Mapping[str, float]) -> str:
    """Every case in which we lose, the worst first; what is told is all there is, and nothing chosen."""
    worse = sorted(((ratio, case) for case, ratio in ratios.items() if ratio > WORSE), reverse=True)
    told = f"{what}: ratio above {WORSE} in {len(worse)} of {len(ratios)} cases"
    return "\n".join([told + (":" if worse else "."), "", *(f"- {case}: {ratio:.3f}" for ratio, case in worse)]).strip()


# the file


def markers(part: str) -> tuple[str, str]:
    return f"<!-- {part}: printed by the program from here -->", f"<!-- {part}: to here -->"


def lacks(path: Path, parts: Iterable[str]) -> list[str]:
    """The parts that `path` has no place for."""
    text = path.read_text() if path.is_file() else ""
    return [part for part in parts if any(text.count(marker) != 1 for marker in markers(part))]


def put(path: Path, part: str, printed: str) -> None:
    """The text of a part in its place; all around it stays."""
    begin, end = markers(part)
    before, rest = path.read_text().split(begin)
    _, after = rest.split(end)
    path.write_text(f"{before}{begin}\n\n{printed.strip()}\n\n{end}{after}")
