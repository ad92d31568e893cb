"""A bus on which nobody answers: the executor's while NATS cannot be reached, so that its fence still falls."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from libs.bus import Asked, Event, NoAnswerError
from libs.messages import Message

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Struct)


class Nothing:
    """A subscription to silence."""

    async def drain(self) -> None:
        pass


class SilentBus:
    connected = False

    async def publish(self, message: Message) -> None:
        pass

    async def request(self, message: Message, reply: type[R], *, seconds_max: float) -> R:
        raise NoAnswerError("there is no bus")

    async def subscribe(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[None]],
        *,
        group: str = "",
        at_once: int = 64,
        **tokens: str,
    ) -> Nothing:
        return Nothing()

    async def answer(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[Struct | None]],
        *,
        group: str = "",
        at_once: int = 64,
        **tokens: str,
    ) -> Nothing:
        return Nothing()

    async def answer_raw(
        self, subject: str, handler: Callable[[Asked], Awaitable[Struct]], *, group: str = "", at_once: int = 64
    ) -> Nothing:
        return Nothing()

    async def ensure_stream(self) -> bool:
        raise NoAnswerError("there is no bus")

    async def emit(self, events: list[Event]) -> None:
        raise NoAnswerError("there is no bus")
