"""Accounts add up: to what each second had, to the capacity, to the gateway's usage, whatever they are cut by."""

import gc
import random

import pytest

from tests.support.doubles.store import MemoryStore
from tests.support.held_story import tell_at_random
from tests.support.lives import Life
from tests.support.tier import some
from weft.messages.accounts import UsageGrouping
from weftd.gateway.accounting.accounts import account_of, usage_of
from weftd.gateway.accounting.billing import billed
from weftd.gateway.thinking.accounting.prices import read_prices
from weftd.gateway.thinking.accounting.steps import sum_of
from weftd.gateway.thinking.accounting.used import UsedLedger

BEGAN = 1_767_225_600.0
PRICES = read_prices('currency = "EUR"\n[gpu_hour]\n"*" = 3.6\n')


@pytest.mark.parametrize("seed", some(3, range(15)))
async def test_every_way_to_cut_an_account_adds_up_to_what_was_held_and_to_the_capacity(seed: int) -> None:
    drawn, store = random.Random(seed), MemoryStore()
    last = await tell_at_random(store, store, drawn, begins=BEGAN, jobs=6, things=150)
    begins = BEGAN + drawn.randint(-5, 60)
    ends = drawn.choice([last, last - drawn.randint(1, 20)])
    account = await account_of(store, begins, ends)
    usage = usage_of(account, UsedLedger())
    held = {had.tenant: had.total for had in usage.tenants if had.total}
    assert sum(held.values()) > 0
    found: dict[str, int] = {}
    for stretch in account.stretches:
        found[stretch.job.tenant] = found.get(stretch.job.tenant, 0) + stretch.held
    assert found == held
    split = account.pools
    assert sum(pool.capacity for pool in split.values()) == sum_of(usage.there)
    for pool in split.values():
        parts = pool.held + pool.idle + pool.planned + pool.drained + pool.down
        assert parts == pool.capacity + pool.gone
        assert min(pool.held, pool.idle, pool.planned, pool.drained, pool.down, pool.gone) >= 0
    assert sum(pool.held for pool in split.values()) == sum(held.values())
    for by in UsageGrouping:
        view = billed(
            account,
            by,
            only=None,
            label="team" if by is UsageGrouping.LABEL else "",
            limit=10_000,
            prices=PRICES,
            ledger=UsedLedger(),
            capacity=True,
        )
        assert sum(row.gpu_seconds_held for row in view.rows) == pytest.approx(sum(held.values()) * 1e-9, abs=1e-6)
        assert view.total is not None
        assert float(view.total.cost or "") == pytest.approx(sum(held.values()) * 1e-12, abs=1e-6)
        for row in view.rows:
            assert 0 <= row.lost_failed + row.lost_moved + row.lost_preempted <= row.gpu_seconds_held + 1e-6
            assert row.gpu_seconds_used is None or not row.gpu_seconds_held


async def test_the_garbage_collector_looks_at_nothing_that_an_account_keeps_of_a_job() -> None:
    store = MemoryStore()
    last = await tell_at_random(store, store, random.Random(1), begins=BEGAN, jobs=6, things=150)
    account = await account_of(store, BEGAN, last)
    assert account.stretches
    for _ in range(3):  # each lets go of tuples that hold nothing any more that it looks at
        gc.collect()
    for stretch in account.stretches:
        kept = [
            stretch,
            stretch.job,
            stretch.told,
            stretch.parts,
            *stretch.parts,
            *(part.held for part in stretch.parts),
        ]
        assert [what for what in kept if gc.is_tracked(what)] == []


@pytest.mark.parametrize("seed", range(4))
async def test_it_is_what_every_job_itself_says_that_it_has_had(seed: int) -> None:
    life = Life(2 * seed)  # the orders of odd seeds forget what a job has had
    await life.live(150)
    account = await account_of(life.store, 1_700_000_000.0, life.now)
    jobs = {job.id: job for job in await life.store.jobs(tenant=None, limit=100_000)}
    had: dict[str, int] = {}
    for stretch in account.stretches:
        had[stretch.job.id] = had.get(stretch.job.id, 0) + stretch.held
    for job_id, job in jobs.items():
        assert had.get(job_id, 0) * 1e-9 == pytest.approx(job.gpu_seconds(life.now), abs=1e-3)
    assert any(had.values())
