"""The contract suite with real frameworks: `python -m tests.bench contract [--quick] [--seed N] [--only WORDS]`.

It installs the frameworks of `requirements.txt` into a folder of the user's cache, once, and runs every clause of
`clauses.py` on a node with processes, and on one with containers where an engine and the image of `WEFT_JOB_IMAGE` are
there. Each clause is an aim that is 1 or 0. Without an engine the aims of containers are not met. The seed is the order
of the clauses. The last line is one JSON object with the aims.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.bench.contract.clauses import CLAUSES, QUICK
from tests.bench.contract.frameworks import FrameworksMissingError, frameworks
from tests.bench.contract.stage import BrokenError, Stage, opened
from tests.bench.figures import Aim, line_of
from tests.bench.nearchus.image import base, has_base

AT_ONCE = 2
RUNTIMES = ("process", "container")
CLAUSE_SECONDS_MAX = 400.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench contract", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the clauses that take longest")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the order of the clauses (default: 0)")
    parser.add_argument("--only", default="", metavar="WORDS", help="the clauses whose `runtime.name` has these words")
    parser.add_argument("--runtime", choices=RUNTIMES, help="runtime to measure (default: both)")
    asked = parser.parse_args(arguments)
    names = [name for name in CLAUSES if not asked.quick or name in QUICK]
    Random(asked.seed).shuffle(names)
    aims: dict[str, Aim] = {}
    for runtime in (asked.runtime,) if asked.runtime else RUNTIMES:
        chosen = [name for name in names if asked.only in f"{runtime}.{name}"]
        aims |= _on(runtime, chosen)
    print(line_of(dict(sorted(aims.items())), seed=asked.seed))
    return 0 if all(aim.met for aim in aims.values()) else 1


def _on(runtime: str, names: Sequence[str]) -> dict[str, Aim]:
    try:
        folder = frameworks()
        if runtime == "container" and not has_base():
            raise FrameworksMissingError(f"no Docker engine with the image {base()}: deploy/local-images makes it")
    except FrameworksMissingError as error:
        print(f"{runtime}: {error}", flush=True)
        return {f"{runtime}.{name}": _aim(held=False) for name in names}
    return asyncio.run(_measure(runtime, names, folder)) if names else {}


async def _measure(runtime: str, names: Sequence[str], folder: Path) -> dict[str, Aim]:
    turns = asyncio.Semaphore(AT_ONCE)
    async with opened(folder, contained=runtime == "container") as stage, asyncio.TaskGroup() as group:
        asked = {name: group.create_task(_held(stage, runtime, name, turns)) for name in names}
    return {f"{runtime}.{name}": _aim(held=task.result()) for name, task in asked.items()}


async def _held(stage: Stage, runtime: str, name: str, turns: asyncio.Semaphore) -> bool:
    async with turns:
        began, why = time.monotonic(), ""
        try:
            async with asyncio.timeout(CLAUSE_SECONDS_MAX):
                await CLAUSES[name](stage)
        except (BrokenError, TimeoutError) as error:
            why = " / ".join(str(error).splitlines())[:1000] or "it takes too long"
        print(f"{runtime}.{name}: {why or 'holds'} ({time.monotonic() - began:.0f} s)", flush=True)
        return not why


def _aim(*, held: bool) -> Aim:
    return Aim(value=float(held), aim=1, at_least=True)
