"""GPU-seconds are what a fold second by second makes of the same events; what was held and idle is all there was."""

import random

import numpy as np
import pytest

from libs.messages.series import GpuChanges
from libs.store.accounts import Moment
from libs.store.memory import MemoryStore
from services.gateway.past import Past, past_of
from services.gateway.thinking.usage import STEPS_MAX, by_step, fair, stretch_of, sum_of, usage_of
from services.gateway.usages import JOBS_AT_ONCE, JOBS_MAX, Usages, changes_of
from tests.support.held_story import TENANTS, tell_at_random
from tests.support.lives import Life

BEGAN = 1_767_225_600.0
GPU_SECOND = 1_000_000_000  # in thousandths of a GPU times microseconds


async def looked_back(store: MemoryStore, at: float) -> Past:
    told = await store.told_until(Moment(at=at))
    ids = dict.fromkeys(event.subject_id for event in told if event.topic == "jobs")
    return past_of(told, await store.jobs_of(list(ids)), Moment(at=at))


@pytest.mark.parametrize("seed", range(25))
async def test_a_window_adds_up_to_what_each_of_its_seconds_had(seed: int) -> None:
    drawn, store = random.Random(seed), MemoryStore()
    last = await tell_at_random(store, store, drawn, begins=BEGAN, jobs=6, things=150)
    begins = BEGAN + drawn.randint(-5, 60)
    ends = drawn.choice([last, last - drawn.randint(1, 20)])
    held = dict.fromkeys(TENANTS, 0)
    wanted = dict.fromkeys(TENANTS, 0)
    there = 0
    for second in range(int(ends - begins)):
        past = await looked_back(store, begins + second)
        there += sum(len(node.capacity.gpus) for node in past.nodes) * GPU_SECOND
        for job in past.jobs:
            if job.state.holding:
                held[job.tenant] += round(job.gpus_held * 1000) * GPU_SECOND // 1000
            else:
                roles = job.spec.roles.values()
                each = [1000 * role.gpus if role.share is None else role.share.held.request for role in roles]
                wanted[job.tenant] += sum(each) * sum(job.wanted.values()) * GPU_SECOND // 1000
    stretch = stretch_of(begins, ends)
    changes = await changes_of(store, begins, ends)
    found_there, tenants = usage_of(changes, stretch)
    assert sum_of(found_there) == there
    assert {had.tenant: had.total for had in tenants if had.total} == {name: of for name, of in held.items() if of}
    assert any(held.values())
    for name, of in wanted.items():
        told = [one for one in changes if (one.what, one.tenant) == ("wanted", name)]
        assert sum(sum_of(by_step(one, stretch.edges)) for one in told) == of
    idle = sum_of(found_there) - sum(had.total for had in tenants)
    assert idle >= 0


@pytest.mark.parametrize("seed", range(10))
async def test_it_is_what_every_job_itself_says_that_it_has_had(seed: int) -> None:
    """A production scheduler's life: the law of steps counts GPU-seconds of its own."""
    life = Life(2 * seed)  # the orders of odd seeds forget what a job has had
    await life.live(150)
    began, now = 1_700_000_000.0, life.now
    there, tenants = usage_of(await changes_of(life.store, began, now), stretch_of(began, now))
    jobs = await life.store.jobs(tenant=None, limit=100_000)
    for tenant in {job.tenant for job in jobs}:
        own = sum(job.gpu_seconds(now) for job in jobs if job.tenant == tenant)
        total = sum(had.total for had in tenants if had.tenant == tenant)
        assert total / GPU_SECOND == pytest.approx(own, abs=1e-3)
    assert sum(had.total for had in tenants) > 0
    assert sum_of(there) - sum(had.total for had in tenants) >= 0


def test_steps_hold_every_part_of_a_stretch_once() -> None:
    stretch = stretch_of(100.5, 111.25)
    changes = GpuChanges(what="held", at=(100_500_000, 103_700_001, 111_000_000), by=(1500, 500, -2000))
    found = by_step(changes, stretch.edges)
    assert len(found) == 11
    assert sum_of(found) == 1500 * 3_200_001 + 2000 * 7_299_999
    assert found[-1] == 2000 * 500_000
    assert (stretch.edges[0], stretch.edges[-1]) == (100_500_000, 111_250_000)


def test_a_month_of_all_that_a_large_cluster_has_is_counted_exactly() -> None:
    stretch = stretch_of(0.0, 31 * 86400.0)
    found = by_step(GpuChanges(what="there", at=(0,), by=(100_000_000,)), stretch.edges)
    assert sum_of(found) == 100_000_000 * 31 * 86400 * 1_000_000 > 2**63


@pytest.mark.parametrize("seconds", [1, 60, 299, 301, 3600, 86_400, 2_678_400])
def test_no_stretch_has_too_many_steps(seconds: int) -> None:
    stretch = stretch_of(1e9, 1e9 + seconds)
    assert 1 <= len(stretch.edges) - 1 <= STEPS_MAX
    assert stretch.edges[-1] - stretch.edges[0] == seconds * 1_000_000


@pytest.mark.parametrize("seed", range(20))
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

    async def gpu_changes(self, job_ids, *, begins, ends):  # type: ignore[no-untyped-def]
        self.asked.append(len(job_ids))
        return await super().gpu_changes(job_ids, begins=begins, ends=ends)


async def test_many_jobs_are_read_in_parts_and_too_many_are_refused_by_the_field() -> None:
    store = Many(2 * JOBS_AT_ONCE + 1)
    await changes_of(store, 0.0, 60.0)
    assert store.asked == [JOBS_AT_ONCE, JOBS_AT_ONCE, 1]
    store = Many(JOBS_MAX + 1)
    with pytest.raises(Exception, match="ask for less") as refused:
        await changes_of(store, 0.0, 60.0)
    assert getattr(refused.value, "field", None) == "seconds"
    assert store.asked == []


async def test_all_that_ask_within_seconds_share_one_reading_and_few_are_kept() -> None:
    store, at = Many(3), [1000.0]
    usages = Usages(store, now=lambda: 1e9 + at[0], clock=lambda: at[0])
    for _ in range(5):
        await usages.of(3600)
    assert store.reads == 1
    at[0] += 11.0
    await usages.of(3600)
    assert store.reads == 2
    for seconds in range(60, 160):
        await usages.of(seconds)
    await usages.of(3600)
    assert store.reads == 2 + 100 + 1
