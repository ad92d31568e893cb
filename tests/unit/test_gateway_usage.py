"""GPU-seconds are what a fold second by second makes of the same events; what was held and idle is all there was."""

import random

import numpy as np
import pytest

from tests.support.builders import node, spec
from tests.support.doubles.store import MemoryStore
from tests.support.held_story import TENANTS, tell_at_random
from tests.support.steps import go, placement
from tests.support.tier import some
from weft.domain.job import JobEvent
from weft.store.accounts import Moment
from weftd.gateway.accounting.accounts import JOBS_AT_ONCE, JOBS_MAX, Accounts, account_of, usage_of
from weftd.gateway.readmodel.past import Past, past_of
from weftd.gateway.thinking.accounting.steps import STEPS_MAX, by_step, fair, sum_of, window_of
from weftd.gateway.thinking.accounting.used import UsedLedger

BEGAN = 1_767_225_600.0
GPU_SECOND = 1_000_000_000  # in thousandths of a GPU times microseconds


async def looked_back(store: MemoryStore, at: float) -> Past:
    told = await store.told_until(Moment(at=at))
    ids = dict.fromkeys(event.subject_id for event in told if event.topic == "jobs")
    return past_of(told, await store.jobs_of(list(ids)), Moment(at=at))


@pytest.mark.parametrize("seed", some(5, range(25)))
async def test_a_window_adds_up_to_what_each_of_its_seconds_had(seed: int) -> None:
    drawn, store = random.Random(seed), MemoryStore()
    last = await tell_at_random(store, store, drawn, begins=BEGAN, jobs=6, things=150)
    begins = BEGAN + drawn.randint(-5, 60)
    ends = drawn.choice([last, last - drawn.randint(1, 20)])
    held = dict.fromkeys(TENANTS, 0)
    there = 0
    for second in range(int(ends - begins)):
        past = await looked_back(store, begins + second)
        there += sum(len(node.capacity.gpus) for node in past.nodes) * GPU_SECOND
        for job in past.jobs:
            if job.state.holding:
                held[job.tenant] += round(job.gpus_held * 1000) * GPU_SECOND // 1000
    usage = usage_of(await account_of(store, begins, ends), UsedLedger())
    assert sum_of(usage.there) == there
    assert {had.tenant: had.total for had in usage.tenants if had.total} == {
        name: of for name, of in held.items() if of
    }
    assert any(held.values())
    assert sum_of(usage.there) >= sum(had.total for had in usage.tenants)
    for had in usage.tenants:
        assert usage.used.get(had.tenant, 0.0) == (None if had.total else 0.0), "nothing was sampled"


async def test_what_a_job_waits_for_is_due_to_its_tenant_as_far_as_there_is_any() -> None:
    """Alice holds both GPUs of the only node; a job of bob waits for one, and one of eve for a part."""
    store = MemoryStore()
    lease = await store.take_lease("default", holder="me", seen=None)
    assert lease is not None
    await store.save_node(lease, node("node-1", gpus=2, seen_at=BEGAN), event="joined", cause="")
    part = spec(role={"gpus": 0, "share": {"request": 0.25, "memory": "1GiB"}})
    for tenant, wanted in (("alice", spec(gpus=2)), ("bob", spec(gpus=1)), ("eve", part)):
        await store.submit(wanted, job_id=tenant, tenant=tenant, key=None, at=BEGAN)
    alice, _, _ = await store.admit(lease, load=0, pool="default", limit=10)
    await go(store, lease, alice, JobEvent.PLACED, at=BEGAN, placement=placement(("node-1", 0), ("node-1", 1)))
    usage = usage_of(await account_of(store, BEGAN, BEGAN + 10), UsedLedger())
    had = {one.tenant: (one.total / GPU_SECOND, sum_of(one.due) / GPU_SECOND) for one in usage.tenants}
    assert had == {"alice": (20.0, pytest.approx(8.75)), "bob": (0.0, pytest.approx(8.75)), "eve": (0.0, 2.5)}


