"""`python -m tests.bench.policies`: policies compared; the tables are printed, and put into the file of them."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.bench.policies.alone import alone
from tests.bench.policies.drift import drift
from tests.bench.policies.of_philly import of_philly
from tests.bench.policies.own import own
from tests.bench.policies.parity import parity
from tests.bench.policies.runs import Lab
from tests.bench.policies.scale import FULL, QUICK, Scale
from tests.bench.policies.setups import data
from tests.bench.policies.tables import lacks, put
from tests.bench.policies.whole import whole

PARTS: Mapping[str, Callable[[Lab, Scale], str]] = {
    "parity": parity,
    "own": own,
    "whole": whole,
    "alone": alone,
    "drift": drift,
    "philly": of_philly,
}
ALL = "all"


def main() -> None:
    asked = _asked()
    parts = list(PARTS) if asked.part == ALL else [asked.part]
    if not data().is_dir():
        sys.exit("no measured data here: WEFT_DATA names no folder")
    if missing := lacks(asked.out, parts):
        sys.exit(f"{asked.out} has no place for {', '.join(missing)}: two marker comments each")
    with ProcessPoolExecutor(asked.jobs) as executor:
        lab = Lab(executor)
        for part in parts:
            printed = f"{_how(part, quick=asked.quick)}\n\n{PARTS[part](lab, QUICK if asked.quick else FULL)}"
            print(printed, flush=True)
            put(asked.out, part, printed)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.policies", description=__doc__)
    parser.add_argument("--part", choices=(*PARTS, ALL), default=ALL)
    parser.add_argument("--jobs", type=int, default=2, help="simulations at once")
    parser.add_argument("--out", type=Path, default=Path("tests/bench/measured/pal.md"))
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it works")
    return parser.parse_args()


def _how(part: str, *, quick: bool) -> str:
    """What made it, and on what."""
    command = f"python -m tests.bench.policies --part {part}" + (" --quick" if quick else "")
    reduced = " A reduced run: not all of the cases." if quick else ""
    return f"`{command}`, {len(os.sched_getaffinity(0))} cores; every GPU is simulated.{reduced}"


if __name__ == "__main__":
    main()
