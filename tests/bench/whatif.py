"""What-ifs: `python -m tests.bench whatif [--quick] [--seed N]`.

*Back-test*: the scheduler's core leads emulated nodes through a day in virtual time; the jobs are exported as a trace,
the trace is replayed in the simulator under the same policy, and the starts of both are compared. *Speed*: a gateway
over a real Postgres with 10,000 queued jobs is asked; meanwhile another tenant reads, and its latency is measured.

The seed draws the jobs of the day. The last line is one JSON object with the aims.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from statistics import median

from msgspec import Struct, structs

from tests.bench.figures import Aim, line_of, quantile
from tests.support.builders import job
from tests.support.gateway import place
from tests.support.large import OTHER, TENANT, large
from tests.support.scheduler import World, world
from weft.client import Client
from weft.domain.job import Job, JobState
from weft.messages.whatif import WhatIfWanted
from weft.planning.eta.learnt import Lasted
from weft.planning.policy import Policy
from weft.simulator import traces
from weft.simulator.model import Cluster
from weft.simulator.model import World as SimulatedWorld
from weft.simulator.run import simulate
from weft.simulator.whatif.durations import Assumptions
from weft.simulator.whatif.trace import csv_of, row_of
from weftd.scheduler.thinking.core_settings import Settings

NODES, GPUS = 4, 8
SYNC_SECONDS = 5.0  # between two reports of a node
JOBS_PER_HOUR = 20.0
WITHIN_SECONDS = (15.0, 60.0, 300.0)
QUEUED, LARGE_NODES = 10_000, 128
POLICIES = (Policy("fifo", "packed-sticky", "easy"), Policy("priority", "weft-best", "easy"))
ASKED = (
    ("more nodes", WhatIfWanted(add_nodes=2)),
    ("fifo", WhatIfWanted(order="fifo")),
    ("las", WhatIfWanted(order="las")),
)


class Agreement(Struct, frozen=True, kw_only=True):
    """How closely two lives of the same jobs agree. Seconds."""

    jobs: int
    waited: int
    within: dict[float, float]
    median_s: float
    p90_s: float
    median_wait_s: float
    waiting_there_s: float
    waiting_here_s: float


# the back-test


def day(policy: Policy, *, hours: float, seed: int) -> list[Job]:
    """The jobs of a day, as the store has them: the production core, on nodes that report every few seconds."""
    dice = Random(seed)
    there = world(nodes=NODES, gpus=GPUS, settings=Settings(policy=policy))
    lasts: dict[str, float] = {}
    done: dict[str, float] = {}
    arrivals = sorted(dice.uniform(0, hours * 3600) for _ in range(round(JOBS_PER_HOUR * hours)))
    while arrivals or there.open_jobs():
        there.tick(SYNC_SECONDS)
        while arrivals and arrivals[0] <= there.now:
            _submit(there, arrivals.pop(0), dice, lasts)
        for name, one in there.nodes.items():
            for key in one.live:
                done[key[0]] = there.now - one.runs[key].started_at if one.runs[key].started_at else 0.0
                if done[key[0]] >= lasts[key[0]]:
                    one.end(key, 0)
            there.sync(name)
    return list(there.stored.values())


def _submit(there: World, at: float, dice: Random, lasts: dict[str, float]) -> None:
    there.seq += 1
    seconds = min(6 * 3600.0, 60.0 * 2 ** dice.uniform(0, 9))
    limit = {"time_limit": f"{round(seconds * dice.choice((1.2, 2.0, 4.0)))}s"} if dice.random() < 0.7 else {}
    gpus = dice.choice((1, 1, 1, 1, 2, 2, 4, 8))
    made = job(f"j-{there.seq:05d}", seq=there.seq, gpus=gpus, since=there.now, spec=limit)
    made = structs.replace(made, submitted_at=at)
    lasts[made.id] = seconds
    there.stored[made.id] = made
    there.core.admit([made])


def replayed(jobs: Sequence[Job], policy: Policy, folder: Path) -> Agreement:
    """The same jobs, exported and simulated; how closely their starts agree."""
    assumptions = Assumptions(Lasted())
    now = max(one.ended_at or 0.0 for one in jobs)
    rows = [row for one in jobs if (row := row_of(one, assumptions, {}, now=now)) is not None]
    path = folder / "day.csv"
    path.write_text(csv_of(rows))
    workload = traces.read(path)
    outcome = simulate(
        workload,
        Cluster(nodes=NODES, gpus_per_node=GPUS),
        policy,
        SimulatedWorld(penalty=1.0, patience_s=300.0),
        keep_spells=False,
    )
    here = {one.id: one.started_s for one in outcome.jobs}
    pairs = [(one.started_s - one.arrival_s, here[one.id] - one.arrival_s) for one in workload.jobs if one.started_s]
    apart = [abs(one - other) for one, other in pairs]
    waits = [wait for wait, _ in pairs if wait > 3 * SYNC_SECONDS]
    return Agreement(
        jobs=len(pairs),
        waited=len(waits),
        within={bound: sum(one <= bound for one in apart) / len(apart) for bound in WITHIN_SECONDS},
        median_s=median(apart),
        p90_s=quantile(apart, 0.9),
        median_wait_s=median(waits) if waits else 0.0,
        waiting_there_s=sum(wait for wait, _ in pairs) / len(pairs),
        waiting_here_s=sum(wait for _, wait in pairs) / len(pairs),
    )


# how fast, and beside whom


async def asked_of_many(folder: Path) -> tuple[dict[str, float], list[float], list[float]]:
    """Seconds of each what-if; and the latency of another tenant's reads, before and meanwhile."""
    took: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(place(folder))
        made = await stack.enter_async_context(large(servers, nodes=LARGE_NODES, queued=QUEUED))
        asks = await stack.enter_async_context(made.gateway.client(made.tokens[TENANT]))
        reads = await stack.enter_async_context(made.gateway.client(made.tokens[OTHER]))
        await asks.what_if(WhatIfWanted())  # the first reads the snapshots
        alone = await _reads(reads, seconds=3.0)
        beside: list[float] = []
        for name, wanted in ASKED:
            reading = asyncio.create_task(_reads(reads, seconds=60.0))
            began = time.perf_counter()
            view = await asks.what_if(wanted)
            took[name] = time.perf_counter() - began
            reading.cancel()
            beside += await reading
            print(f"{name}: {took[name]:.2f} s; {view.sentence}", flush=True)
    return took, alone, beside


