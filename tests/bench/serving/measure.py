"""All of it; at its end one line of JSON."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.bench.figures import Aim, line_of
from tests.bench.serving import drawing, live, mixed, rules, scale

PROCESSES = 2
PICTURE = Path("docs/measurements/serving.png")


def main(arguments: Sequence[str]) -> int:
    asked = _asked(arguments)
    quick, seed, began = asked.quick, asked.seed, time.monotonic()
    aims: dict[str, Aim] = {}
    with ProcessPoolExecutor(PROCESSES) as executor:
        parts: dict[str, Callable[[], dict[str, Aim]]] = {
            "scale": lambda: scale.measure(seed, quick=quick),
            "bursts": lambda: rules.bursts(seed, quick=quick),
            "constant": lambda: rules.constant(seed, quick=quick),
            "live": lambda: real(seed, asked.live, quick=quick),
            "fit": lambda: mixed.fit(executor, quick=quick),
            "mixed": lambda: mixed.measure(seed, executor, quick=quick),
            "shares": lambda: rules.shared(seed, executor, quick=quick),
            "rules": lambda: rules.measure(seed, executor, quick=quick),
        }
        if unknown := set(asked.only) - parts.keys():
            sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
        for name, measure in parts.items():
            if name in asked.only or (not asked.only and name != "fit"):
                aims |= measure()
    for name, aim in aims.items():
        bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
        print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}")
    print(f"{time.monotonic() - began:.0f} s on {len(os.sched_getaffinity(0))} cores")
    print(line_of(aims, seed=seed))
    return 0


def real(seed: int, only: Sequence[str], *, quick: bool) -> dict[str, Aim]:
    """Real processes; a picture of the day, where matplotlib is there."""
    found, watched = asyncio.run(live.run(seed=seed, quick=quick, only=only))
    if watched:
        drawing.draw(watched, PICTURE)
    return found


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench serving", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: shorter days, one seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=[], type=lambda text: text.split(","), help="some parts, with commas")
    parser.add_argument(
        "--live",
        default=[],
        type=lambda text: text.split(","),
        help="phases of the real part to run: zero,changes,day,hundred",
    )
    return parser.parse_args(arguments)
