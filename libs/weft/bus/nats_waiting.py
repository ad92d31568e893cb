"""Waits of a bus over NATS: with a bound that holds, cancelled as their caller wishes, and without an answer."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Unanswered:
    """Since when no request over the present connection was answered. `seconds_max` None: it is never too long."""

    def __init__(self, seconds_max: float | None) -> None:
        self._seconds_max = seconds_max
        self._since: float | None = None

    def end(self) -> None:
        """A request was answered, or the connection is a new one."""
        self._since = None

    def for_too_long(self) -> bool:
        """To be asked after each request without an answer. Once it is true the time begins anew."""
        now = asyncio.get_running_loop().time()
        if self._seconds_max is None or self._since is None:
            self._since = now
            return False
        if now - self._since <= self._seconds_max:
            return False
        self._since = None
        return True


async def within(seconds_max: float, doing: Coroutine[Any, Any, None]) -> None:
    """Raises TimeoutError. Where the client swallows the cancellation and waits on, its task is abandoned."""
    task = asyncio.create_task(doing)
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds_max)
    finally:
        task.cancel()
    if not done:
        raise TimeoutError
    task.result()


def cancels() -> int:
    """How often the calling task was cancelled."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
