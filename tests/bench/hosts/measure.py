"""Many hosts: `python -m tests.bench hosts [--quick] [--seed N]`.

Pools of 1,000 emulated nodes with 8 GPUs, up to ten of them, over a real NATS, a real Postgres, real schedulers and a
real gateway; in each size: nodes join, rest, get jobs, and one is switched off. Then a scheduler is killed.
The method, the aims with their reasons, and the limits are in tests/bench/measured/hosts.md.

The seed draws the node that is switched off and the sizes of the jobs. The last line is one JSON object with the aims.
"""

import argparse
import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct, structs

from tests.bench.figures import Aim, line_of, quantile
from tests.bench.hosts.nodes import Count
from tests.bench.hosts.world import Used, World, job_id, world
from tests.support.builders import spec
from weft.domain.quantity import duration_text

GPUS, SYNC_SECONDS = 8, 2.0
LEASE_SECONDS, LEADER_SECONDS = 20.0, 6.0
RUN_SECONDS = 10.0
LOST_SECONDS_MAX = 4 * LEASE_SECONDS
JOIN_SECONDS_MAX, PLACE_SECONDS_MAX = 240.0, 240.0
HTTP_SUBMISSIONS = 200
PLACED_AIM, KNOWN_AIM, LATE_AIM, LED_AIM = 500.0, LEASE_SECONDS + 5.0, 0.01, 2 * LEADER_SECONDS


class Plan(Struct, frozen=True, kw_only=True):
    """`pools`: how many pools there are in each of the sizes that are measured."""

    pools: tuple[int, ...]
    nodes: int
    jobs: int  # in each size
    rest_seconds: float
    schedulers: int


FULL = Plan(pools=(1, 3, 10), nodes=1000, jobs=5000, rest_seconds=20.0, schedulers=2)
QUICK = Plan(pools=(1, 3), nodes=100, jobs=300, rest_seconds=6.0, schedulers=2)


class Measured(Struct, frozen=True, kw_only=True):
    """Of one size. Times in seconds; CPU in seconds a second."""

    pools: int
    nodes: int
    joined: float
    late: float
    placed_rate: float
    lost_known: float


async def measured(
    plan: Plan, *, seed: int, say: Callable[[str], None], profiles: Path | None = None
) -> dict[str, Aim]:
    dice, aims = Random(seed), {}
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        async with world(Path(folder)) as there:
            there.profiles = profiles
            names = [f"p{number}" for number in range(1, max(plan.pools) + 1)]
            for number in range(1, plan.schedulers + 1):
                await there.schedule(f"scheduler {number}", settings_of(names))
            await there.serve()
            found: list[Measured] = []
            before = 0
            for size in plan.pools:
                found.append(await _Size(there, plan, names[:size], names[before:size], dice, say).measure())
                before = size
            led = await _leader_killed(there, names, say) if plan.schedulers > 1 else None
    for one in found:
        of = f"{one.pools}x{one.nodes}"
        aims[f"placed_per_second {of}"] = Aim(value=round(one.placed_rate, 1), aim=PLACED_AIM, at_least=True)
        aims[f"lost_host_known_seconds {of}"] = Aim(value=round(one.lost_known, 1), aim=KNOWN_AIM)
        aims[f"answers_late_part {of}"] = Aim(value=round(one.late, 4), aim=LATE_AIM)
    if led is not None:
        aims["pools_led_again_seconds"] = Aim(value=round(led, 1), aim=LED_AIM)
    return aims


def settings_of(pools: Sequence[str]) -> dict[str, str]:
    return {
        "SCHEDULER_POOLS": ",".join(pools),
        "SCHEDULER_LEASE_SECONDS": str(LEASE_SECONDS),
        "SCHEDULER_LEADER_SECONDS": str(LEADER_SECONDS),
    }


