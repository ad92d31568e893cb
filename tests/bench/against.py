"""One part of the bench, of this checkout and of another in turns: `python -m tests.bench running --against PATH`.

These machines are noisy: what one run says alone decides nothing. Each round runs both, in alternating order, each with
its own checkout's `.venv`; what is printed are medians over the rounds and their ratio.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench.figures import TITLE

ROUNDS = 3
RUN_SECONDS_MAX = 900
HERE = Path(__file__).parents[2]
NUMBER = re.compile(r"(?:(p\d+) )?(\d[\d,]*(?:\.\d+)?) ?(ms|s|jobs/s|/s)(?![\w/])")

Figures = dict[str, float]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["running"])
    parser.add_argument("--against", type=Path, required=True, help="another checkout, with a .venv of its own")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args(arguments)
    other = asked.against.resolve()
    ours: dict[str, list[float]] = defaultdict(list)
    theirs: dict[str, list[float]] = defaultdict(list)
    for number in range(asked.rounds):
        sides = [(other, theirs), (HERE, ours)]
        for checkout, found in sides if number % 2 == 0 else reversed(sides):
            figures = _run(checkout, asked.parts)
            print(f"round {number + 1}, {checkout.name}: {figures}", flush=True)
            for name, value in figures.items():
                found[name].append(value)
    Console(width=150).print(table(ours, theirs))
    return 0


def _run(checkout: Path, parts: Sequence[str]) -> Figures:
    command = [str(checkout / ".venv" / "bin" / "python"), "-m", "tests.bench", *parts]
    done = subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, "COLUMNS": "2000"},  # a line for each figure
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS_MAX,
    )
    if done.returncode:
        sys.exit(f"{checkout}: {done.stderr[-2000:]}")
    return figures_of(done.stdout)


def figures_of(printed: str) -> Figures:
    """Every number with a unit that a line `what: measured   (aim: …)` tells, up to the table at the end."""
    found: Figures = {}
    for line in printed.partition(TITLE)[0].splitlines():
        what, separator, measured = line.partition(": ")
        if not separator:
            continue
        seen: dict[str, int] = defaultdict(int)
        for part, value, unit in NUMBER.findall(measured.partition("   (aim")[0]):
            kind = f"{part} {unit}".strip()
            seen[kind] += 1
            again = f" ({seen[kind]})" if seen[kind] > 1 else ""
            found[f"{what}: {kind}{again}"] = float(value.replace(",", ""))
    return found


def table(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> Table:
    """Medians, their ratio, and in which direction it is better."""
    made = Table(title="medians: the other checkout, this one, this one / the other", title_justify="left")
    for column in ("what", "other", "this", "ratio", "better"):
        made.add_column(column, overflow="fold")
    for name in [name for name in ours if name in theirs]:
        before, after = median(theirs[name]), median(ours[name])
        better = "higher" if name.split(": ")[-1].partition(" (")[0].endswith("/s") else "lower"
        ratio = f"{after / before:.3f}" if before else "–"
        made.add_row(name, f"{before:g}", f"{after:g}", ratio, better)
    return made
