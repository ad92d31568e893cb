"""CPU budgets of tenants: a tenant that used more than its share of this gateway's CPU waits, and others pass.

The gateway measures the cost of a request in the steps of its coroutine and its work in threads. It also charges large
work of other processes: reads of the past or of events by their time in the store, pieces of logs and large
specifications by their bytes, commands by a fixed price.

It is no limit of rate or concurrency (`concurrency.py`): a request is admitted before its cost is known, and a debt
delays the next one only while another tenant is there.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from weftd.gateway.errors import RejectedError
from weftd.gateway.thinking.budgets import Budgets, ProcessorBudget

T = TypeVar("T")
P = ParamSpec("P")

PASS_SECONDS = 0.001  # CPU time charged for each request before its work is measured
WRITE_SECONDS = 0.0002  # and each write to a stream
RECEIVED_SECONDS_PER_BYTE = 5e-9  # the read of a specification from the network is not measured
ASK_SECONDS = 0.002  # time of the scheduler and the store for a submission or a command
STORED_SECONDS_PER_BYTE = 8e-8  # by the store, the scheduler and the nodes: about 70 ms for a specification of 880 KB
LOOK_SECONDS = 0.1  # between two checks whether a tenant may continue: others may have left
WAITING_MAX = 1024  # waiting requests of one tenant
WAIT_SECONDS_MAX = 10.0

PAYER: ContextVar[str] = ContextVar("payer", default="")  # the tenant that pays for the present work


def no_time() -> float:
    return 0.0


class _Lane:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class CpuBudgets:
    """`clock` does not jump; `processor` is the CPU time of the calling thread."""

    def __init__(
        self, budget: ProcessorBudget, *, clock: Callable[[], float], processor: Callable[[], float] = no_time
    ) -> None:
        self._budgets = Budgets(budget)
        self._clock = clock
        self._processor = processor
        self._cpu_budgets: dict[str, _Lane] = {}

    async def go(self, tenant: str) -> None:
        """Return when the work on a request of the tenant may begin. Raises RejectedError 429 if too many wait already,
        or this one has waited too long."""
        now = self._clock()
        self._budgets.came(tenant, now)
        if tenant not in self._cpu_budgets and not self._budgets.wait(tenant, now):
            self._budgets.charge(tenant, PASS_SECONDS, now)
            return
        if tenant in self._cpu_budgets and self._cpu_budgets[tenant].count >= WAITING_MAX:
            raise _refusal(tenant)
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self._in_lane(tenant, PASS_SECONDS)
        except TimeoutError:
            raise _refusal(tenant) from None

    async def write(self, tenant: str) -> None:
        """Return when the next part of a long or open answer may be made: one part of a tenant in each pass of the
        event loop, and later while the tenant owes time, so that each part holds more."""
        self._budgets.came(tenant, self._clock())
        await self._in_lane(tenant, WRITE_SECONDS)

    async def _in_lane(self, tenant: str, price: float) -> None:
        lane = self._cpu_budgets.setdefault(tenant, _Lane())
        lane.count += 1
        try:
            async with lane.lock:
                await asyncio.sleep(0)
                while wait := self._budgets.wait(tenant, self._clock()):  # noqa: ASYNC110 - time pays, and has no event
                    await asyncio.sleep(min(wait, LOOK_SECONDS))
                self._budgets.charge(tenant, price, self._clock())
        finally:
            lane.count -= 1
            if not lane.count:
                del self._cpu_budgets[tenant]

    async def paid(self, tenant: str, work: Coroutine[Any, Any, T]) -> T:
        """Do the work; the tenant pays for each of its steps, and for its work in threads."""
        context = copy_context()
        context.run(PAYER.set, tenant)
        return await _Steps(context, work, self._processor, lambda seconds: self.charge(tenant, seconds))

    @contextmanager
    def elsewhere(self, tenant: str) -> Iterator[None]:
        """While another process works for the tenant, charge the time like one of our steps."""
        began = self._clock()
        try:
            yield
        finally:
            self.charge(tenant, self._clock() - began)

    def charge(self, tenant: str, seconds: float) -> None:
        self._budgets.charge(tenant, seconds, self._clock())


class _Steps(Generator[Any, Any, T]):
    """Runs the steps of `work` in `context`, and reports the CPU time of each."""

    def __init__(
        self,
        context: Context,
        work: Coroutine[Any, Any, T],
        processor: Callable[[], float],
        charge: Callable[[float], None],
    ) -> None:
        self._context, self._work, self._processor, self._charge = context, work, processor, charge

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        began = self._processor()
        try:
            return self._context.run(self._work.send, value)
        finally:
            self._charge(self._processor() - began)

    def throw(self, *raised: Any) -> Any:
        began = self._processor()
        try:
            return self._context.run(self._work.throw, *raised)
        finally:
            self._charge(self._processor() - began)


class PaidThreads(ThreadPoolExecutor):
    """Threads of an event loop whose work is charged to its tenant."""

    def __init__(
        self, cpu_budgets: CpuBudgets, loop: asyncio.AbstractEventLoop, processor: Callable[[], float], *, most: int
    ) -> None:
        super().__init__(max_workers=most, thread_name_prefix="gateway")
        self._of_lanes, self._loop, self._processor = cpu_budgets, loop, processor

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        if not (payer := PAYER.get()):
            return super().submit(work, *args, **kwargs)

        def paid() -> T:
            began = self._processor()
            try:
                return work(*args, **kwargs)
            finally:
                seconds = self._processor() - began
                if not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._of_lanes.charge, payer, seconds)

        return super().submit(paid)


def _refusal(tenant: str) -> RejectedError:
    reason = f"tenant {tenant} has used its share of this gateway's CPU while other tenants wait"
    return RejectedError(429, "", reason, retry_after=WAIT_SECONDS_MAX)
