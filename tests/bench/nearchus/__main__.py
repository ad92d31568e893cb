"""`python -m tests.bench.nearchus run|record|report`: what the tuner gains, on real containers of this machine."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

from tests.bench.nearchus.comparing import OURS, Lengths, compare
from tests.bench.nearchus.image import ImageMissingError
from tests.bench.nearchus.lab import lab
from tests.bench.nearchus.measured import RESULTS, append
from tests.bench.nearchus.queueing import CPUS, STEPS, TRACES, compare_queues, traces
from tests.bench.nearchus.quiet import S6
from tests.bench.nearchus.recording import record
from tests.bench.nearchus.report import report
from tests.bench.nearchus.scenarios import SCENARIOS
from tests.bench.nearchus.sides import run_side
from tests.support.corpus import CORPUS

PAGE = Path("tests/bench/measured/nearchus.md")
EVERY = (*SCENARIOS, *TRACES)


def tell(line: str) -> None:
    print(line, flush=True)


async def _run(asked: argparse.Namespace) -> None:
    settings = dict(setting.split("=", 1) for setting in asked.set)
    lengths = Lengths(fixed=asked.fixed, ours=asked.ours, grid=asked.grid)
    async with lab(settings=settings) as made:
        for name in asked.scenario or EVERY:
            if name in TRACES:
                trace = traces(cpus=asked.cores, steps=asked.steps)[name]
                await compare_queues(made, trace, reps=asked.reps, folder=asked.out, tell=tell)
            elif name == S6.name:
                seconds = asked.minutes * 60.0
                result = await run_side(made, S6, OURS, S6.equal, seconds=seconds, rep=0, tuned=True)
                append(asked.out / f"{S6.name}.jsonl", result)
                tell(f"S6: {len(result.actions)} changes in {asked.minutes:g} minutes; {dict(result.verdicts)}")
            else:
                scenario = SCENARIOS[name]
                await compare(
                    made,
                    scenario,
                    reps=asked.reps,
                    lengths=lengths,
                    folder=asked.out,
                    tell=tell,
                    outscales=asked.outscale,
                )


async def _in_order(work: Coroutine[None, None, None]) -> None:
    """Whoever ends us ends the cluster and its containers as well."""
    task = asyncio.create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.nearchus", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run scenarios, and add what came of them to the raw results")
    run.add_argument(
        "--scenario", action="append", choices=(*EVERY, S6.name), help="again for more; all but S6 without"
    )
    run.add_argument("--reps", type=int, default=1)
    run.add_argument("--fixed", type=float, default=Lengths().fixed, help="seconds of a run with a fixed split")
    run.add_argument("--ours", type=float, default=Lengths().ours, help="seconds of a run of ours, search included")
    run.add_argument(
        "--grid", type=float, default=Lengths().grid, help="seconds at each point of the oracle's grid; 0: no oracle"
    )
    run.add_argument("--steps", type=int, default=STEPS, help="steps of each job of S4")
    run.add_argument("--cores", type=float, default=CPUS, help="cores that each job of S4 asks for")
    run.add_argument("--outscale", action="store_true", help="one side more: ours, which may try more replicas")
    run.add_argument("--minutes", type=float, default=30.0, help="duration of S6 in minutes")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the services")
    run.add_argument("--out", type=Path, default=RESULTS)
    recording = verbs.add_parser("record", help="make the corpus of labelled windows again")
    recording.add_argument("--label", action="append", help="only these: labels, or names such as io-bound-2")
    recording.add_argument("--seconds", type=float, default=25.0)
    recording.add_argument("--out", type=Path, default=CORPUS)
    reporting = verbs.add_parser("report", help="put the tables of the raw results into the page")
    reporting.add_argument("--results", type=Path, default=RESULTS)
    reporting.add_argument("--page", type=Path, default=PAGE)
    reporting.add_argument("--corpus", type=Path, default=CORPUS)
    return parser.parse_args()


def main() -> None:
    asked = _asked()
    try:
        if asked.verb == "run":
            asyncio.run(_in_order(_run(asked)))
        elif asked.verb == "record":
            asyncio.run(_in_order(record(asked.out, labels=asked.label, seconds=asked.seconds, tell=tell)))
        else:
            report(asked.results, asked.page, asked.corpus)
    except ImageMissingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
