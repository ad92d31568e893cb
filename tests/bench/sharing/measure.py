"""All of it, on the emulated driver; at its end one line of JSON. No figure here is from hardware."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.figures import Aim, line_of
from tests.bench.packing_shares import packing
from tests.bench.sharing import crowds, inference, memory, shares
from tests.bench.sharing.rig import Rig, rig
from tests.support import compiled, launch_cost

IDLE_NS, GATED_NS = 60.0, 300.0


def main(arguments: Sequence[str]) -> int:
    asked = _asked(arguments)
    quick, began = asked.quick, time.monotonic()
    parts: dict[str, Callable[[Rig], dict[str, Aim]]] = {
        "shares": lambda made: shares.saturated(made, quick=quick),
        "changes": lambda made: shares.changes(made, quick=quick),
        "lending": lambda made: shares.lending(made, quick=quick),
        "bounded": lambda made: inference.bounded(made, quick=quick),
        "inference": lambda made: inference.inference(made, quick=quick),
        "memory": memory.memory,
        "starting": lambda made: crowds.starting(made, quick=quick),
        "killing": lambda made: crowds.killing(made, asked.seed, quick=quick),
        "launching": launching,
        "packing": lambda _: packing(asked.seed, quick),
    }
    if unknown := set(asked.only) - parts.keys():
        sys.exit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    aims: dict[str, Aim] = {}
    print("the GPU is emulated: nothing here was measured on hardware")
    for name, measure in parts.items():
        if not asked.only or name in asked.only:
            with rig() as made:
                aims |= measure(made)
    for name, aim in aims.items():
        bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
        print(f"{name}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}")
    print(f"{time.monotonic() - began:.0f} s on {len(os.sched_getaffinity(0))} cores")
    print(line_of(aims, seed=asked.seed))
    return 0


def launching(_: Rig) -> dict[str, Aim]:
    """What the hook adds to a launch of a kernel that takes no time, in ns."""
    built = compiled.build()
    assert isinstance(built, compiled.Built)
    with tempfile.TemporaryDirectory(prefix="wsh-") as home:
        costs = launch_cost.measure(built, Path(home))
    print(f"emulated, ns for each launch: {costs.bare:.0f} bare, {costs.idle:.0f} idle hook, {costs.gated:.0f} gated")
    return {
        "emulated.launch_idle_added_ns": Aim(value=round(costs.idle - costs.bare), aim=IDLE_NS),
        "emulated.launch_gated_added_ns": Aim(value=round(costs.gated - costs.bare), aim=GATED_NS),
    }


def _asked(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench sharing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer splits, processes and seconds")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default=[], type=lambda text: text.split(","), help="some parts, with commas")
    return parser.parse_args(arguments)
