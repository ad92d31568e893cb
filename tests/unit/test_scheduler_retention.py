"""The leader deletes old jobs a few at a time; whoever does not lead deletes none."""

import pytest

from tests.support.doubles.store import MemoryStore
from weft.domain.lease import Lease
from weft.store import LeaseLostError
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.retention import AT_ONCE, Retention

NOW = 1_700_000_000.0
KEPT = 1000.0


class Counting(MemoryStore):
    """As if so many jobs were old."""

    def __init__(self, old: int) -> None:
        super().__init__()
        self.old = old
        self.asked: list[tuple[float, float, int]] = []
        self.lost = False

    async def forget_jobs(self, lease: Lease, *, before: float, kept_seconds: float, limit: int) -> int:
        if self.lost:
            raise LeaseLostError("another leads")
        self.asked.append((before, kept_seconds, limit))
        deleted = min(limit, self.old)
        self.old -= deleted
        return deleted


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weftd.scheduler.retention.PAUSE_SECONDS", 0.0)


async def retention(store: Counting, *, kept_seconds: float | None = KEPT, leads: bool = True) -> Retention:
    leadership = Leadership(name="default", holder="me", store=store, clock=lambda: NOW, leader_seconds=6.0)
    if leads:
        await leadership.beat()
        assert leadership.lease is not None
    return Retention(store=store, leadership=leadership, clock=lambda: NOW, kept_seconds=kept_seconds)


@pytest.mark.usefixtures("without_pauses")
async def test_old_jobs_are_deleted_in_parts_until_none_is_left() -> None:
    store = Counting(old=2 * AT_ONCE + 1)
    await (await retention(store)).cycle()
    assert store.old == 0
    assert store.asked == [(NOW - KEPT, KEPT, AT_ONCE)] * 3


@pytest.mark.usefixtures("without_pauses")
async def test_one_turn_is_bounded_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weftd.scheduler.retention.BATCHES_MAX", 2)
    store = Counting(old=3 * AT_ONCE)
    cycles = await retention(store)
    await cycles.cycle()
    assert store.old == AT_ONCE
    await cycles.cycle()
    assert store.old == 0


@pytest.mark.parametrize(("kept_seconds", "leads"), [(None, True), (KEPT, False)])
async def test_nothing_is_deleted_for_ever_or_by_a_standby(kept_seconds: float | None, leads: bool) -> None:
    store = Counting(old=5)
    await (await retention(store, kept_seconds=kept_seconds, leads=leads)).cycle()
    assert store.old == 5


async def test_a_leader_that_lost_its_lease_deletes_nothing_and_goes_on() -> None:
    store = Counting(old=5)
    store.lost = True
    await (await retention(store)).cycle()
    assert store.old == 5
