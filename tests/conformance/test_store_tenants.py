"""What every store promises of what a tenant may take: counted when it submits, given back when its jobs end."""

import asyncio

import msgspec
import pytest

from tests.support.builders import spec
from tests.support.steps import go
from tests.support.stores import AT, World
from weft.domain.job import JobEvent, JobState
from weft.domain.tenants import Allowance, AllowanceChange, AllowanceChosen, Use
from weft.store import TenantFullError
from weft.store.tenants import Access

ENDLESS = Allowance(jobs_open_max=1 << 40, spec_bytes_max=1 << 40)
TWO_JOBS = Allowance(jobs_open_max=2)
SPEC_BYTES = len(msgspec.json.encode(spec()))


async def submit(
    world: World, job_id: str, allowance: Allowance | None, *, tenant: str = "alice", key: str = ""
) -> bool:
    submitted = await world.gateway.submit(
        spec(), job_id=job_id, tenant=tenant, key=key or None, at=AT, allowance=allowance
    )
    return submitted.created


async def use(world: World, tenant: str = "alice") -> Use:
    (kept,) = await world.gateway.tenants(tenant=tenant)
    return kept.use


async def test_a_tenant_with_as_many_jobs_open_as_it_may_is_refused_and_nothing_is_stored(world: World) -> None:
    await submit(world, "j-1", TWO_JOBS)
    await submit(world, "j-2", TWO_JOBS)
    with pytest.raises(TenantFullError, match="jobs_open_max: 2 jobs of this tenant wait or run, of at most 2"):
        await submit(world, "j-3", TWO_JOBS)
    assert len(await world.gateway.events()) == 2
    assert await world.gateway.job("j-3") is None
    assert await submit(world, "j-4", TWO_JOBS, tenant="bob")
    assert await submit(world, "j-5", None)  # without bounds


async def test_a_tenant_with_as_many_bytes_of_specifications_as_it_may_is_refused(world: World) -> None:
    most = Allowance(spec_bytes_max=2 * SPEC_BYTES)
    await submit(world, "j-1", most)
    await submit(world, "j-2", most)
    with pytest.raises(TenantFullError, match=f"spec_bytes_max: .* {2 * SPEC_BYTES} bytes, this one has {SPEC_BYTES}"):
        await submit(world, "j-3", most)


async def test_what_was_stored_once_is_not_refused_when_it_is_sent_again(world: World) -> None:
    assert await submit(world, "j-1", Allowance(jobs_open_max=1), key="k")
    assert not await submit(world, "j-2", Allowance(jobs_open_max=1), key="k")
    with pytest.raises(TenantFullError):
        await submit(world, "j-3", Allowance(jobs_open_max=1), key="other")


async def test_of_submissions_of_one_moment_no_more_are_stored_than_the_tenant_may_have(world: World) -> None:
    most = Allowance(jobs_open_max=3)
    asked = [submit(world, f"j-{n}", most) for n in range(8)]
    others = [submit(world, f"b-{n}", most, tenant="bob") for n in range(2)]
    done = await asyncio.gather(*asked, *others, return_exceptions=True)
    assert done.count(True) == 5
    assert sum(isinstance(each, TenantFullError) for each in done) == 5
    assert len(await world.gateway.events()) == 5


async def test_one_key_in_submissions_of_one_moment_makes_one_job(world: World) -> None:
    done = await asyncio.gather(
        *(submit(world, f"j-{n}", ENDLESS, key="k") for n in range(4)), submit(world, "o", None)
    )
    assert sorted(done) == [False, False, False, True, True]
    assert len(await world.gateway.events()) == 2


async def test_what_ended_is_given_back_and_what_is_requeued_counts_again(world: World) -> None:
    await world.gateway.add_token(bytes(32), tenant="alice", admin=False, label="a", at=AT)
    lease = await world.lead()
    assert await use(world) == Use()
    jobs = await world.admitted(lease, "j-1", "j-2")
    assert await use(world) == Use(jobs=2, spec_bytes=2 * SPEC_BYTES)
    ended = await go(world.scheduler, lease, jobs[0], JobEvent.CANCELLED, at=AT)
    assert ended.state is JobState.CANCELLED
    assert await use(world) == Use(jobs=1, spec_bytes=SPEC_BYTES)
    assert await submit(world, "j-3", TWO_JOBS)
    with pytest.raises(TenantFullError):
        await world.gateway.ask_requeue(job_id="j-1", pool="default", tenant="alice", at=AT, allowance=TWO_JOBS)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    three = Allowance(jobs_open_max=3)
    await world.gateway.ask_requeue(job_id="j-1", pool="default", tenant="alice", at=AT, allowance=three)
    with pytest.raises(TenantFullError):  # one that is asked for counts already
        await world.gateway.ask_requeue(job_id="j-1", pool="default", tenant="alice", at=AT, allowance=three)
    await go(world.scheduler, lease, ended, JobEvent.REQUEUED, at=AT)
    assert await use(world) == Use(jobs=3, spec_bytes=3 * SPEC_BYTES)


async def test_many_at_once_take_little_more_than_they_may(world: World) -> None:
    most = Allowance(jobs_open_max=20)
    found = await asyncio.gather(*(submit(world, f"j-{number}", most) for number in range(60)), return_exceptions=True)
    taken = sum(answer is True for answer in found)
    assert all(answer is True or isinstance(answer, TenantFullError) for answer in found)
    assert 20 <= taken < 20 + 16  # those that were under way at once did not see each other
    with pytest.raises(TenantFullError):
        await submit(world, "j-late", most)


async def test_what_is_chosen_for_a_tenant_comes_with_its_token(world: World) -> None:
    token = bytes(32)
    await world.gateway.add_token(token, tenant="alice", admin=False, label="a", at=AT)
    await world.gateway.change_tenant("alice", AllowanceChange(jobs_open_max=7, may_be_unpreemptible=True))
    await world.gateway.change_tenant("alice", AllowanceChange(priority_max=500, spec_bytes_max=9, idle_seconds_max=60))
    chosen = AllowanceChosen(
        jobs_open_max=7, spec_bytes_max=9, priority_max=500, may_be_unpreemptible=True, idle_seconds_max=60
    )
    assert await world.gateway.access(token, at=AT) == Access(tenant="alice", chosen=chosen, label="a")
    await world.gateway.change_tenant(
        "alice", AllowanceChange(priority_max=None, spec_bytes_max=None, idle_seconds_max=None)
    )
    await world.gateway.change_tenant("nobody", AllowanceChange(priority_max=1))
    (kept,) = await world.gateway.tenants()
    assert (kept.id, kept.created_at) == ("alice", AT)
    assert kept.chosen == AllowanceChosen(jobs_open_max=7, may_be_unpreemptible=True)
    assert await world.gateway.tenants(tenant="nobody") == []


async def test_a_label_is_new_until_a_token_with_it_is_in_force(world: World) -> None:
    async def add(number: int, label: str, *, tenant: str = "alice", expires_at: float | None = None) -> bool:
        return await world.gateway.add_token(
            bytes([number]) * 32,
            tenant=tenant,
            admin=False,
            label=label,
            at=AT,
            expires_at=expires_at,
            label_is_new=True,
        )

    assert await add(1, "ci")
    assert not await add(2, "ci")
    assert await world.gateway.access(bytes([2]) * 32, at=AT) is None
    assert await add(3, "ci", tenant="bob")
    assert await add(4, "old", expires_at=AT)
    assert await add(5, "old")
    await world.gateway.revoke_tokens(tenant="alice", label="ci", at=AT)
    assert await add(6, "ci")
