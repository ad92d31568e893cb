"""Limits of concurrent work: costly requests, which take turns, and streams, sessions and uploads, which stay open.

`ConcurrencyLimit` bounds a resource, and `RateLimit` (`thinking/rates.py`) the requests of a principal. Two limits are
of neither kind. The CPU cost of a request (`cpu_budget.py`) is known only after the work, so its tenant owes it. A
connection (`listening.py`) has no tenant yet, and may take the place of the oldest stranger.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from weftd.gateway.errors import RejectedError

WAITING_MAX = 32  # requests of one tenant that wait; more are refused at once
WAIT_SECONDS_MAX = 5.0  # longer than it takes to notice that the store is away
PATIENT_SECONDS_MAX = 30.0


class NoSlotError(RejectedError):
    """Too many requests of this tenant wait for a turn, or this one has waited too long."""


class _Tenant:
    """Requests of one tenant: those that have a turn, and those that wait for one."""

    def __init__(self, at_once: int) -> None:
        self.turns = asyncio.Semaphore(at_once)
        self.count = 0


class Slot:
    """A slot that was taken; without `end`, a slot that blocks no other. Ending it twice does nothing."""

    def __init__(self, end: Callable[[], None] | None = None) -> None:
        self._end = end

    def end(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()


class ConcurrencyLimit:
    """Tenants are served in turn. None has more than `per_tenant` of the `at_once` slots, so a thousand requests of one
    tenant delay another tenant by one request at most. `what` names the requests in a refusal. With 0 `wait_seconds` no
    request waits: one that finds all turns taken is refused with 503."""

    def __init__(
        self,
        what: str,
        *,
        at_once: int,
        per_tenant: int,
        waiting_max: int = WAITING_MAX,
        wait_seconds: float = WAIT_SECONDS_MAX,
    ) -> None:
        self._what = what
        self._all = asyncio.Semaphore(at_once)
        self._per_tenant = per_tenant
        self._waiting_max = waiting_max
        self._wait_seconds = wait_seconds
        self._tenants: dict[str, _Tenant] = {}

    @asynccontextmanager
    async def one(self, tenant: str, *, patient: bool = False) -> AsyncIterator[None]:
        """A slot for the time of the context, as by `take`."""
        turn = await self.take(tenant, patient=patient)
        try:
            yield
        finally:
            turn.end()

    async def take(self, tenant: str, *, patient: bool = False) -> "Slot":
        """Raises RejectedError if no turn is free and no request may wait. Raises NoTurnError if too many requests of
        this tenant wait, or this one has waited too long.

        `patient` is for requests that are counted elsewhere: they wait longer, in any number.
        """
        of = self._tenants.get(tenant) or _Tenant(self._per_tenant)
        if not self._wait_seconds and (of.turns.locked() or self._all.locked()):
            raise RejectedError(503, "", f"too many {self._what} are open; end some, or ask again later")
        self._tenants[tenant] = of
        if not patient and of.count >= self._per_tenant + self._waiting_max:
            raise self._refusal(tenant)
        of.count += 1
        try:
            await self._taken(of, tenant, PATIENT_SECONDS_MAX if patient else self._wait_seconds)
        except BaseException:
            self._leave(of, tenant)
            raise
        return Slot(lambda: self._end(of, tenant))

    def _end(self, of: _Tenant, tenant: str) -> None:
        self._all.release()
        of.turns.release()
        self._leave(of, tenant)

    def _leave(self, of: _Tenant, tenant: str) -> None:
        of.count -= 1
        if not of.count:
            del self._tenants[tenant]

    async def _taken(self, of: _Tenant, tenant: str, wait_seconds: float) -> None:
        if not of.turns.locked() and not self._all.locked():  # the usual case, in which nothing is waited for
            await of.turns.acquire()
            await self._all.acquire()
            return
        try:
            async with asyncio.timeout(wait_seconds):
                await of.turns.acquire()
                try:
                    await self._all.acquire()
                except BaseException:
                    of.turns.release()
                    raise
        except TimeoutError:
            raise self._refusal(tenant) from None

    def _refusal(self, tenant: str) -> "NoSlotError":
        reason = f"tenant {tenant} may have {self._per_tenant} {self._what} at once here, and more of them wait already"
        return NoSlotError(429, "", reason, retry_after=self._wait_seconds)
