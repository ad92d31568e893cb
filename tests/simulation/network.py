"""A NATS server that is made up: what the real one may do to what is said, by seed.

Between one process and the server what is said arrives in order or, when the link breaks, not at all. A link that is
cut is not known to be dead at once: what is said meanwhile waits in the sockets, and arrives late if the link heals in
time. The server goes on giving a share of the group's messages to whom it still believes to be there.
"""

import asyncio
import contextvars
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct

from tests.simulation.history import History
from tests.simulation.place import Place
from tests.support.doubles.bus import matches
from weft.bus import BusClosedError, NoAnswerError, StreamEvent
from weft.bus.handling import HandlerQueue, Heard
from weft.bus.typed import TypedBus
from weft.bus.wire import check_event
from weft.messages import Connection

STORE_SECONDS_MAX = 5.0
FLUSH_SECONDS_MAX = 2.0
DUPLICATE_WINDOW_SECONDS = 120.0
NOTICED_SECONDS = (1.0, 12.0)  # until a link that was cut is known to be dead
RECONNECT_SECONDS = (0.1, 1.5)
APART_SECONDS = 1e-6  # timers of the very same moment go off in any order

Reply = tuple["SimBus", int]


class Quality(Struct):
    """How good the network is now."""

    seconds: tuple[float, float] = (0.0002, 0.002)
    slow: float = 0.0  # the part of the messages that take long
    slow_seconds: tuple[float, float] = (0.05, 2.0)
    lost: float = 0.0
    stream_slow: float = 0.0  # the part of the stores into the stream whose confirmation comes too late, or never


class Stream:
    """JetStream: repeats are recognised within a window of time."""

    def __init__(self) -> None:
        self.exists = False
        self.stored: list[StreamEvent] = []
        self.losses = 0
        self._seen: dict[str, float] = {}

    @property
    def identity(self) -> bytes:
        return f"stream-{self.losses}".encode()

    def lose(self) -> None:
        self.exists = False
        self.stored.clear()
        self.losses += 1
        self._seen.clear()

    def store(self, event: StreamEvent, now: float) -> None:
        if now - self._seen.get(event.id, -DUPLICATE_WINDOW_SECONDS) >= DUPLICATE_WINDOW_SECONDS:
            self._seen[event.id] = now
            self.stored.append(event)


class Link:
    """The connection of one process, both ways. `generation` counts how often it was made anew."""

    def __init__(self, network: "Network", name: str) -> None:
        self.up = True
        self.alive = True
        self.generation = 0
        self.name = name
        self.connection = network.connect(name)
        self.changed = asyncio.Event()
        self._network = network
        self._stalled: list[Callable[[], None]] = []
        self._last = {"out": 0.0, "in": 0.0}

    def carry(self, way: str, deliver: Callable[[], None], *, surely: bool = False) -> None:
        """`surely`: only a broken connection loses it, as a subscription, which is made anew with the next one."""
        if not self.alive or (not surely and self._network.loses()):
            self._network.history.counts["messages lost"] += 1
        elif self.up:
            self._fly(way, deliver)
        else:
            self._stalled.append(partial(self._fly, way, deliver))

    def _fly(self, way: str, deliver: Callable[[], None]) -> None:
        network = self._network
        at = max(self._last[way] + APART_SECONDS, network.loop.time() + network.seconds())
        self._last[way] = at
        network.loop.call_at(at, self._arrive, self.generation, way, deliver, context=network.context)

    def _arrive(self, generation: int, way: str, deliver: Callable[[], None]) -> None:
        if generation != self.generation:
            self._network.history.counts["messages lost"] += 1
        elif self.up:
            deliver()
        else:
            self._stalled.append(partial(self._fly, way, deliver))

    def cut(self) -> None:
        if self.up:
            self.up = False
            self._network.later(self._network.dice.uniform(*NOTICED_SECONDS), self._noticed, self.generation)

    def _noticed(self, generation: int) -> None:
        if not self.up and generation == self.generation:
            self.lose()

    def lose(self) -> None:
        """The connection is broken, and both sides know."""
        self.alive = False
        self.generation += 1
        self._stalled.clear()
        self._network.forget(self)

    def heal(self) -> None:
        self.up = True
        if self.alive:
            stalled, self._stalled = self._stalled, []
            for fly in stalled:
                fly()
        else:
            self.reconnect()

    def reconnect(self) -> None:
        self._network.later(self._network.dice.uniform(*RECONNECT_SECONDS), self._reconnected, self.generation)

    def _reconnected(self, generation: int) -> None:
        if self.up and not self.alive and generation == self.generation and not self._network.down:
            self.alive = True
            self.connection = self._network.connect(self.name)
            self._network.remember(self)
            self.changed.set()


