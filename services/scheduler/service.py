"""Runs the scheduler: wires its parts to the bus and the store, and starts its loops."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from libs.bus import Bus, NoAnswerError
from libs.messages.asks import AskStored, OutboxFilled
from libs.messages.leaders import LeadershipTold
from libs.messages.nodes import NodeReported
from libs.messages.signals import ClassesLearnt, GpusScored
from libs.service.run import Answer, Every, Listen, serve
from libs.store import SchedulerStore, StoreUnavailableError
from services.scheduler.desk import POLL_SECONDS, Desk
from services.scheduler.forgetting import FORGET_SECONDS, Forgetting
from services.scheduler.leadership import Leadership
from services.scheduler.relay import Relay
from services.scheduler.settings import DAY, SchedulerSettings
from services.scheduler.tally import Tally
from services.scheduler.thinking.core import Scheduler
from services.scheduler.thinking.peers import SPEAK_SECONDS

TRIM_SECONDS = 60.0
TURN_REST = 0.5  # a busy leader decides on more at once; short, because nodes wait for its answers
RELAY_REST = 4.0  # a batch of any size costs the stream some milliseconds


async def run(
    settings: SchedulerSettings,
    *,
    bus: Bus,
    store: SchedulerStore,
    stop: asyncio.Event,
    holder: str,
    clock: Callable[[], float],
) -> None:
    """Serve one pool until `stop`; `holder` names this process among the schedulers of the pool."""
    tally, pool = Tally(), settings.pool
    leadership = Leadership(
        name=pool,
        holder=holder,
        store=store,
        clock=clock,
        leader_seconds=settings.leader_seconds,
        holds_seconds=settings.holds_seconds,
        connection=lambda: bus.connection,
    )
    desk = Desk(
        core=Scheduler(pool=pool, settings=settings.core),
        store=store,
        bus=bus,
        leadership=leadership,
        clock=clock,
        tally=tally,
        retention=settings.retention,
        obeys_quotas=settings.quotas,
    )
    forgetting = Forgetting(
        store=store, leadership=leadership, clock=clock, kept_seconds=settings.jobs_kept_days * DAY or None
    )
    relay = Relay(store=store, bus=bus, clock=clock)
    tally.watch_outbox(lambda: relay.waiting)

    async def hear_ask(_: AskStored) -> None:
        desk.asked()

    async def hear_outbox(_: OutboxFilled) -> None:
        desk.outbox_filled.set()

    async def hear_scores(scored: GpusScored) -> None:
        desk.scored(scored)

    async def hear_classes(learnt: ClassesLearnt) -> None:
        desk.learnt(learnt)

    async def hear_told(told: LeadershipTold) -> None:
        leadership.hear_told(told)

    async def speak() -> None:
        await bus.publish(leadership.tell())

    async def lead() -> None:
        led = leadership.lease is not None
        await leadership.beat()
        if leadership.lease is not None and not led:
            desk.wake.set()

    async def relay_turn() -> None:
        desk.outbox_filled.clear()
        if leadership.lease is None:
            relay.waiting = 0  # the leader counts them
            return
        await relay.turn()

    unavailable = (StoreUnavailableError, NoAnswerError)
    try:
        await serve(
            "scheduler",
            bus=bus,
            stop=stop,
            listens=[
                Listen(AskStored, hear_ask, group="", tokens={"pool": pool}),
                Listen(OutboxFilled, hear_outbox, group=""),
                Listen(LeadershipTold, hear_told, group="", tokens={"pool": pool}),
                Listen(GpusScored, hear_scores, group="", tokens={"pool": pool}),
                Listen(ClassesLearnt, hear_classes, group="", tokens={"pool": pool}),
            ],
            answers=[Answer(NodeReported, desk.report, group="", at_once=4096, tokens={"pool": pool})],
            loops=[
                Every(SPEAK_SECONDS, speak, wake=leadership.spoken, name="speak"),
                Every(settings.leader_seconds / 4, lead, retry_on=unavailable, name="lead"),
                Every(POLL_SECONDS, desk.turn, wake=desk.wake, retry_on=unavailable, name="desk", rest=TURN_REST),
                Every(
                    POLL_SECONDS,
                    relay_turn,
                    wake=desk.outbox_filled,
                    retry_on=unavailable,
                    name="relay",
                    rest=RELAY_REST,
                ),
                Every(TRIM_SECONDS, desk.trim, retry_on=unavailable, name="trim"),
                Every(FORGET_SECONDS, forgetting.turn, retry_on=unavailable, name="forget"),
            ],
            registry=tally.registry,
            admin_port=settings.admin_port,
            admin_host=settings.admin_host,
        )
    finally:
        with suppress(StoreUnavailableError):  # without the release the next leader waits a little longer
            await leadership.resign()
