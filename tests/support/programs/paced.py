"""A stand-in for training whose steps take as long as they are told, times the slowdown of its emulated GPUs.

It learns nothing: it is for seeing how a cluster notices that a GPU turned slow. `--base` is a step's time on a GPU as
it should be; each step differs by a little. Unlike the other programs it needs Weft's own Python, which knows how slow
emulated GPUs are.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

from weft.emulation.slowdowns import slowdown_here

NOISE = 0.01  # standard deviation of a step's time, as a part of it
BUSY = 0.02  # the part of a step that the CPU works


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000_000)
    parser.add_argument("--base", type=float, default=0.5, help="seconds of a step at a slowdown of 1")
    parser.add_argument("--samples", type=int, default=32, help="number of samples in a step")
    args = parser.parse_args()
    rng = random.Random(f"{os.environ.get('WEFT_JOB_ID')}/{os.environ.get('WEFT_RANK')}")
    for number in range(1, args.steps + 1):
        took = step(args.base * slowdown_here(os.environ) * max(0.5, rng.gauss(1.0, NOISE)))
        tell(f"step={number} steps={args.steps} samples={number * args.samples} t_compute={took:.6f}")
    return 0


def step(seconds: float) -> float:
    """Work a little, wait for the rest; how long it really took."""
    began = time.monotonic()
    busy_until = time.process_time() + BUSY * seconds
    while time.process_time() < busy_until and time.monotonic() < began + seconds:
        sum(range(500))
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return time.monotonic() - began


def tell(line: str) -> None:
    path = os.environ.get("WEFT_PROGRESS")
    if path:
        with open(path, "a") as file:
            file.write(f"{line}\n")
    else:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
