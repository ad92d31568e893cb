"""The queue of asks, in memory: what users and the reallocator want done, until the scheduler has done it."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence

from tests.support.doubles.store.leases import MemoryLeases
from tests.support.doubles.store.times import micro
from weft.domain.cluster import Drain
from weft.domain.job import Cause
from weft.domain.labels import Marking
from weft.domain.lease import Lease
from weft.domain.tenants import Allowance, Use, too_large
from weft.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Tune, Update
from weft.store import ASKS_BYTES_MAX, LARGE_ASK_BYTES, LargeAskWaitsError, TenantFullError
from weft.store.rows import as_json


def in_turn(asks: Sequence[Ask]) -> list[Ask]:
    """The tenants in turn, the oldest ask of each first."""
    numbers = Counter[str]()
    placed: list[tuple[int, int, Ask]] = []
    for ask in asks:
        numbers[ask.tenant] += 1
        placed.append((numbers[ask.tenant], ask.id, ask))
    return [ask for _, _, ask in sorted(placed, key=lambda one: one[:2])]


class MemoryAsks(MemoryLeases):
    def __init__(self) -> None:
        super().__init__()
        self._asks: dict[int, tuple[str, Ask]] = {}  # with its pool
        self._ask_id = 0  # never one that was before, not even after a restore: by the time of the ask
        self._ask_bytes: dict[int, int] = {}  # of those that count, by id

    async def ask(
        self,
        kind: AskKind,
        *,
        subject_id: str,
        pool: str,
        tenant: str,
        at: float,
        priority: int = 0,
        scale: Scale | None = None,
        share: Reshare | None = None,
        update: Update | None = None,
        entry: Entrance | None = None,
        gpu: int | None = None,
        drain: Drain | None = None,
        marking: Marking | None = None,
        who: str = "",
        adds_bytes: int = 0,
        allowance: Allowance | None = None,
    ) -> None:
        size = max(adds_bytes, sum(len(as_json(one).encode()) for one in (scale, share, update, entry) if one))
        if allowance is not None and size:
            reason = too_large(self._use(tenant), allowance, asked_bytes=size)
            if reason is not None:
                raise TenantFullError(reason)
            waiting = self._asked_bytes(tenant)
            if size > LARGE_ASK_BYTES and waiting >= ASKS_BYTES_MAX:
                raise LargeAskWaitsError(waiting)
        self._ask_bytes = {ask_id: known for ask_id, known in self._ask_bytes.items() if ask_id in self._asks}
        ask_id = self._add_ask(
            kind,
            subject_id=subject_id,
            pool=pool,
            tenant=tenant,
            at=micro(at),
            priority=priority,
            scale=scale,
            share=share,
            update=update,
            entry=entry,
            gpu=gpu,
            drain=drain,
            marking=marking,
            who=who,
        )
        self._ask_bytes[ask_id] = size

    async def asks(self, *, pool: str, limit: int, bytes_max: int = ASKS_BYTES_MAX) -> list[Ask]:
        found = [ask for of_pool, ask in self._asks.values() if of_pool == pool and ask.kind is not AskKind.SUBMIT]
        asked_by: dict[str, set[str]] = {}
        first: list[Ask] = []
        for ask in found:
            by = asked_by.setdefault(ask.subject_id, set())
            by.add(ask.tenant)
            if len(by) == 1 or by == {ask.tenant}:
                first.append(ask)
        taken: list[Ask] = []
        size = 0
        for ask in in_turn(first)[:limit]:
            if size >= bytes_max:
                break
            taken.append(ask)
            size += self._ask_bytes.get(ask.id, 0)
        return taken

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        self._must_hold(lease)
        for ask_id in ask_ids:
            self._asks.pop(ask_id, None)

    @abstractmethod
    def _use(self, tenant: str, *, asked: bool = False) -> Use: ...

    def _asked_bytes(self, tenant: str) -> int:
        """The bytes of the tenant's asks that are not done."""
        return sum(self._ask_bytes.get(ask.id, 0) for _, ask in self._asks.values() if ask.tenant == tenant)

    def _add_ask(
        self,
        kind: AskKind,
        *,
        subject_id: str,
        pool: str,
        tenant: str,
        at: float,
        priority: int = 0,
        tune: Tune | None = None,
        scale: Scale | None = None,
        share: Reshare | None = None,
        update: Update | None = None,
        entry: Entrance | None = None,
        why: Cause | None = None,
        gpu: int | None = None,
        drain: Drain | None = None,
        marking: Marking | None = None,
        who: str = "",
    ) -> int:
        self._ask_id = max(self._ask_id + 1, int(at * 1e6) * 1000)
        ask = Ask(
            id=self._ask_id,
            kind=kind,
            subject_id=subject_id,
            tenant=tenant,
            at=at,
            priority=priority,
            tune=tune,
            scale=scale,
            share=share,
            update=update,
            entry=entry,
            why=why,
            gpu=gpu,
            drain=drain,
            marking=marking,
            who=who,
        )
        self._asks[ask.id] = (pool, ask)
        return ask.id
