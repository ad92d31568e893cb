"""Calls of functions as jobs, behind the interface of Python's `concurrent.futures`."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack, cast

from weft import aio
from weft.blocking import _running
from weft.client import Refused
from weft.client.calls import is_local
from weft.client.job_failed import JobFailed
from weft.client.job_fields import JobFields
from weft.functions import Function

P = ParamSpec("P")
R = TypeVar("R")


class Executor(concurrent.futures.Executor):
    """Runs each call as a job: `submit`, `map`, `shutdown` and `with` are those of `concurrent.futures.Executor`.

    `max_workers`: how many jobs there are at once; the calls behind them wait in this process. `fields`: those of
    `weft.submit`, for each job; a `weft.function` has its own beside them, which count. `pickle`, `python`: as of
    `weft.function`. The futures raise JobFailed and Refused. To cancel a future cancels its job. With WEFT_LOCAL=1
    `submit` makes the call in this process, before it returns.

    Ctrl-C in the block does not wait: the jobs go on, and KeyboardInterrupt names them.
    """

    def __init__(
        self, max_workers: int = 8, *, pickle: bool = False, python: str | None = None, **fields: Unpack[JobFields]
    ) -> None:
        if max_workers < 1:
            raise ValueError(f"max_workers must be 1 or more, got {max_workers}")
        self._pickle, self._python, self._fields = pickle, python, fields
        self._places = asyncio.Semaphore(max_workers)
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._jobs: dict[str, str] = {}  # the names of those that are not over, by id
        self._closed = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
        """Run `fn(*args, **kwargs)` as a job, and return at once. Raises RuntimeError after `shutdown`."""
        function = self._function(fn)
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot submit after shutdown")
            if is_local():
                return _called_here(function, args, kwargs)
            future = asyncio.run_coroutine_threadsafe(self._run(function, args, kwargs), _running())
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and wait for the pending ones. `cancel_futures`: cancel them and their jobs."""
        with self._lock:
            self._closed = True
            left = list(self._futures)
        for future in left if cancel_futures else ():
            future.cancel()
        if wait:
            concurrent.futures.wait(left)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if isinstance(error, KeyboardInterrupt):
            self.shutdown(wait=False)
            going = ", ".join(f"{name} ({job})" for job, name in self._jobs.items())
            raise KeyboardInterrupt(f"goes on: {going}; weft.Job.find(ID) returns one" if going else "") from None
        self.shutdown()
        return None

    def _function(self, fn: Callable[P, R]) -> "aio.Function[P, R]":
        pickle, python, fields = self._pickle, self._python, self._fields
        if isinstance(fn, Function):
            pickle, python = fn._pickle or pickle, fn._python or python
            fields = cast(JobFields, {**fields, **fn._fields})
            fn = fn.__wrapped__
        return aio.function(pickle=pickle, python=python, **fields)(fn)

    async def _run(self, function: "aio.Function[P, R]", args: Any, kwargs: Any) -> R:
        async with self._places:
            spawning = asyncio.ensure_future(function.spawn(*args, **kwargs))
            try:
                job = await asyncio.shield(spawning)
            except asyncio.CancelledError:  # it may be submitted already
                await (await spawning).cancel()
                raise
            self._jobs[job.id] = job.name
            try:
                return await job.result()
            except asyncio.CancelledError:
                await job.cancel()
                raise
            finally:
                del self._jobs[job.id]


def _called_here(function: "aio.Function[P, R]", args: Any, kwargs: Any) -> "Future[R]":
    future: Future[R] = Future()
    try:
        future.set_result(function.here((args, kwargs)).over())
    except (JobFailed, Refused) as error:
        future.set_exception(error)
    return future