class Network:
    def __init__(self, loop: asyncio.AbstractEventLoop, dice: random.Random, history: History) -> None:
        self.loop = loop
        self.dice = dice
        self.history = history
        self.context = contextvars.copy_context()
        self.quality = Quality()
        self.stream = Stream()
        self.down = False
        self.servers = 1  # of one cluster; each process is connected to one of them
        self.server_of: Callable[[str], int] | None = None  # by a process's name; None: by chance
        self.split = False  # the servers do not reach each other
        self.life = 0
        self._numbers = itertools.count(1)
        self._buses: list[SimBus] = []
        self._heard: list[SimSubscription] = []
        self._turns: Counter[str] = Counter()

    def later(self, seconds: float, do: Callable[..., None], *arguments: Any) -> None:
        self.loop.call_later(seconds, do, *arguments, context=self.context)

    def seconds(self) -> float:
        quality = self.quality
        if quality.slow and self.dice.random() < quality.slow:
            return self.dice.uniform(*quality.slow_seconds)
        return self.dice.uniform(*quality.seconds)

    def loses(self) -> bool:
        return self.quality.lost > 0 and self.dice.random() < self.quality.lost

    # its life

    def connect(self, name: str) -> Connection:
        if self.server_of is not None:
            server = self.server_of(name)
        else:
            server = 1 + (0 if self.servers == 1 else self.dice.randrange(self.servers))
        return Connection(server=f"nats-{server}.{self.life}", number=next(self._numbers))

    def reaches(self, one: "SimBus", other: "SimBus") -> bool:
        return not self.split or one.link.connection.server == other.link.connection.server

    def go_down(self) -> None:
        self.down = True
        self.life += 1
        for bus in list(self._buses):
            bus.link.lose()

    def come_up(self) -> None:
        self.down = False
        for bus in self._buses:
            if bus.link.up:
                bus.link.reconnect()

    # who is here

    def join(self, place: Place) -> "SimBus":
        bus = SimBus(self, place)
        self._buses.append(bus)
        if self.down:
            bus.link.lose()
        return bus

    def leave(self, bus: "SimBus", *, unnoticed_seconds: float) -> None:
        """Its process is no more. Until the server notices, it is given its share."""

        def gone() -> None:
            if bus in self._buses:
                bus.link.lose()
                self._buses.remove(bus)

        self.later(unnoticed_seconds, gone)

    def listen(self, subscription: "SimSubscription") -> None:
        if subscription not in self._heard:
            self._heard.append(subscription)

    def unlisten(self, subscription: "SimSubscription") -> None:
        if subscription in self._heard:
            self._heard.remove(subscription)

    def forget(self, link: Link) -> None:
        self._heard = [subscription for subscription in self._heard if subscription.bus.link is not link]

    def remember(self, link: Link) -> None:
        for bus in self._buses:
            if bus.link is link:
                for subscription in bus.subscriptions:
                    self.listen(subscription)

    # what is said

    def route(
        self, subject: str, payload: bytes, headers: dict[str, str], reply: Reply | None, *, of: "SimBus | None" = None
    ) -> None:
        listening = [
            one for one in self._heard if matches(one.pattern, subject) and (of is None or self.reaches(of, one.bus))
        ]
        chosen = self._one_of_each_group(listening)
        self.history.note("nats", f"{subject} {len(payload)} → {' '.join(one.bus.place.name for one in chosen)}")
        self.history.counts["messages"] += 1
        for subscription in chosen:
            subscription.bus.link.carry("in", partial(subscription.arrive, subject, payload, headers, reply))
        if not listening and reply is not None:
            reply[0].link.carry("in", partial(reply[0].settle, reply[1], None))

    def answer(self, reply: Reply, payload: bytes, *, of: str = "nats", by: "SimBus | None" = None) -> None:
        bus, number = reply
        if by is not None and not self.reaches(by, bus):
            return
        self.history.note("nats", f"answer {number} {len(payload)} of {of} → {bus.place.name}")
        bus.link.carry("in", partial(bus.settle, number, payload))

    def store(self, events: list[StreamEvent], reply: Reply) -> None:
        """All of them or none, as one batch; now and then it falls back to single ones, of which some fail."""
        if not self.stream.exists:
            self.history.note("nats", f"no stream for {len(events)} events")
            return self.answer(reply, b"no stream")
        stored, answer = events, b"stored"
        if self.quality.stream_slow and self.dice.random() < self.quality.stream_slow:
            stored = [event for event in events if self.dice.random() < 0.6]
            answer = b"not all" if self.dice.random() < 0.5 else b""
        for event in stored:
            self.stream.store(event, self.loop.time())
            self.route(event.subject, event.payload, dict(event.headers), None)
        self.history.note("nats", f"stored {len(stored)} of {len(events)} events")
        return self.answer(reply, answer) if answer else None

    def tell_of_stream(self, reply: Reply) -> None:
        self.answer(reply, self.stream.identity if self.stream.exists else b"")

    def pong(self, reply: Reply) -> None:
        self.answer(reply, b"pong")

    def make_stream(self, reply: Reply) -> None:
        self.stream.exists = True
        self.answer(reply, self.stream.identity)

    def _one_of_each_group(self, listening: "list[SimSubscription]") -> "list[SimSubscription]":
        groups: dict[str, list[SimSubscription]] = {}
        chosen: list[SimSubscription] = []
        for subscription in listening:
            if subscription.group:
                groups.setdefault(subscription.group, []).append(subscription)
            else:
                chosen.append(subscription)
        for group, members in groups.items():
            chosen.append(members[self._turns[group] % len(members)])
            self._turns[group] += 1
        return chosen


