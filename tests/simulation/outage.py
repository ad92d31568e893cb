"""One outage of the store, by seed: how long, who reaches it again and who does not, and what NATS does meanwhile.

Jobs run that never end by themselves. Nothing else goes wrong, so that what the outage does can be told: no rank may
run twice at once, and where nobody can be given what runs, nothing that runs may end.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from tests.simulation.history import dice
from tests.simulation.machine import DO, Plan
from tests.simulation.simulate import Variation, World
from weft.messages.asks import AskKind

BEGIN_SECONDS = 25.0
AFTER_SECONDS = 60.0
SLACK_SECONDS = 5.0  # since the last renewal before it, and by how much clocks go wrong


class Outage(Struct, frozen=True, kw_only=True):
    """`cut`: the schedulers that do not reach the store for `cut_seconds` more than the others; 0 is the leader."""

    schedulers: int
    hangs: bool
    seconds: float
    cut: tuple[int, ...]
    cut_seconds: float
    split: bool  # NATS, from its beginning to the end of `cut_seconds`
    newcomer_at: float | None  # a scheduler that nobody knows begins so long after its beginning
    killed: int | None

    def spares(self, *, holds_seconds: float) -> bool:
        """Must all that runs run on? Whoever might lead is heard, and the store is back in time for somebody."""
        for_all = len(self.cut) == self.schedulers and self.newcomer_at is None
        seconds = self.seconds + (self.cut_seconds if for_all else 0.0)
        return not self.split and self.killed is None and seconds + SLACK_SECONDS < holds_seconds


def outage_of(seed: int) -> Outage:
    thrown = dice(seed, "outage")
    schedulers = thrown.choice([1, 1, 2, 3])
    return Outage(
        schedulers=schedulers,
        hangs=thrown.random() < 0.3,
        seconds=thrown.choice([2.0, 15.0, 40.0, 100.0]) * thrown.uniform(0.5, 1.0),
        cut=tuple(number for number in range(schedulers) if thrown.random() < (0.4 if number else 0.8)),
        cut_seconds=thrown.uniform(20.0, 180.0),
        split=thrown.random() < 0.7,
        newcomer_at=thrown.uniform(0.0, 10.0) if thrown.random() < 0.6 else None,
        killed=thrown.randrange(schedulers) if thrown.random() < 0.15 else None,
    )


def through_an_outage(*, replaced: tuple[tuple[Any, str, Any], ...] = (), **shape: Any) -> Variation:
    """A life with one outage and nothing else. `shape`: what is other than the seed has it."""
    usual = {"nodes": 5, "gpus": 2, "gateways": 1, "nats_servers": 2, "scores": (1.0,)}
    times = {"fence_seconds": 12.0, "fence_grace_max": 4.0, "drift_seconds": 4.0, "lease_seconds": 24.0}
    return Variation(replaced=replaced, shape={**usual, **times, **shape}, live=_live, shape_by_seed=_schedulers)


def _schedulers(seed: int) -> dict[str, Any]:
    return {"schedulers": outage_of(seed).schedulers}


def _server_of(seed: int) -> Callable[[str], int]:
    """On which side of a split each process is: most schedulers on one, and most nodes on the other."""

    def server_of(name: str) -> int:
        kind, number = name.split(".")[0].rstrip("0123456789"), name.split(".")[0]
        chance = {"scheduler-": 0.3, "executor-node-": 0.7}.get(kind, 0.5)
        return 2 if dice(seed, "side", number).random() < chance else 1

    return server_of


async def _live(world: World) -> None:
    outage, cluster = outage_of(world.seed), world.cluster
    cluster.network.server_of = _server_of(world.seed)
    cluster.history.note("world", f"{outage} {cluster.shape}")
    await cluster.let_clients_in()
    cluster.begin()
    await asyncio.sleep(6.0)
    client = world.make_client()
    for number in range(1, 9):
        world.begin(client.submit(_endless(number), keyed=True))
    await asyncio.sleep(BEGIN_SECONDS)
    await _happen(world, outage)
    await asyncio.sleep(AFTER_SECONDS)
    if outage.spares(holds_seconds=cluster.shape.holds_seconds) and cluster.history.counts["cut off"]:
        cluster.history.fail(f"ended by the outage: {cluster.history.counts['cut off']} jobs")
    for job_id in sorted(cluster.witness.acknowledged):
        world.begin(client.ask(AskKind.CANCEL, job_id))
    await world.end()


async def _happen(world: World, outage: Outage) -> None:
    cluster = world.cluster
    lease = await cluster.database.store.lease("default")
    schedulers = [one for one in cluster.services if one.name.startswith("scheduler") and one.life is not None]
    schedulers.sort(key=lambda one: one.life is None or lease is None or one.life.place.name != lease.holder)
    cluster.network.split = outage.split
    cluster.database.hangs = outage.hangs
    if not outage.hangs:
        cluster.database.go_down()
    for number in outage.cut:
        if (life := schedulers[number].life) is not None:
            life.store.cut()
            cluster.later(outage.seconds + outage.cut_seconds, life.store.heal)
    if outage.newcomer_at is not None:
        cluster.later(outage.newcomer_at, cluster.add_scheduler)
    if outage.killed is not None:
        schedulers[outage.killed].kill(down_seconds=1e6)
    await asyncio.sleep(outage.seconds)
    cluster.database.hangs = False
    cluster.database.come_up()
    await asyncio.sleep(outage.cut_seconds)
    cluster.network.split = False
    world.trouble.heal()


def _endless(number: int) -> dict[str, Any]:
    plan = Plan(tries=({"seconds": None},))
    return {
        "name": f"job-{number}",
        "kind": "training",
        "command": ["true"],
        "env": {DO: msgspec.json.encode(plan).decode()},
        "roles": {"worker": {"replicas": {"want": 1}, "gpus": 1, "cpus": 1.0, "memory": "1GiB"}},
        "grace": "1s",
    }