class _Size:
    def __init__(
        self,
        there: World,
        plan: Plan,
        pools: Sequence[str],
        new: Sequence[str],
        dice: Random,
        say: Callable[[str], None],
    ) -> None:
        self.there, self.plan, self.pools, self.new, self.dice, self.say = there, plan, pools, new, dice, say
        self.nodes = len(pools) * plan.nodes

    async def measure(self) -> Measured:
        self.say(f"\n{len(self.pools)} pools of {self.plan.nodes} emulated nodes × {GPUS} GPUs")
        joined = await self._join()
        late = await self._rest()
        placed = await self._place()
        await self._submit_over_http()
        known = await self._lose_a_host()
        return Measured(
            pools=len(self.pools),
            nodes=self.plan.nodes,
            joined=joined,
            late=late,
            placed_rate=placed,
            lost_known=known,
        )

    async def _join(self) -> float:
        began = time.monotonic()
        await self.there.add_nodes(self.new, self.plan.nodes, gpus=GPUS, sync=SYNC_SECONDS, runs=RUN_SECONDS)
        there_are = "SELECT count(*) FROM nodes WHERE ready"
        await self._until(there_are, self.nodes - self._switched_off, seconds_max=JOIN_SECONDS_MAX)
        took = time.monotonic() - began
        self.say(f"{len(self.new) * self.plan.nodes} nodes joined in {took:.1f} s")
        return took

    async def _rest(self) -> float:
        """Nothing runs: what the reports alone cost. Returns the part of the reports that got no answer in time."""
        await asyncio.sleep(2 * SYNC_SECONDS)
        count, before, after = await self._window(self.plan.rest_seconds)
        seconds = after.at - before.at
        self._tell("at rest", count, before, after)
        self.say(f"  memory, MiB: {_shown(self.there.memory(), '.0f')}")
        wanted = self.nodes / SYNC_SECONDS
        self.say(f"  reports answered: {count.answered / seconds:,.0f}/s of {wanted:,.0f}/s that are due")
        return count.late / max(1, count.reported)

    async def _place(self) -> float:
        """A burst of jobs of one or two GPUs over all pools; all fit. Returns how many were placed in a second."""
        wanted = [
            spec(gpus=self.dice.choice((1, 2)), pool=self.pools[number % len(self.pools)])
            for number in range(self.plan.jobs)
        ]
        placed = "SELECT count(*) FROM events WHERE event = 'placed'"
        already = await self.there.value(placed)
        await self.there.count()
        before = await self.there.used()
        began = time.monotonic()
        store = self.there.stores.gateway
        await asyncio.gather(
            *(store.submit(one, job_id=job_id(), tenant="bench", key=None, at=time.time()) for one in wanted)
        )
        submitted = time.monotonic() - began
        await self._until(placed, already + len(wanted), seconds_max=PLACE_SECONDS_MAX)
        took = time.monotonic() - began
        await self._until("SELECT count(*) FROM jobs WHERE state IN ('placed', 'starting')", 0, seconds_max=60.0)
        after, count = await self.there.used(), await self.there.count()
        self._tell(f"{len(wanted)} jobs stored in {submitted:.1f} s, placed in {took:.1f} s", count, before, after)
        each = {name: 1000 * (used - before.cpu.get(name, 0.0)) / len(wanted) for name, used in after.cpu.items()}
        self.say(f"  CPU of a job, ms: {_shown(each, '.2f')}")
        await self._until(
            "SELECT count(*) FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')", 0, seconds_max=120.0
        )
        return len(wanted) / took

    async def _submit_over_http(self) -> None:
        client = self.there.client
        assert client is not None
        took: list[float] = []
        limit = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with limit:
                began = time.monotonic()
                await client.submit(spec(pool=self.pools[number % len(self.pools)]))
                took.append(time.monotonic() - began)

        began = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(HTTP_SUBMISSIONS)))
        rate = HTTP_SUBMISSIONS / (time.monotonic() - began)
        p50, p99 = (quantile(took, part) * 1000 for part in (0.5, 0.99))
        self.say(
            f"{HTTP_SUBMISSIONS} submissions over HTTP, 16 at once: {rate:.0f}/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        )

    async def _lose_a_host(self) -> float:
        """A node of the newest pool with a job is switched off. Returns after how long its loss was stored."""
        name = f"{self.new[-1]}-{self.dice.randrange(self.plan.nodes)}"
        began = time.monotonic()
        await asyncio.gather(*(one.silence(name) for one in self.there.emulated[-1:]))
        lost = "SELECT count(*) FROM events WHERE topic = 'nodes' AND event = 'lost' AND subject_id = $1"
        found = True
        try:
            await self._until(lost, 1, name, seconds_max=LOST_SECONDS_MAX)
        except TimeoutError:  # that is what is measured
            found = False
        took = time.monotonic() - began
        known = "known to be lost" if found else "not known to be lost"
        self.say(f"a host that was switched off is {known} after {took:.1f} s (lease {LEASE_SECONDS:g} s)")
        return took

    @property
    def _switched_off(self) -> int:
        return len(self.there.emulated) - 1  # one in each size before

    async def _window(self, seconds: float) -> tuple[Count, Used, Used]:
        await self.there.count()
        before = await self.there.used()
        await asyncio.sleep(seconds)
        after = await self.there.used()
        return await self.there.count(), before, after

    def _tell(self, what: str, count: Count, before: Used, after: Used) -> None:
        seconds = after.at - before.at
        self.say(f"{what}: {_answered(count)}")
        cpu = {name: 100 * (used - before.cpu.get(name, 0.0)) / seconds for name, used in after.cpu.items()}
        self.say(f"  CPU, % of a core: {_shown(cpu, '.0f')}")
        carried = {name: (after.carried[name] - before.carried[name]) / seconds for name in after.carried}
        self.say(
            f"  NATS: {carried['in_msgs']:,.0f} messages/s in, {carried['out_msgs']:,.0f}/s out;"
            f" {carried['in_bytes'] / 1e6:.2f} MB/s in, {carried['out_bytes'] / 1e6:.2f} MB/s out"
        )

    async def _until(self, query: str, value: int, *arguments: object, seconds_max: float) -> None:
        found: Any = None
        try:
            async with asyncio.timeout(seconds_max):
                while (found := await self.there.value(query, *arguments)) != value:  # noqa: ASYNC110 -- others write it
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise TimeoutError(f"{query}: {found} instead of {value} after {duration_text(seconds_max)}") from error


async def _leader_killed(there: World, pools: Sequence[str], say: Callable[[str], None]) -> float:
    """The scheduler that leads most is killed. Returns after how long the last of its pools was led again."""
    leaders = "SELECT name, holder, epoch FROM leases WHERE name = ANY ($1::text[])"
    before = {row["name"]: row for row in await there.stores.owner.fetch(leaders, list(pools))}
    led = {
        name: [pool for pool, row in before.items() if f"-{one.pid}-" in row["holder"]]
        for name, one in there.schedulers.items()
    }
    say(f"\npools led: {', '.join(f'{name}: {len(of)}' for name, of in led.items())}")
    name = max(led, key=lambda each: len(led[each]))
    process = there.schedulers[name]
    process.send_signal(signal.SIGKILL)
    began = time.monotonic()
    async with asyncio.timeout(10 * LEADER_SECONDS):
        while True:
            now = {row["name"]: row for row in await there.stores.owner.fetch(leaders, list(pools))}
            if all(now[pool]["epoch"] > before[pool]["epoch"] and now[pool]["holder"] for pool in led[name]):
                break
            await asyncio.sleep(0.05)
    took = time.monotonic() - began
    say(f"{name} was killed: its {len(led[name])} pools are led again after {took:.1f} s")
    return took


def _answered(count: Count) -> str:
    p50, p99 = (quantile(count.seconds, part) * 1000 for part in (0.5, 0.99))
    return (
        f"{count.reported} reports, {count.answered} answered (p50 {p50:.0f} ms, p99 {p99:.0f} ms), {count.late} late,"
        f" {count.refused} refused; {count.started} runs started, {count.ended} ended"
    )


def _shown(values: dict[str, float], how: str) -> str:
    return ", ".join(f"{name} {value:{how}}" for name, value in values.items())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench hosts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="pools of 100 nodes, at most three")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pools", type=int, action="append", help="only this size; may be given again")
    parser.add_argument("--nodes", type=int, help="number of nodes of each pool")
    parser.add_argument("--schedulers", type=int, help="number of schedulers that share the pools")
    parser.add_argument(
        "--profile", type=Path, metavar="FOLDER", help="folder for a profile (cProfile) of each scheduler"
    )
    chosen = parser.parse_args(arguments)
    plan = QUICK if chosen.quick else FULL
    plan = structs.replace(
        plan,
        pools=tuple(sorted(chosen.pools or plan.pools)),
        nodes=chosen.nodes or plan.nodes,
        schedulers=chosen.schedulers or plan.schedulers,
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, which the emulated nodes share")
    aims = asyncio.run(
        measured(plan, seed=chosen.seed, say=lambda line: print(line, flush=True), profiles=chosen.profile)
    )
    print(line_of(aims, seed=chosen.seed))
    return 0
