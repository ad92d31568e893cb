"""A bus without answers: the executor uses it while NATS cannot be reached, so that its fence still falls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from weft.bus import Bus, NoAnswerError, RawRequest, StreamEvent
from weft.messages import Message

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Struct)


class SilentSubscription:
    """A subscription without messages."""

    async def drain(self) -> None:
        pass


class SilentBus:
    connected = False
    connection = None

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
        apart_seconds: float = 0.0,
        **tokens: str,
    ) -> SilentSubscription:
        return SilentSubscription()

    async def answer(
        self,
        kind: type[M],
        handler: Callable[[M], Awaitable[Struct | None]],
        *,
        group: str = "",
        at_once: int = 64,
        **tokens: str,
    ) -> SilentSubscription:
        return SilentSubscription()

    async def answer_raw(
        self, subject: str, handler: Callable[[RawRequest], Awaitable[Struct]], *, group: str = "", at_once: int = 64
    ) -> SilentSubscription:
        return SilentSubscription()

    async def ensure_stream(self) -> str:
        raise NoAnswerError("there is no bus")

    async def emit(self, events: list[StreamEvent]) -> None:
        raise NoAnswerError("there is no bus")


class Silence:
    """The executor on a silent bus during tries to reach NATS: a try takes seconds, and the fence may fall."""

    def __init__(self, serve: Callable[[Bus, asyncio.Event], Awaitable[None]], *, patience: float = 0.5) -> None:
        """It serves only if the silence lasts for `patience` seconds: mostly NATS is there at once."""
        self._serve, self._patience = serve, patience
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start, unless it is running. Raises its error if it failed."""
        if self._task is not None and self._task.done():
            await self.end()
        if self._task is None:
            self._over.clear()
            self._task = asyncio.create_task(self._last(), name="silence")

    async def end(self) -> None:
        """Stop, and return when it has ended. Raises its error if it failed."""
        self._over.set()
        task, self._task = self._task, None
        if task is not None:
            await task

    async def _last(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._over.wait()
        except TimeoutError:
            await self._serve(SilentBus(), self._over)
