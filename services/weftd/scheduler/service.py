"""Runs the scheduler: wires its parts to the bus and the store, and starts its loops."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from weft.bus import Bus, NoAnswerError
from weft.messages.asks import AskStored, OutboxFilled
from weft.messages.leaders import LeadershipTold
from weft.messages.nodes import NodeReported
from weft.messages.signals import ClassesLearnt, GpusScored
from weft.service.run import Answer, Every, Listen, serve
from weft.store import SchedulerStore, StoreUnavailableError
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.leading import Leading
from weftd.scheduler.outbox import OutboxPublisher
from weftd.scheduler.retention import FORGET_SECONDS, Retention
from weftd.scheduler.scheduler_loop import POLL_SECONDS, SchedulerLoop
from weftd.scheduler.settings import DAY, SchedulerSettings
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.peers import SPEAK_SECONDS
from weftd.scheduler.thinking.pool_balancer import PoolBalancer

TRIM_SECONDS = 60.0
CYCLE_REST = 0.5  # a busy leader decides on more at once; short, because nodes wait for its answers
RELAY_REST = 4.0  # a batch of any size costs the stream some milliseconds
UNAVAILABLE = (StoreUnavailableError, NoAnswerError)


class _Pool:
    """All parts of one pool, led or not."""

    def __init__(
        self,
        name: str,
        settings: SchedulerSettings,
        *,
        bus: Bus,
        store: SchedulerStore,
        holder: str,
        clock: Callable[[], float],
        counters: Counters,
        outbox_filled: asyncio.Event,
    ) -> None:
        self.name = name
        self._bus = bus
        self.leadership = Leadership(
            name=name,
            holder=holder,
            store=store,
            clock=clock,
            leader_seconds=settings.leader_seconds,
            holds_seconds=settings.holds_seconds,
            connection=lambda: bus.connection,
        )
        self.scheduler_loop = SchedulerLoop(
            core=Scheduler(pool=name, settings=settings.core),
            store=store,
            bus=bus,
            leadership=self.leadership,
            clock=clock,
            counters=counters,
            retention=settings.retention,
            obeys_quotas=settings.quotas,
            outbox_filled=outbox_filled,
        )
        self.retention = Retention(
            store=store, leadership=self.leadership, clock=clock, kept_seconds=settings.jobs_kept_days * DAY or None
        )

    async def hear_ask(self, _: AskStored) -> None:
        self.scheduler_loop.asked()

    async def hear_scores(self, scored: GpusScored) -> None:
        self.scheduler_loop.scored(scored)

    async def hear_classes(self, learnt: ClassesLearnt) -> None:
        self.scheduler_loop.learnt(learnt)

    async def speak(self) -> None:
        await self._bus.publish(self.leadership.tell())

    def listens(self, hear_told: Callable[[LeadershipTold], Any]) -> Sequence[Listen[Any]]:
        tokens = {"pool": self.name}
        return [
            Listen(AskStored, self.hear_ask, group="", tokens=tokens),
            Listen(LeadershipTold, hear_told, group="", tokens=tokens),
            Listen(GpusScored, self.hear_scores, group="", tokens=tokens),
            Listen(ClassesLearnt, self.hear_classes, group="", tokens=tokens),
        ]

    def answer(self) -> Answer[NodeReported]:
        return Answer(
            NodeReported,
            self.scheduler_loop.report,
            group="",
            at_once=4096,
            tokens={"pool": self.name},
            wanted=lambda: self.leadership.may_answer,
        )

    def loops(self) -> Sequence[Every]:
        scheduler_loop = self.scheduler_loop
        return [
            Every(SPEAK_SECONDS, self.speak, wake=self.leadership.spoken, name="speak"),
            Every(
                POLL_SECONDS,
                scheduler_loop.cycle,
                wake=scheduler_loop.wake,
                retry_on=UNAVAILABLE,
                name="scheduler-loop",
                rest=CYCLE_REST,
            ),
            Every(TRIM_SECONDS, scheduler_loop.trim, retry_on=UNAVAILABLE, name="trim"),
            Every(FORGET_SECONDS, self.retention.cycle, retry_on=UNAVAILABLE, name="forget"),
        ]


async def run(
    settings: SchedulerSettings,
    *,
    bus: Bus,
    store: SchedulerStore,
    stop: asyncio.Event,
    holder: str,
    clock: Callable[[], float],
) -> None:
    """Serve the pools of these settings until `stop`; `holder` names this process among their schedulers."""
    counters, outbox_filled = Counters(), asyncio.Event()
    pools = {
        name: _Pool(
            name,
            settings,
            bus=bus,
            store=store,
            holder=holder,
            clock=clock,
            counters=counters,
            outbox_filled=outbox_filled,
        )
        for name in settings.all_pools
    }
    balancer = PoolBalancer(
        name=holder,
        pools=settings.all_pools,
        began_at=clock(),
        yield_seconds=settings.leader_seconds / 2,
        even_seconds=settings.even_seconds,
    )
    leading = Leading(
        leaderships={name: pool.leadership for name, pool in pools.items()},
        balancer=balancer,
        clock=clock,
        taken=lambda name: pools[name].scheduler_loop.wake.set(),
        left=counters.leads_no_more,
    )
    outbox = OutboxPublisher(store=store, bus=bus, clock=clock)
    relays = pools[min(pools)].leadership  # of schedulers that share their pools one publishes the events of all
    counters.watch_outbox(lambda: outbox.waiting)

    async def hear_outbox(_: OutboxFilled) -> None:
        outbox_filled.set()

    async def hear_told(told: LeadershipTold) -> None:
        if (pool := pools.get(told.pool)) is not None:
            balancer.hear(told, clock())
            pool.leadership.hear_told(told)

    async def relay_turn() -> None:
        outbox_filled.clear()
        if relays.lease is None:
            outbox.waiting = 0  # the leader counts them
            return
        await outbox.cycle()

    try:
        await serve(
            "scheduler",
            bus=bus,
            stop=stop,
            listens=[
                Listen(OutboxFilled, hear_outbox, group=""),
                *(listen for pool in pools.values() for listen in pool.listens(hear_told)),
            ],
            answers=[pool.answer() for pool in pools.values()],
            loops=[
                Every(settings.leader_seconds / 4, leading.cycle, wake=leading.wake, retry_on=UNAVAILABLE, name="lead"),
                Every(
                    POLL_SECONDS, relay_turn, wake=outbox_filled, retry_on=UNAVAILABLE, name="relay", rest=RELAY_REST
                ),
                *(loop for pool in pools.values() for loop in pool.loops()),
            ],
            registry=counters.registry,
            admin_port=settings.admin_port,
            admin_host=settings.admin_host,
            reports=True,
            leads=lambda: leading.led,
        )
    finally:
        with suppress(StoreUnavailableError):  # without the release the next leader waits a little longer
            for pool in pools.values():
                await pool.leadership.resign()
