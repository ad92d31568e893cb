"""Counts prime numbers chunk by chunk, and can be told to break down at its first try. Needs nothing but Python."""

from __future__ import annotations

import argparse
import os
import sys

KNOWN = {100_000: 9_592, 200_000: 17_984, 400_000: 33_860, 1_000_000: 78_498}  # what the count must come to
CHUNKS = 50


def is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))


def tries() -> int:
    """Which try this is, counted in the folder that outlives them."""
    path = os.path.join(os.environ.get("WEFT_CHECKPOINT_DIR", "."), "tries")
    with open(path, "a+") as file:
        file.write("x")
        file.flush()
        file.seek(0)
        return len(file.read())


def tell(step: int) -> None:
    path = os.environ.get("WEFT_PROGRESS")
    if path:
        with open(path, "a") as file:
            file.write(f"step={step} steps={CHUNKS}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--below", type=int, choices=sorted(KNOWN), default=200_000)
    parser.add_argument("--break-first", action="store_true", help="fail at the first try, half-way")
    args = parser.parse_args()

    this_try = tries() if args.break_first else 1
    found, size = 0, args.below // CHUNKS
    for chunk in range(CHUNKS):
        if args.break_first and this_try == 1 and chunk == CHUNKS // 2:
            print("the first try breaks down half-way, on purpose", file=sys.stderr, flush=True)
            return 3
        found += sum(map(is_prime, range(chunk * size, (chunk + 1) * size)))
        tell(chunk + 1)
    print(f"try {this_try}: {found} primes below {args.below}, {KNOWN[args.below]} are known", flush=True)
    return 0 if found == KNOWN[args.below] else 1


if __name__ == "__main__":
    sys.exit(main())
