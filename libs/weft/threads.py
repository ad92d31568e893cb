"""Calls that may hang, each in a daemon thread of its own.

Not asyncio.to_thread: its few threads would all be taken by calls that hang, and at exit a process waits for them.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def aside(call: Callable[[], T], *, name: str) -> Future[T]:
    """The answer of `call`, or its exception, from a thread called `name`. Nothing waits for the thread."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # a caller that waits no longer does not cancel it

    def work() -> None:
        try:
            found = call()
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            answer.set_result(found)

    threading.Thread(target=work, name=name, daemon=True).start()
    return answer
