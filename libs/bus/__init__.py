"""Publish, subscribe, ask and answer. Postgres is truth, this is news: anything said here may be lost.

Two kinds: `libs.bus.nats` for a real server, `libs.bus.memory` for one process. One conformance suite holds both.

Errors: BusError
        ├── NoAnswerError     nobody answered within the time given (a late answer may still have had its effect)
        └── BusClosedError    this bus is closed and stays so
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from msgspec import Struct

from libs.messages import Message
from libs.messages.connection import Connection

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Struct)


class BusError(Exception):
    """Something about the bus."""


class NoAnswerError(BusError):
    """Nobody answered in time."""


class BusClosedError(BusError):
    """The bus is closed."""


class RawRequest(Struct, frozen=True, kw_only=True):
    """A raw request, for those who must see its bytes and headers."""

    payload: bytes
    headers: dict[str, str]


async def nothing() -> None:
    """What is done where nothing is to be done."""


class Subscription(Protocol):
    async def drain(self) -> None:
        """Take nothing more, finish what is in hand, then return."""


class Bus(Protocol):
    """Messages are JSON. Handlers of one subscription run at once, up to `at_once`, so they may finish out of order.

    A message that cannot be decoded, or whose handler raises, is logged and counted; the subscription goes on.
    """

    @property
    def connected(self) -> bool: ...

    @property
    def connection(self) -> Connection | None:
        """The present one; None while there is none."""

    async def publish(self, message: Message) -> None:
        """Say it to whoever listens now. While disconnected it is dropped and counted, never raised."""

    async def request(self, message: Message, reply: type[R], *, seconds_max: float) -> R:
        """Ask and return the first answer. Raises NoAnswerError after `seconds_max`, or at once if nobody listens."""

    async def subscribe(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[None]],
        *,
        group: str = "",
        at_once: int = 64,
        **tokens: str,
    ) -> Subscription:
        """Hear every `kind`. `tokens` fix parts of its subject (`node_id="node-1"`), the others are wildcards.

        Of the subscribers in one `group`, one hears each message.
        """

    async def answer(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[Struct | None]],
        *,
        group: str = "",
        at_once: int = 64,
        **tokens: str,
    ) -> Subscription:
        """Answer every request of `kind` with what `handler` returns; None leaves it to another."""

    async def answer_raw(
        self, subject: str, handler: Callable[[RawRequest], Awaitable[Struct]], *, group: str = "", at_once: int = 64
    ) -> Subscription:
        """Answer requests whose payload is not one of our messages."""

    async def ensure_stream(self, *, before: Callable[[], Awaitable[None]] = nothing) -> bool:
        """Make the stream of events if it is not there; `before` is done before that. True: it was not, and is empty.

        Where `before` fails, or we end in it, there is still no stream, and whoever comes next finds that again.
        Raises NoAnswerError while it cannot be made.
        """

    async def emit(self, events: "list[StreamEvent]") -> None:
        """Store events in the stream, in order; return when all are stored. One `id` twice is stored once.

        Raises NoAnswerError when that could not be confirmed for all of them: emit them again.
        """


class StreamEvent(Struct, frozen=True, kw_only=True):
    """One event for the stream: `weft.events.…`, its payload, and the id by which a repeat is recognised."""

    subject: str
    id: str
    payload: bytes
    headers: Mapping[str, str] = {}
