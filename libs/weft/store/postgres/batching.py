"""Calls that arrive while earlier ones are under way wait briefly, and then go to the store in one statement."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from weft.store import StoreUnavailableError

T = TypeVar("T")
R = TypeVar("R")

COUNT_MAX = 64
BATCHES_MAX = 2  # under way at the same time, so that one that waits for a lock does not delay all others


class Batching(Generic[T, R]):
    """`carry` takes several items in one statement, and returns an answer for each, in their order.

    If it raises one of `alone_on`, each item of the batch is tried by itself: a refused item harms no other. No call
    is delayed on purpose: one that finds no batch under way leaves at once.
    """

    def __init__(
        self, carry: Callable[[Sequence[T]], Awaitable[Sequence[R]]], *, alone_on: tuple[type[Exception], ...]
    ) -> None:
        self._carry = carry
        self._alone_on = alone_on
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._batches: set[asyncio.Task[None]] = set()

    async def one(self, item: T) -> R:
        """The answer to this item. Raises what `carry` raises."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        asyncio.get_running_loop().call_soon(self._leave)
        return await answer

    def _leave(self) -> None:
        while self._waiting and len(self._batches) < BATCHES_MAX:
            batch = [self._waiting.popleft() for _ in range(min(COUNT_MAX, len(self._waiting)))]
            task = asyncio.create_task(self._go([each for each in batch if not each[1].done()]))
            self._batches.add(task)
            task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._batches.discard(task)
        self._leave()

    async def _go(self, batch: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._carry([item for item, _ in batch]) if batch else ()
        except self._alone_on as error:
            if len(batch) == 1:
                _fail(batch, error)
            for each in batch if len(batch) > 1 else ():
                await self._go([each])
        except StoreUnavailableError as error:
            _fail(batch, error)
            _fail(self._waiting, error)  # the waiting calls would wait for the same store, as long again
            self._waiting.clear()
        except BaseException as error:  # a bug, or the end of this process: no caller is left waiting
            _fail(batch, error)
            raise
        else:
            for (_, answer), found in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)


def _fail(batch: Sequence[tuple[T, asyncio.Future[R]]], error: BaseException) -> None:
    for _, answer in batch:
        if answer.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            answer.cancel()
        else:
            answer.set_exception(error)
