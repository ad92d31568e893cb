"""Accounts of a period: stretches of GPU use, read from the stored events in parts and folded in a thread. A few
accounts are cached."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from msgspec import Struct

from weft.messages.accounts import JobFacts, UsageGrouping
from weft.messages.events import Event
from weft.store import GatewayStore
from weftd.gateway.errors import RejectedError
from weftd.gateway.readmodel.snapshots import Fresh
from weftd.gateway.thinking.accounting.capacity import NodesPast, PoolSplit, nodes_of, split
from weftd.gateway.thinking.accounting.rows import Books, rows_of
from weftd.gateway.thinking.accounting.steps import Amounts, StepWindow, TenantSteps, by_tenant, window_of
from weftd.gateway.thinking.accounting.stretches import EpochStretch, Wait, folded
from weftd.gateway.thinking.accounting.used import UsedLedger

JOBS_MAX = 200_000  # in one time
PARTS_MAX = 1_000_000  # changes of what was held, in one time
JOBS_AT_ONCE = 500  # in one statement
KEPT_MAX = 2  # accounts: each may be large
USAGES_MAX = 16  # kept, by the length of their window
KEPT_SECONDS = 10.0
_Page = tuple[list[JobFacts], list[Event]]
K = TypeVar("K")
V = TypeVar("V")


class GpuAccount(Struct, frozen=True, kw_only=True):
    """GPU time held from `begins` until `ends`, in microseconds since 1970, and the use of all GPUs, by pool.
    `whole_since`: jobs that ended before may have been deleted."""

    begins: int
    ends: int
    whole_since: float | None
    stretches: list[EpochStretch]
    waits: list[Wait]
    nodes: NodesPast
    pools: dict[str, PoolSplit]


class Usage(Struct, frozen=True, kw_only=True):
    """GPUs of the cluster by step, and the part that each tenant held. `used` and `unused`: GPU-seconds by tenant;
    None: too little of what it held was sampled."""

    window: StepWindow
    there: Amounts
    tenants: list[TenantSteps]
    used: dict[str, float | None]
    unused: dict[str, float | None]


class Accounts:
    """`now` is the time of day, `clock` does not jump."""

    def __init__(
        self, store: GatewayStore, ledger: UsedLedger, *, now: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._now = now
        self._clock = clock
        self._kept: OrderedDict[tuple[int, float | None], Fresh[GpuAccount]] = OrderedDict()
        self._usages: OrderedDict[int, Fresh[Usage]] = OrderedDict()

    async def of(self, seconds: int, until: float | None) -> GpuAccount:
        """Usage of a period that ends then, or now. Raises RejectedError, StoreUnavailableError."""
        return await self._fresh(self._kept, (seconds, until), partial(self._read, seconds, until), KEPT_MAX).get()

    def usage_at_hand(self, seconds: int) -> bool:
        """True if `usage` needs no read of the store."""
        return seconds in self._usages and self._usages[seconds].at_hand

    async def usage(self, seconds: int) -> Usage:
        """Usage of the last seconds, by tenant and by step. Raises RejectedError, StoreUnavailableError."""
        return await self._fresh(self._usages, seconds, partial(self._add_up, seconds), USAGES_MAX).get()

    def _fresh(self, kept: OrderedDict[K, Fresh[V]], key: K, read: Callable[[], Awaitable[V]], most: int) -> Fresh[V]:
        if key not in kept:
            kept[key] = Fresh(read, clock=self._clock, seconds=KEPT_SECONDS)
            while len(kept) > most:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]

    async def _add_up(self, seconds: int) -> Usage:
        return await asyncio.to_thread(usage_of, await self._read(seconds, None), self._ledger)

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
        raise RejectedError(
            400, "seconds", f"more than {JOBS_MAX} jobs waited or ran in that time: ask for a shorter time"
        )
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
            raise RejectedError(
                400, "seconds", f"the allocations of jobs changed more than {PARTS_MAX} times: ask for a shorter time"
            )
    pools = await asyncio.to_thread(_split, nodes, stretches, waits, first, last)
    return GpuAccount(
        begins=first, ends=last, whole_since=whole_since, stretches=stretches, waits=waits, nodes=nodes, pools=pools
    )


def usage_of(account: GpuAccount, ledger: UsedLedger) -> Usage:
    """The account by tenant and by step. May take a second: call it in a thread."""
    window = window_of(account.begins, account.ends)
    there, tenants = by_tenant(account.stretches, account.waits, account.nodes, window)
    _, rows = rows_of(account.stretches, UsageGrouping.TENANT, Books(nodes=account.nodes, prices=None, ledger=ledger))
    used = {row.key: row.gpu_seconds_used for row in rows}
    unused = {row.key: row.gpu_seconds_unused for row in rows}
    return Usage(window=window, there=there, tenants=tenants, used=used, unused=unused)


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
