"""How many GPUs each tenant held for how long, read from the stored events; each answer is kept for a few seconds."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from libs.messages.series import GpuChanges
from libs.store import GatewayStore
from services.gateway.errors import RejectedError
from services.gateway.snapshots import Fresh
from services.gateway.thinking.usage import Amounts, Had, Stretch, stretch_of, usage_of

JOBS_MAX = 200_000  # in one window
JOBS_AT_ONCE = 500  # in one statement, which takes a part of a second
KEPT_MAX = 16  # answers, by the length of their window
KEPT_SECONDS = 10.0


class Usage(Struct, frozen=True, kw_only=True):
    """All GPUs that there were, by step, and what each tenant had of them: the one that held most first."""

    window: Stretch
    there: Amounts
    tenants: list[Had]


class Usages:
    """`now` is the time of day, `clock` does not jump."""

    def __init__(self, store: GatewayStore, *, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._clock = clock
        self._kept: OrderedDict[int, Fresh[Usage]] = OrderedDict()

    def at_hand(self, seconds: int) -> bool:
        """Whether `of` begins no read."""
        return seconds in self._kept and self._kept[seconds].at_hand

    async def of(self, seconds: int) -> Usage:
        """Of the last so many seconds. Raises RejectedError, StoreUnavailableError."""
        if seconds not in self._kept:
            self._kept[seconds] = Fresh(partial(self._read, seconds), clock=self._clock, seconds=KEPT_SECONDS)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(seconds)
        return await self._kept[seconds].get()

    async def _read(self, seconds: int) -> Usage:
        ends = self._now()
        kept = [one.forgotten_before for one in await self._store.jobs_kept()]
        begins = min(max([ends - seconds, *kept]), ends - 1.0)
        changes, window = await changes_of(self._store, begins, ends), stretch_of(begins, ends)
        there, tenants = await asyncio.to_thread(usage_of, changes, window)
        return Usage(window=window, there=there, tenants=tenants)


async def changes_of(store: GatewayStore, begins: float, ends: float) -> list[GpuChanges]:
    """All changes of GPUs in a time, read in parts. Raises RejectedError if there were too many jobs."""
    ids = await store.jobs_between(begins, limit=JOBS_MAX + 1)
    if len(ids) > JOBS_MAX:
        raise RejectedError(400, "seconds", f"more than {JOBS_MAX} jobs waited or ran in that time: ask for less")
    found = [await store.gpus_there(begins=begins, ends=ends)]
    for place in range(0, len(ids), JOBS_AT_ONCE):
        found += await store.gpu_changes(ids[place : place + JOBS_AT_ONCE], begins=begins, ends=ends)
    return found
