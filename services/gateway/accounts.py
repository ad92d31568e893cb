"""Accounts: stretches of a time, read from the stored events in parts, and folded in a thread; few are kept."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby

from msgspec import Struct

from libs.messages.accounts import JobFacts
from libs.messages.events import Event
from libs.store import GatewayStore
from services.gateway.errors import RejectedError
from services.gateway.snapshots import Fresh
from services.gateway.thinking.accounting.capacity import NodesPast, PoolSplit, nodes_of, split
from services.gateway.thinking.accounting.stretches import EpochStretch, Wait, folded

JOBS_MAX = 200_000  # in one time
PARTS_MAX = 1_000_000  # changes of what was held, in one time
JOBS_AT_ONCE = 500  # in one statement
KEPT_MAX = 2  # accounts: each may be large
KEPT_SECONDS = 10.0
_Page = tuple[list[JobFacts], list[Event]]


class GpuAccount(Struct, frozen=True, kw_only=True):
    """Everything that was held from `begins` until `ends`, in microseconds since 1970, and what became of all GPUs, by
    pool. `whole_since`: what ended before may have been deleted."""

    begins: int
    ends: int
    whole_since: float | None
    stretches: list[EpochStretch]
    nodes: NodesPast
    pools: dict[str, PoolSplit]


class Accounts:
    """`now` is the time of day, `clock` does not jump."""

    def __init__(self, store: GatewayStore, *, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._clock = clock
        self._kept: OrderedDict[tuple[int, float | None], Fresh[GpuAccount]] = OrderedDict()

    def at_hand(self, seconds: int, until: float | None) -> bool:
        """Whether `of` begins no read."""
        key = (seconds, until)
        return key in self._kept and self._kept[key].at_hand

    async def of(self, seconds: int, until: float | None) -> GpuAccount:
        """Of the so many seconds until then, or until now. Raises RejectedError, StoreUnavailableError."""
        key = (seconds, until)
        if key not in self._kept:
            self._kept[key] = Fresh(partial(self._read, seconds, until), clock=self._clock, seconds=KEPT_SECONDS)
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return await self._kept[key].get()

    async def _read(self, seconds: int, until: float | None) -> GpuAccount:
        now = self._now()
        ends = now if until is None else min(now, until)
        kept = [one.forgotten_before for one in await self._store.jobs_kept()]
        begins = min(max([ends - seconds, *kept]), ends - 1.0)
        return await account_of(self._store, begins, ends, whole_since=max(kept, default=None))


async def account_of(
    store: GatewayStore, begins: float, ends: float, *, whole_since: float | None = None
) -> GpuAccount:
    """Read in parts. Raises RejectedError if there was too much for one answer, StoreUnavailableError."""
    first, last = round(begins * 1e6), max(round(begins * 1e6) + 1, round(ends * 1e6))
    ids = await store.jobs_between(begins, limit=JOBS_MAX + 1)
    if len(ids) > JOBS_MAX:
        raise RejectedError(400, "seconds", f"more than {JOBS_MAX} jobs waited or ran in that time: ask for less")
    nodes = await asyncio.to_thread(nodes_of, await store.node_stories(begins=begins, ends=ends))
    stretches: list[EpochStretch] = []
    waits: list[Wait] = []
    parts = 0
    following = await _page(store, ids[:JOBS_AT_ONCE], begins, ends)
    for place in range(0, len(ids), JOBS_AT_ONCE):
        some = ids[place + JOBS_AT_ONCE : place + 2 * JOBS_AT_ONCE]
        (held, waited), following = await asyncio.gather(
            asyncio.to_thread(_folded, following, first, last), _page(store, some, begins, ends)
        )
        stretches += held
        waits += waited
        parts += sum(len(one.parts) for one in held)
        if parts > PARTS_MAX:
            raise RejectedError(400, "seconds", f"what jobs held changed more than {PARTS_MAX} times: ask for less")
    pools = await asyncio.to_thread(_split, nodes, stretches, waits, first, last)
    return GpuAccount(begins=first, ends=last, whole_since=whole_since, stretches=stretches, nodes=nodes, pools=pools)


async def _page(store: GatewayStore, ids: Sequence[str], begins: float, ends: float) -> _Page:
    if not ids:
        return [], []
    return await store.job_facts(ids), await store.accounts(ids, begins=begins, ends=ends)


def _folded(page: _Page, begins: int, ends: int) -> tuple[list[EpochStretch], list[Wait]]:
    facts, told = page
    stories = {job_id: list(of) for job_id, of in groupby(told, key=lambda event: event.subject_id)}
    stretches: list[EpochStretch] = []
    waits: list[Wait] = []
    for job in facts:
        held, waited = folded(job, stories.get(job.id, ()), begins=begins, ends=ends)
        stretches += held
        waits += waited
    return stretches, waits


def _split(
    nodes: NodesPast, stretches: Iterable[EpochStretch], waits: Iterable[Wait], begins: int, ends: int
) -> dict[str, PoolSplit]:
    parts = (part for stretch in stretches for part in stretch.parts)
    return split(nodes, parts, waits, begins=begins, ends=ends)
