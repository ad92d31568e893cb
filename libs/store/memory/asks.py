"""The queue of asks, in memory: what users and the reallocator want done, until the scheduler has done it."""

from collections import Counter
from collections.abc import Sequence

from libs.domain.job import Cause
from libs.domain.lease import Lease
from libs.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Tune, Update
from libs.store.memory.leases import MemoryLeases
from libs.store.memory.times import micro


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
        self._ask_id = 0

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
    ) -> None:
        self._add_ask(
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
        )

    async def asks(self, *, pool: str, limit: int) -> list[Ask]:
        found = [ask for of_pool, ask in self._asks.values() if of_pool == pool and ask.kind is not AskKind.SUBMIT]
        asked_by: dict[str, set[str]] = {}
        first: list[Ask] = []
        for ask in found:
            by = asked_by.setdefault(ask.subject_id, set())
            by.add(ask.tenant)
            if len(by) == 1 or by == {ask.tenant}:
                first.append(ask)
        return in_turn(first)[:limit]

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        self._must_hold(lease)
        for ask_id in ask_ids:
            self._asks.pop(ask_id, None)

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
    ) -> None:
        self._ask_id += 1
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
        )
        self._asks[ask.id] = (pool, ask)
