"""The bus: publish, subscribe, request and answer. Postgres is truth, the bus is news: any message may be lost.

`weft.bus.nats` has the one for a real server; tests have one in memory. One conformance suite holds both.

Errors: BusError
        ├── NoAnswerError     no answer came within the time given (the request may still have had its effect)
        └── BusClosedError    this bus is closed and stays so
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from msgspec import Struct

from weft.messages import Connection, Message

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Struct)


class BusError(Exception):
    """Something about the bus."""


class NoAnswerError(BusError):
    """No answer came in time."""


class BusClosedError(BusError):
    """The bus is closed."""


class RawRequest(Struct, frozen=True, kw_only=True):
    """A request as bytes and headers, for handlers that decode it themselves.

    `sender`: the inbox of the connection that asks, as far as it tells one; another connection may claim the same.
    """

    payload: bytes
    headers: dict[str, str]
    sender: str = ""


class Subscription(Protocol):
    async def drain(self) -> None:
        """Take no further messages, finish those in hand, then return."""


class Bus(Protocol):
    """Messages are JSON. Handlers of one subscription run at once, up to `at_once`, so they may finish out of order.

    A message that cannot be decoded, or whose handler raises, is logged and counted; the subscription goes on.
    """

    @property
    def connected(self) -> bool: ...

    @property
    def connection(self) -> Connection | None:
        """The present connection; None while the bus is disconnected."""

    async def publish(self, message: Message) -> None:
        """Publish to the present subscribers. While disconnected the message is dropped and counted."""

    async def request(self, message: Message, reply: type[R], *, seconds_max: float) -> R:
        """Return the first answer. Raises NoAnswerError after `seconds_max`, or at once if there is no subscriber."""

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
        """Call `handler` with every `kind`. `tokens` fix parts of the subject (`node_id="node-1"`); others are
        wildcards.

        Each message goes to one of the subscribers in a `group`. With `apart_seconds`, for messages of which each says
        all that those before on its subject did: two of one subject are handled at least so far apart, large ones
        farther, and of those between only the newest, so that no sender takes the time of the others.
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
        """Answer every request of `kind` with what `handler` returns; None leaves it to another subscriber."""

    async def answer_raw(
        self, subject: str, handler: Callable[[RawRequest], Awaitable[Struct]], *, group: str = "", at_once: int = 64
    ) -> Subscription:
        """Answer requests whose payload is not one of our messages."""

    async def ensure_stream(self) -> str:
        """Make the stream of events if it does not exist, and return its identity, which no other stream has: by it
        the caller knows that the stream was lost and made anew. Raises NoAnswerError while it cannot be made.
        """

    async def emit(self, events: "list[StreamEvent]") -> None:
        """Store events in the stream, in order; return when all are stored. An `id` that is sent twice is stored once.

        Raises NoAnswerError if the server did not confirm all of them: the caller sends them again.
        """


class StreamEvent(Struct, frozen=True, kw_only=True):
    """One event for the stream: `weft.events.…`, its payload, and the id by which a repeat is recognised."""

    subject: str
    id: str
    payload: bytes
    headers: Mapping[str, str] = {}
