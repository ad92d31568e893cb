"""What every store promises of arrays: all elements or none, one key, counted as jobs, asked about together."""

import pytest

from tests.support.builders import spec
from tests.support.steps import go, placement
from tests.support.stores import AT, World
from weft.domain.decoding.elements import elements_of
from weft.domain.dependencies import Ends
from weft.domain.job import Job, JobEvent, JobState
from weft.domain.lease import Lease
from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance
from weft.messages.asks import AskKind
from weft.store import KeyReusedError, TenantFullError

THREE = spec("part", array="0-2%2")


async def submit(
    world: World,
    array: str,
    given: JobSpec = THREE,
    *,
    key: str | None = None,
    allowance: Allowance | None = None,
) -> tuple[str, bool]:
    stored = await world.gateway.submit_array(
        elements_of(given, array), given=given, array=array, tenant="alice", key=key, at=AT, allowance=allowance
    )
    return stored.job_id, stored.created


async def admitted(world: World, array: str = "a-1") -> tuple[Lease, list[Job]]:
    await submit(world, array)
    lease = await world.lead()
    return lease, await world.scheduler.admit(lease, load=0, pool="default", limit=1000)


async def end(world: World, lease: Lease, job: Job, event: JobEvent, *, gpu: int) -> None:
    job = await go(world.scheduler, lease, job, JobEvent.PLACED, at=AT, placement=placement(("node-1", gpu)))
    for each in (JobEvent.STARTING, JobEvent.STARTED, event):
        job = await go(world.scheduler, lease, job, each, at=AT)


async def test_an_array_is_as_many_jobs_in_the_order_of_their_indices(world: World) -> None:
    assert await submit(world, "a-1") == ("a-1", True)
    jobs = await world.gateway.array_jobs("a-1")
    assert [job.id for job in jobs] == ["j-1-0", "j-1-1", "j-1-2"]
    assert [job.name for job in jobs] == ["part-0", "part-1", "part-2"]
    assert [event.subject_id for event in await world.gateway.events()] == [job.id for job in jobs]
    assert await world.gateway.jobs(tenant="alice", elements=False) == []
    assert len(await world.gateway.jobs(tenant="alice")) == 3
    lease = await world.lead()
    born = await world.scheduler.admit(lease, load=0, pool="default", limit=1000)
    assert [job.id for job in born] == [job.id for job in jobs]


async def test_a_list_of_arrays_ends_where_its_bytes_do(world: World) -> None:
    large = spec("part", array="0-1", env={"A": "x" * 1000})
    for number in range(4):
        await submit(world, f"a-{number}", large)
    assert [one.id for one in await world.gateway.arrays(tenant="alice")] == ["a-3", "a-2", "a-1", "a-0"]
    assert [one.id for one in await world.gateway.arrays(tenant="alice", bytes_max=2000)] == ["a-3", "a-2"]
    assert [one.id for one in await world.gateway.arrays(ids=["a-0", "a-1"], bytes_max=1)] == ["a-0"]


async def test_the_same_key_is_the_same_array(world: World) -> None:
    assert await submit(world, "a-1", key="k") == ("a-1", True)
    assert await submit(world, "a-2", key="k") == ("a-1", False)
    found = await world.gateway.submitted(THREE, tenant="alice", key="k")
    assert found is not None
    assert found.job_id == "a-1"
    with pytest.raises(KeyReusedError, match="a-1"):
        await submit(world, "a-3", spec("part", array="0-3"), key="k")
    assert [array.id for array in await world.gateway.arrays()] == ["a-1"]


async def test_an_array_that_is_more_than_its_tenant_may_have_is_stored_not_at_all(world: World) -> None:
    with pytest.raises(TenantFullError, match=r"jobs_open_max: 0 .*, of at most 2, and these are 3 more"):
        await submit(world, "a-1", allowance=Allowance(jobs_open_max=2))
    with pytest.raises(TenantFullError, match="spec_bytes_max"):
        await submit(world, "a-1", allowance=Allowance(spec_bytes_max=500))
    assert await world.gateway.events() == []
    assert (await submit(world, "a-1", allowance=Allowance(jobs_open_max=3)))[1]
    with pytest.raises(TenantFullError):
        await submit(world, "a-2", allowance=Allowance(jobs_open_max=3))


async def test_an_array_is_one_with_its_elements_counted_by_state(world: World) -> None:
    lease, (first, second, _) = await admitted(world)
    await submit(world, "a-2", spec("other", array="5"))
    await end(world, lease, first, JobEvent.FAILED, gpu=0)
    await go(world.scheduler, lease, second, JobEvent.CANCELLED, at=AT)
    (array,) = await world.gateway.arrays(ids=["a-1"])
    assert array.states == {JobState.FAILED: 1, JobState.CANCELLED: 1, JobState.QUEUED: 1}
    assert (array.name, array.total, array.over, array.started_at) == ("part", 3, False, AT)
    assert {each.id for each in await world.gateway.arrays(opened=True)} == {"a-1", "a-2"}
    assert await world.gateway.arrays(tenant="bob") == []
    assert await world.gateway.array_named("other", tenant="alice") == "a-2"
    assert await world.gateway.array_named("other", tenant="bob") is None
    failed = await world.gateway.array_jobs("a-1", states=[JobState.FAILED])
    assert [job.id for job in failed] == [first.id]


async def test_how_far_jobs_and_arrays_are_is_told_together(world: World) -> None:
    lease, (first, second, _) = await admitted(world)
    await end(world, lease, first, JobEvent.SUCCEEDED, gpu=0)
    await go(world.scheduler, lease, second, JobEvent.CANCELLED, at=AT)
    found = {ends.id: ends for ends in await world.scheduler.ends_of(["a-1", first.id, second.id, "j-none", "a-none"])}
    assert found == {
        "a-1": Ends(id="a-1", total=3, ended=2, ok=1, began=1),
        first.id: Ends(id=first.id, total=1, ended=1, ok=1, began=1),
        second.id: Ends(id=second.id, total=1, ended=1),
        "j-none": Ends(id="j-none"),
        "a-none": Ends(id="a-none"),
    }


async def test_elements_are_asked_about_together_and_once(world: World) -> None:
    lease, (first, second, third) = await admitted(world)
    await end(world, lease, first, JobEvent.FAILED, gpu=0)
    asked = {"array": "a-1", "tenant": "alice", "at": AT}
    waits = [JobState.QUEUED]
    assert await world.gateway.ask_elements(AskKind.CANCEL, states=waits, job_ids=[third.id], **asked) == 1
    assert await world.gateway.ask_elements(AskKind.CANCEL, states=waits, **asked) == 1
    assert await world.gateway.ask_elements(AskKind.CANCEL, states=waits, **asked) == 0
    asks = await world.scheduler.asks(pool="default", limit=10)
    assert [(ask.kind, ask.subject_id) for ask in asks] == [("cancel", third.id), ("cancel", second.id)]
    over = [JobState.FAILED]
    with pytest.raises(TenantFullError):
        await world.gateway.ask_elements(AskKind.REQUEUE, states=over, allowance=Allowance(jobs_open_max=2), **asked)
    enough = Allowance(jobs_open_max=3)
    assert await world.gateway.ask_elements(AskKind.REQUEUE, states=over, allowance=enough, **asked) == 1