def test_steps_hold_every_part_of_a_window_once() -> None:
    window = window_of(100_500_000, 111_250_000)
    found = by_step([(100_500_000, 1500), (103_700_001, 500), (111_000_000, -2000)], window.edges)
    assert len(found) == 11
    assert sum_of(found) == 1500 * 3_200_001 + 2000 * 7_299_999
    assert found[-1] == 2000 * 500_000
    assert (window.edges[0], window.edges[-1]) == (100_500_000, 111_250_000)


def test_a_month_of_all_that_a_large_cluster_has_is_counted_exactly() -> None:
    window = window_of(0, 31 * 86400 * 1_000_000)
    found = by_step([(0, 100_000_000)], window.edges)
    assert sum_of(found) == 100_000_000 * 31 * 86400 * 1_000_000 > 2**63


@pytest.mark.parametrize("seconds", [1, 60, 299, 301, 3600, 86_400, 2_678_400])
def test_no_window_has_too_many_steps(seconds: int) -> None:
    window = window_of(10**15, 10**15 + seconds * 1_000_000)
    assert 1 <= len(window.edges) - 1 <= STEPS_MAX
    assert window.edges[-1] - window.edges[0] == seconds * 1_000_000


@pytest.mark.parametrize("seed", some(4, range(20)))
def test_what_is_due_is_fair(seed: int) -> None:
    """Nobody gets more than it wants; all is given if it is wanted; who gets less than another has all it wants."""
    drawn = np.random.default_rng(seed)
    wants = [drawn.integers(0, 1000, 5) * GPU_SECOND for _ in range(drawn.integers(1, 8))]
    there = drawn.integers(0, 3000, 5) * GPU_SECOND
    got = fair(wants, there)
    for step in range(5):
        given = [int(of[step]) for of in got]
        want = [int(of[step]) for of in wants]
        assert sum(given) == pytest.approx(min(int(there[step]), sum(want)), rel=1e-9, abs=10)
        for mine, wish in zip(given, want, strict=True):
            assert mine <= wish
            assert wish - mine <= 10 or mine >= max(given) - 10
    assert fair([], there) == []


class Many(MemoryStore):
    """Names more jobs than one answer adds up."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.asked: list[int] = []
        self.reads = 0

    async def jobs_between(self, begins: float, *, limit: int) -> list[str]:
        del begins
        self.reads += 1
        return [f"j-{number}" for number in range(min(self.count, limit))]

    async def accounts(self, job_ids, *, begins, ends):  # type: ignore[no-untyped-def]
        self.asked.append(len(job_ids))
        return await super().accounts(job_ids, begins=begins, ends=ends)


async def test_many_jobs_are_read_in_parts_and_too_many_are_refused_by_the_field() -> None:
    store = Many(2 * JOBS_AT_ONCE + 1)
    await account_of(store, 0.0, 60.0)
    assert store.asked == [JOBS_AT_ONCE, JOBS_AT_ONCE, 1]
    store = Many(JOBS_MAX + 1)
    with pytest.raises(Exception, match="ask for a shorter time") as refused:
        await account_of(store, 0.0, 60.0)
    assert getattr(refused.value, "field", None) == "seconds"
    assert store.asked == []


async def test_all_that_ask_within_seconds_share_one_reading_and_few_are_kept() -> None:
    store, at = Many(3), [1000.0]
    accounts = Accounts(store, UsedLedger(), now=lambda: 1e9 + at[0], clock=lambda: at[0])
    for _ in range(5):
        await accounts.usage(3600)
    assert store.reads == 1
    at[0] += 11.0
    await accounts.usage(3600)
    assert store.reads == 2
    for seconds in range(60, 160):
        await accounts.usage(seconds)
    await accounts.usage(3600)
    assert store.reads == 2 + 100 + 1
