"""The life of a service: listen, be ready, beat; at the stop: unready, drained, loops ended, in this order.

The service's `__main__` opens bus and store around `serve` with `async with`, so they are closed after it.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from weft.bus import Bus, BusError, RawRequest, Subscription
from weft.messages import Message
from weft.messages.signals import ServiceReported
from weft.service import admin
from weft.service.admin import Probes
from weft.service.meters import Meters
from weft.version import version

M = TypeVar("M", bound=Message)
T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger(__name__)

BACK_OFF_SECONDS_MIN = 0.1
BACK_OFF_SECONDS_MAX = 5.0
REST_SECONDS_MAX = 0.1
LOOK_SECONDS = 0.25  # between two looks whether requests are wanted
REPORT_SECONDS = 5.0  # between two reports of a process to the gateways


class Listen(msgspec.Struct, Generic[M], frozen=True):
    """Call `handler` with every `kind` that arrives.

    `group` None: each message goes to one of the replicas of this service; "": to every replica. `apart_seconds`: as in
    `Bus.subscribe`.
    """

    kind: type[M]
    handler: Callable[[M], Awaitable[None]]
    group: str | None = None
    at_once: int = 64
    apart_seconds: float = 0.0
    tokens: Mapping[str, str] = {}


class Answer(msgspec.Struct, Generic[M], frozen=True):
    """Answer every request of `kind` with what `handler` returns.

    `wanted`: while it is false there is nothing to answer, and no request is sent to this process. It is asked every
    LOOK_SECONDS.
    """

    kind: type[M]
    handler: Callable[[M], Awaitable[msgspec.Struct | None]]
    group: str | None = None
    at_once: int = 64
    tokens: Mapping[str, str] = {}
    wanted: Callable[[], bool] | None = None


class AnswerRaw(msgspec.Struct, frozen=True):
    """Answer requests on `subject` whose payload is not one of our messages."""

    subject: str
    handler: Callable[[RawRequest], Awaitable[msgspec.Struct]]
    group: str | None = None
    at_once: int = 64


class Every(msgspec.Struct, frozen=True):
    """Call `beat` every `seconds`, however fast messages come; at once when `wake` is set.

    `rest`: after a beat, not even `wake` begins the next before so many times as long as the beat took, and at most
    REST_SECONDS_MAX: what comes meanwhile is handled by one beat, and a beat that is quick delays no other work.
    An exception of `beat` ends the service, except `retry_on`: failures of the environment, after which it backs off.
    """

    seconds: float
    beat: Callable[[], Awaitable[None]]
    wake: asyncio.Event | None = None
    retry_on: tuple[type[Exception], ...] = ()
    name: str = ""
    rest: float = 0.0


async def serve(
    name: str,
    *,
    bus: Bus,
    stop: asyncio.Event,
    listens: Sequence[Listen[Any]] = (),
    loops: Sequence[Every] = (),
    answers: Sequence[Answer[Any] | AnswerRaw] = (),
    registry: CollectorRegistry | None = None,
    admin_port: int | None = None,
    admin_host: str = "127.0.0.1",
    grace_seconds: float = 10.0,
    reports: bool = False,
    leads: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Run until `stop` is set, then drain and return within about `grace_seconds`; raise what a loop raises.

    Metrics that the service made in its own `registry` are served too. `reports`: this process tells gateways
    how it is. `leads`: the pools that it leads.
    """
    now = asyncio.get_running_loop().time
    probes = admin.Probes(Meters(name, registry), bus, now)
    ending = asyncio.Event()
    beating: list[asyncio.Task[None]] = []
    async with admin.serving(probes, host=admin_host, port=admin_port):
        try:
            heard: list[Subscription | _Wanted] = []
            for entry in (*listens, *answers):
                if isinstance(entry, Answer) and entry.wanted is not None:
                    heard.append(_Wanted(bus, entry, entry.wanted, name, probes))
                else:
                    heard.append(await _subscribed(bus, entry, name, probes))
            looks = [Every(LOOK_SECONDS, one.look, name="wanted") for one in heard if isinstance(one, _Wanted)]
            for look in looks:
                await look.beat()
            for label, loop in _named([*loops, *looks]):
                beating.append(asyncio.create_task(_beat(loop, label, ending, probes), name=label))
            probes.ready = True
            report = _reporting(name, bus, probes, leads, began=now())
            if reports:
                loop = Every(REPORT_SECONDS, report, retry_on=(BusError,))
                beating.append(asyncio.create_task(_beat(loop, "report", ending, probes), name="report"))
            logger.info("%s is ready", name)
            await _stopped(stop, beating)
            probes.ready = False
            logger.info("%s is draining", name)
            until = now() + grace_seconds
            await _drained(heard, name, until)
            ending.set()
            await _ended(beating, name, until)
            if reports:
                with suppress(BusError):  # then it is silent for a while, and forgotten
                    await report(ends=True)
        finally:
            probes.ready = False
            for task in beating:
                task.cancel()
    logger.info("%s has ended", name)


