"""The bus within one process: messages arrive as bytes, in the order in which they were published."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from weft.bus import BusClosedError, NoAnswerError, RawRequest, StreamEvent
from weft.bus.handling import HandlerQueue, Heard, Work, answering, answering_raw, handler_queue, hearing
from weft.bus.wire import check_event, decode_answer, encode, matches, subject_for, subject_of
from weft.messages import Message
from weft.messages.connection import Connection

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=msgspec.Struct)

SUBJECTS_REMEMBERED = 10_000


class MemorySubscription:
    def __init__(self, bus: "MemoryBus", pattern: str, group: str, hands: HandlerQueue) -> None:
        self._bus = bus
        self.pattern = pattern
        self.group = group
        self.hands = hands

    async def drain(self) -> None:
        self._bus.forget(self)
        await self.hands.finish()


class MemoryBus:
    """A bus for all that share this object. `events` is the stored stream; None before it was made."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.events: list[StreamEvent] | None = None
        self._event_ids: set[str] = set()
        self._streams = 0  # made so far
        self._subscriptions: list[MemorySubscription] = []
        self._listening: dict[str, list[MemorySubscription]] = {}  # by subject, as found at the last publish on it
        self._turns: Counter[str] = Counter()  # of each group
        self._closed = False

    @property
    def connected(self) -> bool:
        return not self._closed

    @property
    def connection(self) -> Connection | None:
        return None if self._closed else Connection(server="memory", number=1)

    async def publish(self, message: Message) -> None:
        self._say(subject_of(message), encode(message))

    async def request(self, message: Message, reply: type[R], *, seconds_max: float) -> R:
        subject = subject_of(message)
        answer = await self.request_raw(subject, encode(message), seconds_max=seconds_max)
        return decode_answer(subject, reply, answer)

    async def request_raw(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes:
        """Request with a payload that is not one of our messages. Errors as `request`."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def respond(said: bytes) -> None:
            if not answer.done():
                answer.set_result(said)

        if not self._say(subject, payload, headers, respond):
            raise NoAnswerError(f"nobody listens on {subject}")
        try:
            async with asyncio.timeout(seconds_max):
                return await answer
        except TimeoutError:
            raise NoAnswerError(f"no answer on {subject} within {seconds_max} s") from None

    async def subscribe(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[None]],
        *,
        group: str = "",
        at_once: int = 64,
        apart_seconds: float = 0.0,
        **tokens: str,
    ) -> MemorySubscription:
        return self._listen(subject_for(kind, tokens), hearing(kind, handler), group, at_once, apart_seconds)

    async def answer(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[msgspec.Struct | None]],
        *,
        group: str = "",
        at_once: int = 64,
        **tokens: str,
    ) -> MemorySubscription:
        return self._listen(subject_for(kind, tokens), answering(kind, handler), group, at_once)

    async def answer_raw(
        self,
        subject: str,
        handler: Callable[[RawRequest], Awaitable[msgspec.Struct]],
        *,
        group: str = "",
        at_once: int = 64,
    ) -> MemorySubscription:
        return self._listen(subject, answering_raw(handler), group, at_once)

    async def ensure_stream(self) -> str:
        self._check_open()
        if self.events is None:
            self.events = []
            self._event_ids.clear()
            self._streams += 1
        return f"{self._streams}"

    async def emit(self, events: list[StreamEvent]) -> None:
        for event in events:
            check_event(event)
        self._check_open()
        if events and self.events is None:
            raise NoAnswerError("there is no stream of events")
        for event in events:
            if self.events is not None and event.id not in self._event_ids:
                self._event_ids.add(event.id)
                self.events.append(event)
            self._say(event.subject, event.payload, event.headers)  # subscribers get a repeat too

    def forget(self, subscription: MemorySubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._listening.clear()

    async def close(self) -> None:
        """Finish the messages in hand; afterwards nothing can be published or received."""
        for subscription in list(self._subscriptions):
            await subscription.drain()
        self._closed = True

    def _listen(
        self, pattern: str, work: Work, group: str, at_once: int, apart_seconds: float = 0.0
    ) -> MemorySubscription:
        self._check_open()
        hands = handler_queue(work, at_once=at_once, counts=self.counts, apart_seconds=apart_seconds)
        subscription = MemorySubscription(self, pattern, group, hands)
        self._subscriptions.append(subscription)
        self._listening.clear()
        return subscription

    def _say(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str] | None = None,
        respond: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> bool:
        """Deliver to all subscribers; False if there are none."""
        self._check_open()
        listening = self._listeners(subject)
        heard = Heard(subject=subject, payload=payload, headers=dict(headers or {}), respond=respond)
        for subscription in self._one_of_each_group(listening):
            subscription.hands.give(heard)
        return bool(listening)

    def _listeners(self, subject: str) -> list[MemorySubscription]:
        if (found := self._listening.get(subject)) is None:
            if len(self._listening) >= SUBJECTS_REMEMBERED:
                self._listening.clear()
            found = [subscription for subscription in self._subscriptions if matches(subscription.pattern, subject)]
            self._listening[subject] = found
        return found

    def _one_of_each_group(self, listening: list[MemorySubscription]) -> Iterable[MemorySubscription]:
        groups: dict[str, list[MemorySubscription]] = {}
        for subscription in listening:
            if subscription.group:
                groups.setdefault(subscription.group, []).append(subscription)
            else:
                yield subscription
        for group, members in groups.items():
            yield members[self._turns[group] % len(members)]
            self._turns[group] += 1

    def _check_open(self) -> None:
        if self._closed:
            raise BusClosedError("this bus is closed")
