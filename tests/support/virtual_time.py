"""An event loop whose clock jumps to the next timer when nothing else can happen: hours pass in a moment.

All of asyncio runs on it unchanged; what is given to threads is done at once, and sockets are not waited for. A program
in which nothing can ever happen again raises DeadlockError, one that goes round without time passing StuckError.

A `Process` is a part of the program that can be stopped and killed as a whole, as an operating system would: at any
await, without a word of its own, while everything else goes on.
"""

import asyncio
import contextvars
import selectors
from asyncio import events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from heapq import heappush
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

TURNS_AT_ONE_TIME_MAX = 200_000


class DeadlockError(Exception):
    """Nothing is ready, no timer is set: this would have hung."""


class StuckError(Exception):
    """It goes round and round, and time does not pass."""


class Process:
    """All that was begun in its context: stopped, none of it runs until it goes on; killed, none of it ever does."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.stopped = False
        self.dead = False
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self._remains: list[asyncio.Task[Any]] = []

    def begin(self, program: Coroutine[Any, Any, T], *, name: str | None = None) -> "asyncio.Task[T]":
        return self._loop.create_task(program, name=name, context=self.context)

    def stop(self) -> None:
        """As SIGSTOP does: its timers are due meanwhile, what arrives for it waits."""
        self.stopped = True

    def go_on(self) -> None:
        """As SIGCONT does: all that waited happens now, in order."""
        if not self.dead:
            self.stopped = False
            held, self._held = self._held, []
            self._loop._ready.extend(held)  # type: ignore[attr-defined]

    def kill(self) -> None:
        """As SIGKILL does: no `finally` of it runs."""
        self.dead = self.stopped = True
        self._remains = list(self._tasks)  # or they would be collected, and their `finally` run after all

    def tasks(self) -> "list[asyncio.Task[Any]]":
        return sorted((task for task in self._tasks if not task.done()), key=lambda task: task.get_name())

    def unwind(self) -> None:
        """The simulation is over: let what is left of it end, so that nothing is left over."""
        for task in list(self._tasks):
            task.cancel()
        self.dead = False
        self.go_on()


_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def this_process() -> Process | None:
    """The process whose code runs now."""
    return _process.get()


class _Handle(events.Handle):
    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(_process)  # type: ignore[attr-defined]
        if process is not None and process.stopped:
            process._held.append(self)
        else:
            super()._run()  # type: ignore[misc]


class _TimerHandle(events.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        process = self._context.get(_process)  # type: ignore[attr-defined]
        if process is not None and process.stopped:
            process._held.append(self)
        else:
            super()._run()  # type: ignore[misc]


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self, starts_at: float = 0.0) -> None:
        self._virtual_now = starts_at
        super().__init__(_Jumping(self))
        self.set_task_factory(_born)

    def time(self) -> float:
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        self._virtual_now += seconds

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Call it at once, as the clock would jump while a thread works: how far would depend on the machine's load."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def _born(loop: asyncio.AbstractEventLoop, program: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(program, loop=loop, **options)
    context = options.get("context")
    process = _process.get() if context is None else context.get(_process)
    if process is not None:
        process._tasks.add(task)
    return task


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise DeadlockError("nothing is ready and no timer is set")
        if timeout > 0:
            self._turns = 0
            self._loop.jump(timeout)
        elif self._turns >= TURNS_AT_ONE_TIME_MAX:
            self._turns = 0  # so that it can be ended in order
            raise StuckError(f"{TURNS_AT_ONE_TIME_MAX} turns, and it is still {self._loop.time():.6f}")
        self._turns += 1
        return super().select(0)


def run_virtually(program: Coroutine[Any, Any, T]) -> T:
    """Run it to its end on a clock of its own that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(program)
