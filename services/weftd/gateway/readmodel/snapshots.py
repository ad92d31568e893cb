"""Snapshots of the store that many requests share; each is at most a little old."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, TypeVar

from msgspec import Struct

from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.domain.quotas import Quota
from weft.messages.signals import Curve, GpuScore, WorkloadClass, WorkloadPenalty
from weft.planning.in_order import KnownPlaces, order_of
from weft.store import GatewayStore, StoreUnavailableError
from weft.variability.models import RATIOS_MAX
from weftd.gateway.thinking.admission import Admission

T = TypeVar("T")

SECONDS = 1.0
SCORES_SECONDS = 5.0  # they are many, and change slowly
QUICK_TIMES = 4
LARGE = 1_000  # jobs; finding the changed ones of more takes longer than a request should wait


class Nodes(Struct, frozen=True):
    """Every node, and the admission to them."""

    all: list[Node]
    admission: Admission

    def of(self, pool: str) -> list[Node]:
        return [node for node in self.all if node.pool == pool]


class Fresh(Generic[T]):
    """One value, read again on demand when it is too old; concurrent callers share one read.

    While the store is away, one caller retries, and the others do not wait for it. A value is too old after `seconds`,
    or with `quick` after a few times the duration of its last read, so that cheap values are fresh. A value that
    `is_large` and too old only by `quick` is returned, and read again in the background; no value is older than
    `seconds`.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[T]],
        *,
        clock: Callable[[], float],
        quick: bool = False,
        seconds: float = SECONDS,
        is_large: Callable[[T], bool] = lambda _: False,
    ) -> None:
        self._read = read
        self._seconds_max = seconds
        self._is_large = is_large
        self._clock = clock
        self._quick = quick
        self._seconds = seconds
        self._value: tuple[float, T] | None = None
        self._is_for_all = True  # or the value was read for background work, and requests read it again
        self._reading: asyncio.Task[T] | None = None
        self._failing = False

    @property
    def at(self) -> float:
        """Time of the last read; -inf before the first."""
        return self._value[0] if self._value is not None else float("-inf")

    @property
    def last(self) -> T | None:
        """The last value read, however old."""
        return self._value[1] if self._value is not None else None

    @property
    def at_hand(self) -> bool:
        """True if `get` starts no read: the value is new enough, or is being read."""
        return self._new() is not None or self._reading is not None

    async def get(self) -> T:
        if (new := self._new()) is not None:
            return new[1]
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_now())
            self._reading.add_done_callback(self._done)
        elif self._failing:
            raise StoreUnavailableError("the store did not answer, and is asked again already")
        if not self._failing and (old := self._new(self._seconds_max)) is not None and self._is_large(old[1]):
            return old[1]
        return await asyncio.shield(self._reading)  # A caller that is cancelled does not end the read for the others.

    async def aside(self) -> T:
        """Like `get`, for background work. Requests read the value again afterwards, so background work makes no answer
        older."""
        is_at_hand = self.at_hand
        value = await self.get()
        if not is_at_hand and self._reading is None:
            self._is_for_all = False
        return value

    def forget(self) -> None:
        self._value = None

    def _new(self, seconds: float | None = None) -> tuple[float, T] | None:
        """The value with its time, if it is new enough for requests; without `seconds`, if it needs no read at all."""
        seconds = self._seconds if seconds is None else seconds
        if self._value is None or not self._is_for_all or self._clock() - self._value[0] >= seconds:
            return None
        return self._value

    async def _read_now(self) -> T:
        at = self._clock()  # before the read, so that the value is never older than it seems
        value = await self._read()
        if self._quick:
            self._seconds = min(self._seconds_max, QUICK_TIMES * (self._clock() - at))
        self._value, self._is_for_all = (at, value), True
        return value

    def _done(self, task: "asyncio.Task[T]") -> None:
        self._reading = None
        if not task.cancelled():
            # All waiting callers have the result.
            self._failing = isinstance(task.exception(), StoreUnavailableError)


