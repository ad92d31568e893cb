"""Runs the parts in turn, shows each value beside its aim, and ends with one line of JSON."""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import tests.bench.people as parts
from tests.bench.figures import Aim, line_of
from tests.bench.people import revocation, sign_ins, slurm, ssh

PARTS: Mapping[str, Callable[..., Coroutine[None, None, dict[str, Aim]]]] = {
    "ssh": ssh.measure,
    "sign_ins": sign_ins.measure,
    "revocation": revocation.measure,
    "slurm": slurm.measure,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench people", description=parts.__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of: {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer keys and sign-ins, and a smaller file")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the file and of the keys")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.parts if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    aims: dict[str, Aim] = {}
    for name in asked.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="weft-people-") as home:
            found = asyncio.run(PARTS[name](Path(home), quick=asked.quick, seed=asked.seed))
        for what, aim in found.items():
            bound = f"at least {aim.aim:g}" if aim.at_least else f"at most {aim.aim:g}"
            print(f"{what}: {aim.value:g} (aim: {bound}){'' if aim.met else ' NOT MET'}", flush=True)
        aims |= found
    print(f"load of the machine after: {os.getloadavg()[0]:.1f}")
    print(line_of(aims, seed=asked.seed))
    return 0 if all(aim.met for aim in aims.values()) else 1
