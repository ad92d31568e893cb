"""The bus within one process: messages arrive as bytes, in the order in which they were published."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from weft.bus import BusClosedError, NoAnswerError, StreamEvent
from weft.bus.handling import HandlerQueue, Heard
from weft.bus.typed import TypedBus
from weft.bus.wire import check_event
from weft.messages import Connection

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


class MemoryBus(TypedBus):
    """A bus for all that share this object. `events` is the stored stream; None before it was made."""

    def __init__(self) -> None:
        super().__init__()
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

    async def request_raw(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def respond(said: bytes) -> None:
            if not answer.done():
                answer.set_result(said)

        if not self._deliver(subject, payload, headers, respond):
            raise NoAnswerError(f"nobody listens on {subject}")
        try:
            async with asyncio.timeout(seconds_max):
                return await answer
        except TimeoutError:
            raise NoAnswerError(f"no answer on {subject} within {seconds_max} s") from None

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
            self._deliver(event.subject, event.payload, event.headers)  # subscribers get a repeat too

    def forget(self, subscription: MemorySubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._listening.clear()

    async def close(self) -> None:
        """Finish the messages in hand; afterwards nothing can be published or received."""
        for subscription in list(self._subscriptions):
            await subscription.drain()
        self._closed = True

    async def _listen(self, subject: str, hands: HandlerQueue, group: str) -> MemorySubscription:
        self._check_open()
        subscription = MemorySubscription(self, subject, group, hands)
        self._subscriptions.append(subscription)
        self._listening.clear()
        return subscription

    async def _send(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._deliver(subject, payload, headers)

    def _deliver(
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


def matches(pattern: str, subject: str) -> bool:
    """Whether a subscriber of `pattern` gets a message published on `subject`."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(wanted) == len(tokens) and all(want in ("*", token) for want, token in zip(wanted, tokens, strict=True))
