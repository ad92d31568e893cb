"""`make chaos SECONDS=60 SEED=7`: see `tests.chaos`. Its last line is one JSON object; status 0: nothing is wrong."""

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec

from tests.chaos.run import Asked, Result, chaos
from tests.hosts.laboratory import why_no_laboratory
from weftd.cli.local.signals import stops_on_signals

INTERRUPTED = 130


def main() -> int:
    asked = _asked()
    result = asyncio.run(_until_stopped(asked))
    if result is None:
        return INTERRUPTED
    if asked.markdown:
        print(result.row())
    print(msgspec.json.encode(result.figures).decode())
    return 0 if result.good else 1


def _asked() -> Asked:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of faults (default: 60)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--settle",
        type=float,
        help="seconds that jobs get to end after the last fault (default: 90, with --failover or --hosts 240, or half)",
    )
    parser.add_argument("--fencing", choices=("on", "off"), default="on", help="off: the audit has to find overlaps")
    parser.add_argument("--enemies", choices=("on", "off"), default="on", help="off: no hostile tenant, no rogue node")
    parser.add_argument("--failover", action="store_true", help="three NATS servers, and a Postgres with a standby")
    parser.add_argument(
        "--hosts", type=int, choices=(0, 3), default=0, help="all of that on hosts of a laboratory (root)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs of all services and jobs there")
    parser.add_argument("--markdown", action="store_true", help="print the row for tests/bench/measured/chaos.md too")
    parser.add_argument("--quiet", action="store_true", help="say nothing of single faults")
    found = parser.parse_args()
    if found.hosts and found.fencing == "off":
        parser.error("--hosts: with --fencing off only one machine is looked at")
    if found.hosts and (why := why_no_laboratory(engines=False)):
        parser.error(f"--hosts: {why}")
    return Asked(
        seconds=found.seconds,
        seed=found.seed,
        settle=max(240.0 if found.failover or found.hosts else 90.0, found.seconds / 2)
        if found.settle is None
        else found.settle,
        fencing=found.fencing == "on",
        enemies=found.enemies == "on",
        failover=found.failover,
        hosts=bool(found.hosts),
        keep=found.keep,
        quiet=found.quiet,
        markdown=found.markdown,
    )


async def _until_stopped(asked: Asked) -> Result | None:
    """None when somebody did not want to wait for it; then too nothing is left."""
    with stops_on_signals() as stops:
        working = asyncio.create_task(chaos(asked))
        stopped = asyncio.create_task(stops.asked.wait())
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if working.done():
            return working.result()
        working.cancel()
        await asyncio.wait([working])
        return None


if __name__ == "__main__":
    sys.exit(main())
