"""An event loop whose clock jumps to the next timer when nothing else can happen: hours pass in a moment.

All of asyncio runs on it unchanged; only threads and sockets are not waited for. A program in which nothing can ever
happen again raises DeadlockError.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class DeadlockError(Exception):
    """Nothing is ready, no timer is set: this would have hung."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, starts_at: float = 0.0) -> None:
        self._virtual_now = starts_at
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        self._virtual_now += seconds


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise DeadlockError("nothing is ready and no timer is set")
        self._loop.jump(timeout)
        return super().select(0)


def run_virtually(program: Coroutine[Any, Any, T]) -> T:
    """Run it to its end on a clock of its own that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(program)
