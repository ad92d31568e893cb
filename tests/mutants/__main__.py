"""`python -m tests.mutants`: try the mutants. Exits with 1 unless the tests kill every one of them."""

import argparse
import sys

import msgspec

from tests.mutants.areas import chosen
from tests.mutants.trial import SEED, Outcome, Tried, try_mutants


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="mutants whose area, path or sentence has all WORDS"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of mutants tried at once (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    options = parser.parse_args()
    mutants = chosen(options.only)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.path}: {mutant.breaks}")
        return 0
    if not mutants:
        parser.error(f"no mutant has all of the words {options.only!r}")
    tried = try_mutants(mutants, jobs=max(1, options.jobs), tell=show)
    print(last_line(tried))
    return 0 if all(one.outcome is Outcome.KILLED for one in tried) else 1


def show(one: Tried) -> None:
    print(f"{one.outcome}: {one.mutant.path}: {one.mutant.breaks}", flush=True)
    if one.outcome is not Outcome.KILLED:
        print(f"    {one.mutant.old!r} → {one.mutant.new!r}\n    {one.detail}", flush=True)


def last_line(tried: list[Tried]) -> str:
    """The result for programs."""
    killed = sum(one.outcome is Outcome.KILLED for one in tried)
    aim = {"value": killed, "aim": len(tried), "met": killed == len(tried)}
    left = [one for one in tried if one.outcome is not Outcome.KILLED]
    survivors = [
        {"path": one.mutant.path, "breaks": one.mutant.breaks, "outcome": one.outcome, "detail": one.detail}
        for one in left
    ]
    return msgspec.json.encode({"aims": {"killed": aim}, "seed": SEED, "survivors": survivors}).decode()


if __name__ == "__main__":
    sys.exit(main())
