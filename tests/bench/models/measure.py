"""All of it; at its end one line of JSON."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence

from tests.bench.figures import Aim, line_of
from tests.bench.models import day, prefix, streams


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench models", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute or two: a short day, fewer streams")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=[], type=lambda text: text.split(","), help="some parts, with commas")
    asked = parser.parse_args(arguments)
    seed, quick = asked.seed, asked.quick
    parts: dict[str, Callable[[], dict[str, Aim]]] = {
        "prefix": lambda: prefix.measure(seed, quick=quick),
        "day": lambda: day.measure(seed, quick=quick),
        "streams": lambda: asyncio.run(streams.measure(seed, quick=quick)),
    }
    if unknown := set(asked.only) - parts.keys():
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    aims: dict[str, Aim] = {}
    for name, measure in parts.items():
        if name in asked.only or not asked.only:
            aims |= measure()
    for name, aim in aims.items():
        bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
        print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}")
    print(line_of(aims, seed=seed))
    return 0
