"""Schedules: as many as a tenant may have, moved by the gateway that has read them as they are."""

import pytest
from msgspec.structs import replace

from tests.support.builders import spec
from tests.support.stores import AT, ONLY_POSTGRES, World
from weft.messages.http.schedules import ScheduleKept, ScheduleNote
from weft.store import ScheduleTakenError, TenantFullError

pytestmark = ONLY_POSTGRES

NIGHTLY = ScheduleKept(
    id="r-1",
    tenant="alice",
    name="nightly",
    spec=spec("nightly", schedule="0 3 * * *"),
    submitter="ada",
    created_at=AT,
    next_at=AT + 60,
)
NOTE = ScheduleNote(due_at=AT + 60, why="missed")


async def born(world: World) -> None:
    for tenant in ("alice", "bob"):
        hashed = tenant.encode().ljust(32, b".")
        await world.gateway.add_token(hashed, tenant=tenant, admin=False, label="", at=AT)


async def test_a_tenant_has_no_more_schedules_than_it_may_and_one_of_a_name(world: World) -> None:
    await born(world)
    assert await world.gateway.add_schedule(NIGHTLY, most=2) == "r-1"
    assert await world.gateway.add_schedule(replace(NIGHTLY, id="r-2"), most=2) == "r-1"
    with pytest.raises(ScheduleTakenError, match="nightly"):
        await world.gateway.add_schedule(replace(NIGHTLY, id="r-3", spec=spec("nightly")), most=2)
    assert await world.gateway.add_schedule(replace(NIGHTLY, id="r-4", name="more"), most=2) == "r-4"
    with pytest.raises(TenantFullError, match="2 schedules"):
        await world.gateway.add_schedule(replace(NIGHTLY, id="r-5", name="many"), most=2)
    assert await world.gateway.add_schedule(replace(NIGHTLY, id="r-6", tenant="bob"), most=2) == "r-6"
    assert (await world.gateway.schedules(tenant="alice"))[0] == NIGHTLY
    assert [one.id for one in await world.gateway.schedules(limit=2)] == ["r-1", "r-4"]
    assert [one.id for one in await world.gateway.schedules(after="r-1")] == ["r-4", "r-6"]
    assert [one.id for one in await world.gateway.schedules(named="nightly")] == ["r-1", "r-6"]
    assert [one.id for one in await world.gateway.schedules(named="r-4", tenant="bob")] == []
    assert await world.gateway.remove_schedule("r-1")
    assert not await world.gateway.remove_schedule("r-1")


async def test_a_run_is_claimed_once_and_finished_once(world: World) -> None:
    await born(world)
    await world.gateway.add_schedule(NIGHTLY, most=2)
    assert await world.gateway.schedules_to_try(at=AT + 59, limit=10) == []
    assert await world.gateway.schedules_to_try(at=AT + 60, limit=10) == [NIGHTLY]
    claim = {"due": AT + 60, "next_at": AT + 120, "at": AT + 61, "note": None}
    assert await world.gateway.claim_run(NIGHTLY, **claim)
    assert not await world.gateway.claim_run(NIGHTLY, **claim)
    claimed = replace(NIGHTLY, firing_at=AT + 60, next_at=AT + 120)
    assert await world.gateway.schedules_to_try(at=AT + 61, limit=10) == [claimed]
    assert await world.gateway.open_runs(claimed, states=("queued",)) == []
    await world.gateway.postpone_run(claimed, until=AT + 90)
    assert await world.gateway.schedules_to_try(at=AT + 89, limit=10) == []
    await world.gateway.submit(spec("nightly"), job_id="j-1", tenant="alice", key=None, at=AT)
    assert await world.gateway.finish_run(claimed, job="j-1", runs=["j-1"], note=None)
    assert not await world.gateway.finish_run(claimed, job="j-2", runs=["j-2"], note=NOTE)
    assert await world.gateway.open_runs(claimed, states=("queued",)) is None
    done = replace(claimed, firing_at=None, last_at=AT + 60, last_job="j-1", last_state="queued")
    assert await world.gateway.schedules() == [done]
    again = replace(done, firing_at=AT + 120, next_at=AT + 180)
    assert await world.gateway.claim_run(done, due=AT + 120, next_at=AT + 180, at=AT + 120, note=NOTE)
    assert await world.gateway.open_runs(again, states=("queued",)) == ["j-1"]
    assert await world.gateway.open_runs(again, states=("running",)) == []
    assert await world.gateway.finish_run(again, job="", runs=["j-1"], note=replace(NOTE, due_at=AT + 120))
    assert await world.gateway.schedules() == [
        replace(done, next_at=AT + 180, note="missed", noted_at=AT + 120),
    ]


async def test_a_paused_schedule_is_not_tried_but_for_the_run_that_is_claimed(world: World) -> None:
    await born(world)
    await world.gateway.add_schedule(NIGHTLY, most=2)
    await world.gateway.claim_run(NIGHTLY, due=AT + 60, next_at=AT + 120, at=AT + 60, note=None)
    await world.gateway.pause_schedule("r-1", at=AT + 61)
    (claimed,) = await world.gateway.schedules_to_try(at=AT + 61, limit=10)
    assert await world.gateway.finish_run(claimed, job="", runs=[], note=NOTE)
    assert await world.gateway.schedules_to_try(at=AT + 9999, limit=10) == []
    (paused,) = await world.gateway.schedules()
    assert paused.paused_at == AT + 61
    assert not await world.gateway.claim_run(paused, due=AT + 120, next_at=AT + 180, at=AT + 120, note=None)
    await world.gateway.resume_schedule("r-1", next_at=AT + 600)
    await world.gateway.resume_schedule("r-1", next_at=AT + 900)
    (resumed,) = await world.gateway.schedules_to_try(at=AT + 600, limit=10)
    assert (resumed.paused_at, resumed.next_at) == (None, AT + 600)
