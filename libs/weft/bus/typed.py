"""The calls of a bus that take messages and handlers, over the three that each kind of bus makes itself."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from msgspec import Struct

from weft.bus import RawRequest, Subscription
from weft.bus.handling import HandlerQueue, Work, answering, answering_raw, handler_queue, hearing
from weft.bus.wire import decode_answer, encode, subject_for, subject_of
from weft.messages import Message

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Struct)


class TypedBus(ABC):
    """`counts` has the losses of this bus by their kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @abstractmethod
    async def request_raw(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, seconds_max: float
    ) -> bytes:
        """Request with a payload that is not one of our messages. Errors as `request`."""

    @abstractmethod
    async def _send(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send to the present subscribers of the subject."""

    @abstractmethod
    async def _listen(self, subject: str, hands: HandlerQueue, group: str) -> Subscription:
        """Give each message that matches `subject` to `hands`, or to those of another member of the group."""

    async def publish(self, message: Message) -> None:
        await self._send(subject_of(message), encode(message))

    async def request(self, message: Message, reply: type[R], *, seconds_max: float) -> R:
        subject = subject_of(message)
        answer = await self.request_raw(subject, encode(message), seconds_max=seconds_max)
        return decode_answer(subject, reply, answer)

    async def subscribe(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[None]],
        *,
        group: str = "",
        at_once: int = 64,
        apart_seconds: float = 0.0,
        **tokens: str,
    ) -> Subscription:
        hands = self._hands(hearing(kind, handler), at_once, apart_seconds)
        return await self._listen(subject_for(kind, tokens), hands, group)

    async def answer(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[Struct | None]],
        *,
        group: str = "",
        at_once: int = 64,
        **tokens: str,
    ) -> Subscription:
        return await self._listen(subject_for(kind, tokens), self._hands(answering(kind, handler), at_once), group)

    async def answer_raw(
        self, subject: str, handler: Callable[[RawRequest], Awaitable[Struct]], *, group: str = "", at_once: int = 64
    ) -> Subscription:
        return await self._listen(subject, self._hands(answering_raw(handler), at_once), group)

    def _hands(self, work: Work, at_once: int, apart_seconds: float = 0.0) -> HandlerQueue:
        return handler_queue(work, at_once=at_once, counts=self.counts, apart_seconds=apart_seconds)