def instance_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _reporting(
    name: str, bus: Bus, probes: Probes, leads: Callable[[], Sequence[str]], *, began: float
) -> Callable[..., Awaitable[None]]:
    now, instance = asyncio.get_running_loop().time, instance_name()

    async def report(*, ends: bool = False) -> None:
        await bus.publish(
            ServiceReported(
                service=name,
                instance=instance,
                version=version(),
                up_seconds=now() - began,
                ready=probes.ready,
                stuck=tuple(probes.stuck),
                leads=tuple(leads()),
                ends=ends,
            )
        )

    return report


async def _subscribed(
    bus: Bus, entry: Listen[Any] | Answer[Any] | AnswerRaw, name: str, probes: Probes
) -> Subscription:
    group = name if entry.group is None else entry.group
    match entry:
        case Listen(kind=kind):
            handler = _timed(entry.handler, kind.__name__, probes)
            apart = entry.apart_seconds
            return await bus.subscribe(
                kind, handler, group=group, at_once=entry.at_once, apart_seconds=apart, **entry.tokens
            )
        case Answer(kind=kind):
            answer = _timed(entry.handler, kind.__name__, probes)
            return await bus.answer(kind, answer, group=group, at_once=entry.at_once, **entry.tokens)
        case AnswerRaw():
            answer_raw = _timed(entry.handler, entry.subject, probes)
            return await bus.answer_raw(entry.subject, answer_raw, group=group, at_once=entry.at_once)


class _Wanted:
    """A subscription to an answer that is needed only at times."""

    def __init__(self, bus: Bus, entry: Answer[Any], wanted: Callable[[], bool], name: str, probes: Probes) -> None:
        self._bus, self._entry, self._wanted, self._name, self._probes = bus, entry, wanted, name, probes
        self._subscription: Subscription | None = None
        self._drained = False

    async def look(self) -> None:
        wanted = self._wanted() and not self._drained
        if wanted and self._subscription is None:
            self._subscription = await _subscribed(self._bus, self._entry, self._name, self._probes)
        elif not wanted and self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.drain()

    async def drain(self) -> None:
        self._drained = True
        await self.look()


def _timed(handler: Callable[[T], Awaitable[R]], kind: str, probes: Probes) -> Callable[[T], Awaitable[R]]:
    async def timed(message: T) -> R:
        with probes.timing(probes.handled, kind):
            return await handler(message)

    return timed


def _named(loops: Sequence[Every]) -> list[tuple[str, Every]]:
    """Each loop by its name, or else by its beat's; a name used twice gets a number."""
    seen: Counter[str] = Counter()
    named = []
    for loop in loops:
        label = loop.name or getattr(loop.beat, "__name__", "loop")
        seen[label] += 1
        named.append((label if seen[label] == 1 else f"{label}-{seen[label]}", loop))
    return named


async def _beat(loop: Every, label: str, ending: asyncio.Event, probes: Probes) -> None:
    """Run one loop. It ends between beats, never in the middle of one."""
    failures, now = 0, asyncio.get_running_loop().time
    probes.beat(label, next_within=loop.seconds)
    while not ending.is_set():
        began = now()
        if loop.wake:
            loop.wake.clear()  # before the beat: a wake during the beat makes another one
        try:
            with probes.timing(probes.beaten, label):
                await loop.beat()
        except loop.retry_on as error:
            failures += 1
            pause, wakes = back_off_seconds(failures), [ending]
            logger.warning("%s failed, again in %.1f s: %s: %s", label, pause, type(error).__name__, error)
        else:
            failures = 0
            pause, wakes = loop.seconds, [ending, loop.wake] if loop.wake else [ending]
        probes.beat(label, next_within=pause)  # the loop lives, also while the environment fails
        if loop.rest:
            await _first_of([ending], seconds_max=min(REST_SECONDS_MAX, pause, loop.rest * (now() - began)))
        await _first_of(wakes, seconds_max=pause)


def back_off_seconds(failures: int) -> float:
    return float(min(BACK_OFF_SECONDS_MAX, BACK_OFF_SECONDS_MIN * 2 ** min(failures - 1, 16)))


async def _first_of(events: Sequence[asyncio.Event], *, seconds_max: float) -> None:
    if any(event.is_set() for event in events):
        return await asyncio.sleep(0)  # others have their turn, however often it is set
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def _stopped(stop: asyncio.Event, beating: Sequence[asyncio.Task[None]]) -> None:
    """Return when `stop` is set. A loop that ends before that has failed."""
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *beating], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    for task in done:
        task.result()


async def _drained(heard: Sequence[Subscription | _Wanted], name: str, until: float) -> None:
    try:
        async with asyncio.timeout_at(until), asyncio.TaskGroup() as tasks:
            for subscription in heard:
                tasks.create_task(subscription.drain())
    except TimeoutError:
        logger.warning("%s left messages in hand", name)


async def _ended(beating: Sequence[asyncio.Task[None]], name: str, until: float) -> None:
    if not beating:
        return
    left = max(0.0, until - asyncio.get_running_loop().time())
    done, late = await asyncio.wait(beating, timeout=left)
    if late:
        logger.warning("%s left loops in the middle of a beat: %s", name, ", ".join(sorted(t.get_name() for t in late)))
    for task in done:
        task.result()
