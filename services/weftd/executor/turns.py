"""Starts take turns by tenant: many starts or long pulls of one tenant do not delay those of others."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StartTurns:
    """Limits concurrency: `at_once` in all and `per_tenant` for each tenant. Waiting tenants take turns."""

    def __init__(self, *, at_once: int, per_tenant: int) -> None:
        self._left = at_once
        self._per_tenant = per_tenant
        self._taken = Counter[str]()
        self._waiting: OrderedDict[str, deque[asyncio.Event]] = OrderedDict()

    @asynccontextmanager
    async def one(self, tenant: str) -> AsyncIterator[None]:
        turn = asyncio.Event()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._next()
        try:
            await turn.wait()
            await asyncio.sleep(0)  # so that starts that wait for nothing do not all go before another tenant's
        except BaseException:
            self._give_up(tenant, turn)
            raise
        try:
            yield
        finally:
            self._end(tenant)

    def _next(self) -> None:
        for tenant in list(self._waiting):
            if not self._left:
                return
            if self._taken[tenant] < self._per_tenant:
                self._begin(tenant)

    def _begin(self, tenant: str) -> None:
        turns = self._waiting.pop(tenant)
        turns.popleft().set()
        if turns:
            self._waiting[tenant] = turns  # behind the others
        self._taken[tenant] += 1
        self._left -= 1

    def _end(self, tenant: str) -> None:
        self._left += 1
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._next()

    def _give_up(self, tenant: str, turn: asyncio.Event) -> None:
        if turn.is_set():
            self._end(tenant)
            return
        self._waiting[tenant].remove(turn)
        if not self._waiting[tenant]:
            del self._waiting[tenant]
