"""Where a process meets the world: every call to the bus, the store or the runtime passes a point, where it may die."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.virtual_time import Process


class Place:
    """One life of one process, and the trap that may be set for it."""

    def __init__(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self.process = process
        self.name = process.name
        self._loop = loop
        self._points_left = 0
        self._spring: Callable[[str], None] | None = None

    def trap(self, points: int, spring: Callable[[str], None]) -> None:
        """After so many more points, `spring` it: kill the process there, or stop it."""
        self._points_left, self._spring = points, spring

    async def point(self, where: str) -> None:
        if self._spring is not None:
            self._points_left -= 1
            if self._points_left <= 0:
                spring, self._spring = self._spring, None
                spring(where)
        if self.process.dead:
            await self._loop.create_future()  # it is no more
        elif self.process.stopped:
            await asyncio.sleep(0)  # returns when it goes on

    def call(self, do: Callable[..., Any], *arguments: Any) -> None:
        """Have it done by the process, when it runs."""
        self._loop.call_soon(do, *arguments, context=self.process.context)
