"""Runs the parts in turn, shows each value beside its aim, and ends with one line of JSON."""

import argparse
import asyncio
import importlib
import os
import pkgutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import tests.bench.daily as parts
from tests.bench.figures import Aim, line_of


class Part(Protocol):
    measure: Callable[..., Awaitable[dict[str, Aim]]]


def names() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(parts.__path__) if found.name != "measure")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench daily", description=parts.__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of: {', '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="each part in about a minute")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args(arguments)
    if unknown := sorted(set(asked.parts) - set(names())):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(names())}")
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    aims: dict[str, Aim] = {}
    for name in asked.parts or names():
        print(f"── {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="weft-bench-") as home:
            part: Part = importlib.import_module(f"{parts.__name__}.{name}")  # type: ignore[assignment]
            aims |= _shown(asyncio.run(part.measure(Path(home), seed=asked.seed, quick=asked.quick)))  # type: ignore[arg-type]
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    print(line_of(aims, seed=asked.seed))
    return 0


def _shown(aims: dict[str, Aim]) -> dict[str, Aim]:
    for name, aim in aims.items():
        bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
        print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}", flush=True)
    return aims
