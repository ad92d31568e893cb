"""Counts prime numbers on one core for ever, and reports each step: a job that is slow because it asked for too little.

A step takes some milliseconds of a processor and nothing else, so the speed of the job is the part of a core that it
gets. Needs nothing but Python.
"""

from __future__ import annotations

import itertools
import os
import sys

STEP = 2_000  # numbers of one step


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def main() -> int:
    with open(os.environ.get("WEFT_PROGRESS", os.devnull), "a", encoding="utf-8", buffering=1) as progress:
        for step in itertools.count(1):
            sum(map(is_prime, range(STEP)))
            progress.write(f"step={step}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
