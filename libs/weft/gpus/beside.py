"""Runs a call that may hang in a daemon thread, so that neither the caller nor the exit of the process waits for it."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def beside_the_loop(ask: Callable[[], T], *, name: str) -> asyncio.Future[T]:
    """Run `ask` in a thread called `name`.

    Not asyncio.to_thread: at exit a process waits for those threads, and a hung driver would block the exit.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(found: tuple[T, ...]) -> None:
        if answer.done():
            return
        if found:
            answer.set_result(found[0])
        else:
            answer.set_exception(RuntimeError(f"{name} failed; its thread has said why"))

    def work() -> None:
        found: tuple[T, ...] = ()
        try:
            found = (ask(),)
        finally:
            with suppress(RuntimeError):  # the loop is closed: nothing waits for the answer
                loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=work, name=name, daemon=True).start()
    return answer


class SilentError(Exception):
    """The call has not returned in time."""


def in_time(ask: Callable[[], T], *, seconds_max: float, name: str) -> T:
    """Run `ask` in a thread, for a caller without an event loop. Raises SilentError."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(ask()), name=name, daemon=True)
    thread.start()
    thread.join(seconds_max)
    if thread.is_alive():
        raise SilentError(f"{name} has not answered in {seconds_max:g} s")
    if not found:
        raise RuntimeError(f"{name} failed; its thread has said why")
    return found[0]
