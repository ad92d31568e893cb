"""`python -m tests.simulation --seeds 200 --from 1000`, or `--seed 1234 --trace`. Status 0 only if no seed fails."""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tests.simulation.simulate import Result, simulate
from tests.simulation.workers import end_with_parent


def main() -> int:
    options = _options()
    if options.seed is not None:
        return _one(options.seed, trace=options.trace)
    began = time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    results: list[Result] = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        for living in as_completed([pool.submit(simulate, seed) for seed in seeds]):
            result = living.result()
            results.append(result)
            for failure in result.failures[:1]:
                say(f"seed {result.seed}: {failure}".splitlines()[0])
    say(summary(results, wall_seconds=time.perf_counter() - began))
    return 1 if any(result.failures for result in results) else 0


def _one(seed: int, *, trace: bool) -> int:
    result = simulate(seed, trace=trace)
    for failure in result.failures:
        say(f"seed {seed}: {failure}")
    say(f"seed {seed}: digest {result.digest}")
    say(summary([result], wall_seconds=result.wall_seconds))
    return 1 if result.failures else 0


def summary(results: list[Result], *, wall_seconds: float) -> str:
    counts = sum((result.counts for result in results), Counter[str]())
    failed = sum(bool(result.failures) for result in results)
    hours = sum(result.virtual_seconds for result in results) / 3600
    names = (
        "jobs",
        "runs",
        "kills",
        "hangs",
        "partitions",
        "terminations",
        "unknown outcomes",
        "moves",
        "pre-emptions",
        "tunings",
        "scalings",
        "resizes",
        "restarts",
        "services",
        "loans",
        "updates asked",
        "shared",
        "other shares",
        "events",
        "messages",
    )
    told = ", ".join(f"{counts[name]} {name}" for name in names)
    faults = sum(count for name, count in counts.items() if name.startswith("fault "))
    return (
        f"{len(results)} seeds, {failed} failed: {told}, {faults} faults;"
        f" {hours:.1f} virtual hours in {wall_seconds:.1f} s"
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="number of seeds")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="print all that happens in it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