async def _reads(client: Client, *, seconds: float) -> list[float]:
    """The seconds of each read, one after the other, until the time is up or the task is cancelled."""
    found: list[float] = []
    try:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            await client.jobs(limit=1)
            found.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        pass
    return found


def _latency(seconds: Sequence[float]) -> str:
    return f"p50 {quantile(seconds, 0.5) * 1000:.1f} ms, p99 {quantile(seconds, 0.99) * 1000:.0f} ms"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench whatif", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four hours instead of a day")
    parser.add_argument("--no-gateway", action="store_true", help="the back-test alone")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    aims: dict[str, Aim] = {}
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as home:
        for policy in POLICIES:
            jobs = day(policy, hours=4.0 if chosen.quick else 24.0, seed=chosen.seed)
            assert all(one.state is JobState.SUCCEEDED for one in jobs)
            found = replayed(jobs, policy, Path(home))
            within = ", ".join(f"{part:.1%} within {bound:g} s" for bound, part in found.within.items())
            print(
                f"{policy}: {found.jobs} jobs, of which {found.waited} waited (median {found.median_wait_s:.0f} s):"
                f" {within}; starts differ by {found.median_s:.1f} s (median), {found.p90_s:.0f} s (p90);"
                f" mean wait {found.waiting_there_s:.0f} s, replayed {found.waiting_here_s:.0f} s",
                flush=True,
            )
            aims[f"starts_agree {policy}"] = Aim(value=round(found.within[60.0], 3), aim=0.9, at_least=True)
        if chosen.no_gateway:
            print(line_of(aims, seed=chosen.seed))
            return 0
        took, alone, beside = asyncio.run(asked_of_many(Path(home) / "large"))
    print(
        f"another tenant's reads: alone {_latency(alone)}; beside what-ifs {_latency(beside)}"
        f" ({len(beside)} reads); load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    aims["what_if_seconds_at_10000"] = Aim(value=round(max(took.values()), 2), aim=5.0)
    print(line_of(aims, seed=chosen.seed))
    return 0
