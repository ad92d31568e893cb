"""Hints to the scheduler and the relay to read the store now. Many commands give one hint; a lost hint costs a poll."""

import asyncio
import logging

from weft.bus import Bus, BusError
from weft.messages.asks import AskStored, OutboxFilled

logger = logging.getLogger(__name__)


class Wakeups:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._pools: set[str] = set()
        self._outbox = False
        self._task: asyncio.Task[None] | None = None

    def asked(self, pool: str, *, told: bool = False) -> None:
        """Note that a command was stored for the scheduler of `pool`; `told`: with an event."""
        self._pools.add(pool)
        self._outbox |= told
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._say())

    async def _say(self) -> None:
        try:
            while self._pools or self._outbox:
                pools, outbox, self._pools, self._outbox = self._pools, self._outbox, set(), False
                for pool in sorted(pools):
                    await self._bus.publish(AskStored(pool=pool))
                if outbox:
                    await self._bus.publish(OutboxFilled())
        except BusError as error:
            logger.info("a hint was not published: %s", error)