class SimSubscription:
    def __init__(self, bus: "SimBus", pattern: str, group: str, actions: HandlerQueue) -> None:
        self.bus = bus
        self.pattern = pattern
        self.group = group
        self._actions = actions

    def arrive(self, subject: str, payload: bytes, headers: dict[str, str], reply: Reply | None) -> None:
        """Into its process, which may be stopped: then it waits there."""
        respond = partial(self.bus.respond, reply) if reply is not None else None
        heard = Heard(subject=subject, payload=payload, headers=headers, respond=respond)
        self.bus.place.call(self._actions.give, heard)

    async def drain(self) -> None:
        self.bus.forget(self)
        await self._actions.finish()


class SimBus(TypedBus):
    """The bus as one process has it."""

    def __init__(self, network: Network, place: Place) -> None:
        super().__init__()
        self.place = place
        self.link = Link(network, place.name)
        self.subscriptions: list[SimSubscription] = []
        self._network = network
        self._closed = False
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[bytes | None]] = {}

    @property
    def connected(self) -> bool:
        return self.link.alive

    @property
    def connection(self) -> Connection | None:
        return self.link.connection if self.link.alive else None

    async def _send(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        await self.place.point("publish")
        self._check_open()
        if not self.link.alive:
            self.counts["dropped"] += 1
        self.link.carry("out", partial(self._network.route, subject, payload, dict(headers or {}), None, of=self))

    async def respond(self, reply: Reply, payload: bytes) -> None:
        await self.place.point("respond")
        self.link.carry("out", partial(self._network.answer, reply, payload, of=self.place.name, by=self))

    async def request_raw(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes:
        return await self._ask(
            subject,
            lambda reply: self._network.route(subject, payload, dict(headers or {}), reply, of=self),
            seconds_max=seconds_max,
        )

    async def _ask(self, what: str, do: Callable[[Reply], None], *, seconds_max: float) -> bytes:
        """Have the server do something, and wait for the answer to it."""
        self._check_open()
        await self.place.point(f"ask {what}")
        number = next(self._numbers)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            async with asyncio.timeout(seconds_max):
                while not self.link.alive:
                    self.link.changed.clear()
                    await self.link.changed.wait()
                self.link.carry("out", partial(do, (self, number)))
                answered = await answer
        except TimeoutError:
            raise NoAnswerError(f"no answer on {what} within {seconds_max} s") from None
        finally:
            self._asked.pop(number, None)
        await self.place.point(f"answered {what}")
        if answered is None:
            raise NoAnswerError(f"nobody listens on {what}")
        return answered

    def settle(self, number: int, payload: bytes | None) -> None:
        def settled() -> None:
            waiting = self._asked.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(payload)

        self.place.call(settled)

    async def ensure_stream(self) -> str:
        found = await self._ask("stream info", self._network.tell_of_stream, seconds_max=STORE_SECONDS_MAX)
        if not found:
            found = await self._ask("stream create", self._network.make_stream, seconds_max=STORE_SECONDS_MAX)
        return found.decode()

    async def emit(self, events: list[StreamEvent]) -> None:
        for event in events:
            check_event(event)
        if not events:
            return
        answer = await self._ask(
            "emit", lambda reply: self._network.store(events, reply), seconds_max=STORE_SECONDS_MAX
        )
        if answer != b"stored":
            raise NoAnswerError(f"{len(events)} events are not known to be stored: {answer.decode()}")

    async def close(self) -> None:
        for subscription in list(self.subscriptions):
            await subscription.drain()
        self._closed = True
        self.link.lose()

    def _check_open(self) -> None:
        if self._closed:
            raise BusClosedError("this bus is closed")

    def forget(self, subscription: SimSubscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)
            self.link.carry("out", partial(self._network.unlisten, subscription), surely=True)

    async def _listen(self, subject: str, actions: HandlerQueue, group: str) -> SimSubscription:
        await self.place.point("listen")
        self._check_open()
        subscription = SimSubscription(self, subject, group, actions)
        self.subscriptions.append(subscription)
        self.link.carry("out", partial(self._network.listen, subscription), surely=True)
        if self.link.alive:
            with suppress(NoAnswerError):  # it is told again when it is back
                await self._ask("flush", self._network.pong, seconds_max=FLUSH_SECONDS_MAX)
        return subscription