class Snapshots:
    def __init__(
        self,
        store: GatewayStore,
        *,
        clock: Callable[[], float],
        default_pool: str,
        volumes_allowed: tuple[str, ...],
        shares: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self.default_pool = default_pool
        self._volumes_allowed = volumes_allowed
        self._shares = shares
        self.nodes: Fresh[Nodes] = Fresh(self._read_nodes, clock=clock)
        self._holding: dict[str, Fresh[list[Job]]] = {}
        self._queued: dict[str, Fresh[list[Job]]] = {}
        self._scores: dict[str, Fresh[list[GpuScore]]] = {}
        self._classes: dict[str, Fresh[list[WorkloadClass]]] = {}
        self._penalties: dict[str, Fresh[list[WorkloadPenalty]]] = {}
        self._curves: dict[str, Fresh[list[Curve]]] = {}
        self._quotas: dict[str, Fresh[list[Quota]]] = {}
        self._places: dict[str, KnownPlaces] = {}

    async def holding(self, pool: str, *, aside: bool = False) -> list[Job]:
        """The jobs that hold resources. Only for known pools: each pool's snapshot stays in memory. `aside`: for
        background work."""
        if pool not in self._holding:
            self._holding[pool] = Fresh(lambda: self._store.holding_jobs(pool=pool), clock=self._clock, quick=True)
        return await (self._holding[pool].aside() if aside else self._holding[pool].get())

    async def queued(self, pool: str, *, aside: bool = False) -> list[Job]:
        """The jobs that wait, as they were submitted. Only for known pools: each pool's snapshot stays in memory."""
        if pool not in self._queued:
            self._queued[pool] = Fresh(
                partial(self._read_queued, pool),
                clock=self._clock,
                quick=True,
                is_large=lambda queued: len(queued) >= LARGE,
            )
        return await (self._queued[pool].aside() if aside else self._queued[pool].get())

    def places(self, pool: str, policy: str) -> KnownPlaces:
        """The places that earlier passes over the pool's queue found. Only for known pools: they stay in memory."""
        order, known = order_of(policy), self._places.get(pool)
        if known is None or known.order is not order:
            known = self._places[pool] = KnownPlaces(order)
        return known

    async def quotas(self, pool: str) -> list[Quota]:
        """Only for known pools: each pool's snapshot stays in memory."""
        if pool not in self._quotas:
            self._quotas[pool] = Fresh(partial(self._store.quotas, pool=pool), clock=self._clock)
        return await self._quotas[pool].get()

    def forget_quotas(self) -> None:
        """Drop the cached quotas, because they were changed."""
        self._quotas.clear()

    async def scores(self, pool: str) -> list[GpuScore]:
        """The scores of every GPU and class. Only for known pools: each pool's snapshot stays in memory."""
        if pool not in self._scores:
            read = partial(self._store.scores, pool=pool)
            self._scores[pool] = Fresh(read, clock=self._clock, seconds=SCORES_SECONDS)
        return await self._scores[pool].get()

    async def classes(self, pool: str) -> list[WorkloadClass]:
        """The learnt classes of workloads. Only for known pools: each pool's snapshot stays in memory."""
        if pool not in self._classes:
            read = partial(self._store.classes, pool=pool)
            self._classes[pool] = Fresh(read, clock=self._clock, seconds=SCORES_SECONDS)
        return await self._classes[pool].get()

    async def penalties(self, pool: str) -> list[WorkloadPenalty]:
        """The learnt locality penalties of workloads. Only for known pools: each pool's snapshot stays in memory."""
        if pool not in self._penalties:
            read = partial(self._store.penalties, pool=pool)
            self._penalties[pool] = Fresh(read, clock=self._clock, seconds=SCORES_SECONDS)
        return await self._penalties[pool].get()

    async def curves_of_models(self, pool: str) -> list[Curve]:
        """The curves of workloads that ran on several models. Only for known pools, as above."""
        if pool not in self._curves:
            read = partial(self._store.curves_of_models, pool=pool, limit=RATIOS_MAX)
            self._curves[pool] = Fresh(read, clock=self._clock, seconds=SCORES_SECONDS)
        return await self._curves[pool].get()

    async def pools(self) -> list[str]:
        """Every pool that has nodes, and the default one."""
        return self.pools_of(await self.nodes.get())

    def pools_of(self, nodes: Nodes) -> list[str]:
        return sorted({node.pool for node in nodes.all} | {self.default_pool})

    async def _read_queued(self, pool: str) -> list[Job]:
        """Only what changed since; after a failure all of it, because the store may have come back as an older one."""
        queued = self._queued[pool]
        try:
            return await self._store.queued_jobs(pool=pool, known={job.id: job for job in queued.last or ()})
        except StoreUnavailableError:
            queued.forget()
            raise

    async def _read_nodes(self) -> Nodes:
        nodes = await self._store.nodes()
        admission = Admission(
            nodes, default_pool=self.default_pool, volumes_allowed=self._volumes_allowed, shares=self._shares
        )
        return Nodes(nodes, admission)
