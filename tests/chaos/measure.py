"""How long until jobs are placed again, server by server: `python -m tests.chaos.measure --rounds 3`.

One fault at a time, in calm, on a cluster with three NATS servers and a Postgres with a standby; with `--hosts 3` over
the hosts of a laboratory, host by host. Beside it jobs are submitted one after another, each with its key until it is
acknowledged. Its last line is one JSON object.
"""

import argparse
import asyncio
import statistics
import sys
from collections import defaultdict

import msgspec
from msgspec import Struct

from tests.chaos.clock import boot_clock
from tests.chaos.deeds import Deeds
from tests.chaos.faults import HOSTS, LEADER, PRIMARY, STANDBY, Fault
from tests.chaos.hosts import HostsWorld
from tests.chaos.world import world
from tests.hosts.laboratory import why_no_laboratory
from tests.support.builders import spec
from weft.client import Client, ClientError
from weft.domain.job import FINAL

ANSWER_SECONDS_MAX = 3.0
OVER_SECONDS_MAX = 180.0
PAUSE_SECONDS = 0.1
CALM_SECONDS = 6.0
NOTHING = "nothing"

# What is done, and for how long: the primary is promoted, or a server started again, so many seconds later.
STRUCK = (
    (NOTHING, "nats", 0.0),
    ("kill one", "nats", 15.0),
    ("kill two", "nats", 15.0),
    ("split", "nats", 15.0),
    ("freeze one", "nats", 15.0),
    ("kill", "postgres", 0.0),
    ("fail over", "postgres", 0.0),
    ("fail over", "postgres", 5.0),
    ("freeze standby", "postgres", 5.0),
)
# The primary of a host that is switched off is promoted elsewhere 2 s later.
STRUCK_HOSTS = (
    (NOTHING, "nats", 0.0),
    ("switch off", LEADER, 10.0),
    ("switch off", PRIMARY, 10.0),
    ("switch off", STANDBY, 10.0),
    ("switch off", HOSTS[2], 10.0),
    ("kill one", "nats", 10.0),
    ("kill two", "nats", 10.0),
    ("split off", LEADER, 10.0),
    ("split off with users", LEADER, 10.0),
    ("deafen", LEADER, 10.0),
    ("silence", LEADER, 10.0),
    ("spoil", LEADER, 10.0),
    ("clock ahead", LEADER, 10.0),
    ("clock behind", LEADER, 10.0),
)


class Probe(Struct, frozen=True, kw_only=True):
    """Seconds from the fault to when the first job submitted after it was acknowledged, and to when it ran."""

    acknowledged: float
    ran: float


async def measure(rounds: int, only: str, *, hosts: bool) -> dict[str, list[Probe]]:
    found = defaultdict(list)
    async with (
        world(failover=True, make=HostsWorld if hosts else None) as made,
        Client(made.url, made.token, retry_seconds=0.0) as client,
    ):
        deeds = Deeds(made, print)
        for number in range(rounds):
            for what, target, seconds in STRUCK_HOSTS if hosts else STRUCK:
                if not target.startswith(only):
                    continue
                fault = Fault(at=number / 1000, what=what, target=target, seconds=seconds)
                name = f"{number}-{what}-{target}-{seconds:g}".replace(" ", "-")
                probe = await _struck(deeds, client, fault, name)
                found[f"{target}: {what}, {seconds:g} s"].append(probe)
                print(f"{target}: {what}, {seconds:g} s: {probe}", flush=True)
                await asyncio.sleep(CALM_SECONDS)
    return dict(found)


async def _struck(deeds: Deeds, client: Client, fault: Fault, name: str) -> Probe:
    began = boot_clock()
    doing = asyncio.create_task(deeds.once(fault)) if fault.what != NOTHING else None
    await asyncio.sleep(PAUSE_SECONDS)  # so that the fault is on when the job is submitted
    async with asyncio.timeout(OVER_SECONDS_MAX):
        job_id = await _acknowledged(client, name)
        acknowledged = boot_clock() - began
        while not await _ran(client, job_id):  # noqa: ASYNC110 - it runs elsewhere
            await asyncio.sleep(PAUSE_SECONDS)
        ran = boot_clock() - began
        if doing is not None:
            await doing
            assert not deeds.done[-1].failed, deeds.done[-1]
    return Probe(acknowledged=round(acknowledged, 1), ran=round(ran, 1))


async def _acknowledged(client: Client, name: str) -> str:
    while True:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return (await client.submit(spec(name, gpus=1, command=["true"]), key=name)).id
        except (ClientError, TimeoutError):
            await asyncio.sleep(PAUSE_SECONDS)


async def _ran(client: Client, job_id: str) -> bool:
    """It is over: it takes no time of its own."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return (await client.job(job_id)).state in FINAL
    except (ClientError, TimeoutError):
        return False


def table(found: dict[str, list[Probe]]) -> str:
    rows = ["| what was done | acknowledged again after | ran after |", "|---|---|---|"]
    for what, probes in found.items():
        cells = [_spread([getattr(probe, name) for probe in probes]) for name in ("acknowledged", "ran")]
        rows.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.measure", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("", "nats", "postgres", "host"), default="")
    parser.add_argument("--hosts", type=int, choices=(0, 3), default=0, help="over hosts of a laboratory (needs root)")
    asked = parser.parse_args()
    if asked.hosts and (why := why_no_laboratory(engines=False)):
        parser.error(f"--hosts: {why}")
    found = asyncio.run(measure(asked.rounds, asked.only, hosts=bool(asked.hosts)))
    print(table(found))
    print(msgspec.json.encode(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
