"""No GPU has more holders than it has time and memory, whatever a scheduler believes, in every store."""

import asyncio
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support import postgres
from tests.support.doubles.store import MemoryStore
from tests.support.steps import GIB, changes_of, go, step
from tests.support.stores import AT, World, world_of
from tests.support.tier import examples
from weft.domain.cluster import Capacity, Gpu, Node
from weft.domain.job import Allocation, Job, JobEvent, Placement
from weft.domain.lease import Lease
from weft.domain.shares import WHOLE, Share
from weft.messages.asks import AskKind, Reshare
from weft.store import DoubleAllocationError

_E = JobEvent


def share(request: int, gib: float = 1) -> Share:
    return Share(request=request, memory=int(gib * GIB))


def placed(*held: tuple[int, Share | None], at: str = "node-1") -> Placement:
    """One rank for each GPU of a node, named by its index, with the share that the rank has of it."""
    allocations = tuple(
        Allocation(rank=rank, role="worker", node_id=at, gpus=(gpu,), cpus=1.0, memory=GIB, share=part)
        for rank, (gpu, part) in enumerate(held)
    )
    return Placement(allocations=allocations, master_port=20000)


def node(gib: int = 16) -> Node:
    """A node with two GPUs of so much memory."""
    gpus = tuple(Gpu(index=index, uuid=f"g-{index}", model="x", memory=gib * GIB) for index in range(2))
    has = Capacity(cpus=64.0, memory=64 * GIB, gpus=gpus)
    return Node(id="node-1", pool="default", address="127.0.0.1", capacity=has)


async def cluster(world: World, *job_ids: str) -> tuple[Lease, list[Job]]:
    """A node with two GPUs of 16 GiB, and jobs that wait."""
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="joined", cause="it reported", at=AT)
    return lease, await world.admitted(lease, *job_ids)


async def running(world: World, lease: Lease, job: Job, where: Placement) -> Job:
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT, placement=where)
    for event in (_E.STARTING, _E.STARTED):
        job = await go(world.scheduler, lease, job, event, at=AT)
    return job


async def test_jobs_share_a_gpu_up_to_all_its_time_and_all_its_memory(world: World) -> None:
    lease, (one, two, three, four) = await cluster(world, "j-1", "j-2", "j-3", "j-4")
    one = await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placed((0, share(700, 6))))
    await go(world.scheduler, lease, two, _E.PLACED, at=AT, placement=placed((0, share(299, 9))))
    for too_much in (placed((0, share(2, 1))), placed((0, share(1, 1.001))), placed((0, None))):
        with pytest.raises(DoubleAllocationError, match="GPU 0 of node-1"):
            await world.take(lease, step(three, _E.PLACED, at=AT, placement=too_much))
    assert await world.known("j-3") == three
    await go(world.scheduler, lease, three, _E.PLACED, at=AT, placement=placed((0, share(1, 1)), (1, None)))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(four, _E.PLACED, at=AT, placement=placed((1, share(1, 0)))))
    await go(world.scheduler, lease, one, _E.REQUEUED, at=AT)
    await go(world.scheduler, lease, four, _E.PLACED, at=AT, placement=placed((0, share(700, 6))))


async def test_ranks_of_one_job_count_like_ranks_of_two(world: World) -> None:
    lease, (one, two) = await cluster(world, "j-1", "j-2")
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(one, _E.PLACED, at=AT, placement=placed((0, share(600)), (0, share(600)))))
    await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placed((0, share(600)), (0, share(400))))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(two, _E.PLACED, at=AT, placement=placed((0, share(1)))))


async def test_a_share_of_a_gpu_that_is_not_known_is_held_to_its_time_alone(world: World) -> None:
    lease, (one, two) = await cluster(world, "j-1", "j-2")
    await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placed((7, share(600, 1000))))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(two, _E.PLACED, at=AT, placement=placed((7, share(600, 1)))))


async def test_a_job_that_takes_another_size_holds_the_parts_of_its_ranks(world: World) -> None:
    lease, (one, two) = await cluster(world, "j-1", "j-2")
    one = await running(world, lease, one, placed((0, share(300, 4))))
    await running(world, lease, two, placed((0, share(500, 4))))
    beyond = placed((0, share(300, 4)), (0, share(201, 4)))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(one, _E.RESIZED, at=AT, placement=beyond, worked={"worker": 1}))
    grown = placed((0, share(300, 4)), (0, share(200, 4)), (1, share(900, 16)))
    one = await go(world.scheduler, lease, one, _E.RESIZED, at=AT, placement=grown, worked={"worker": 1})
    assert one.gpus_held == pytest.approx(1.4)
    shrunk = placed((0, share(300, 4)))
    one = await go(world.scheduler, lease, one, _E.RESIZED, at=AT, placement=shrunk, worked={"worker": 3})
    (three,) = await world.admitted(lease, "j-3")
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(three, _E.PLACED, at=AT, placement=placed((0, share(201, 4)))))
    await go(world.scheduler, lease, three, _E.PLACED, at=AT, placement=placed((0, share(200, 4)), (1, None)))


async def test_a_job_that_restarts_holds_the_larger_of_its_two_parts_until_then(world: World) -> None:
    lease, (one, two) = await cluster(world, "j-1", "j-2")
    one = await running(world, lease, one, placed((0, share(300, 8)), (1, None)))
    following = placed((0, share(500, 2)), (1, share(100, 16)))
    one = await go(world.scheduler, lease, one, _E.STOPPING, at=AT, next_placement=following)
    assert one.gpus_held == pytest.approx(1.5)
    for too_much in (placed((0, share(501, 8))), placed((0, share(500, 9))), placed((1, share(1, 0)))):
        with pytest.raises(DoubleAllocationError):
            await world.take(lease, step(two, _E.PLACED, at=AT, placement=too_much))
    two = await go(world.scheduler, lease, two, _E.PLACED, at=AT, placement=placed((0, share(500, 8))))
    one = await go(world.scheduler, lease, one, _E.RESTARTED, at=AT, placement=following, worked={"worker": 2})
    (three,) = await world.admitted(lease, "j-3")
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(three, _E.PLACED, at=AT, placement=placed((1, share(901, 0)))))
    await go(world.scheduler, lease, three, _E.PLACED, at=AT, placement=placed((1, share(900, 0))))
    await go(world.scheduler, lease, two, _E.REQUEUED, at=AT)
    one = await go(world.scheduler, lease, one, _E.REQUEUED, at=AT)
    await go(world.scheduler, lease, two := await world.known("j-2"), _E.PLACED, at=AT, placement=placed((0, None)))


async def test_ranks_that_get_another_share_hold_that_one_from_then_on(world: World) -> None:
    lease, (one, two, three) = await cluster(world, "j-1", "j-2", "j-3")
    one = await running(world, lease, one, placed((0, share(300, 4)), (1, share(300, 4))))
    await running(world, lease, two, placed((0, share(500, 4))))
    beyond = placed((0, share(501, 4)), (1, share(501, 4)))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(one, _E.TUNED, at=AT, placement=beyond))
    later = AT + 10
    one = await go(
        world.scheduler, lease, one, _E.TUNED, at=later, placement=placed((0, share(500, 4)), (1, share(500, 4)))
    )
    assert (one.gpus_held, one.sized_at) == (1.0, later)
    assert one.attained_gpu_seconds == pytest.approx(10 * 0.6)
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(three, _E.PLACED, at=later, placement=placed((0, share(1, 0)))))
    less = placed((0, share(100, 4)), (1, share(100, 4)))
    one = await go(world.scheduler, lease, one, _E.TUNED, at=later, placement=less)
    three = await go(
        world.scheduler, lease, three, _E.PLACED, at=later, placement=placed((0, share(400, 8)), (1, share(900, 12)))
    )
    more = structs.replace(less, allocations=tuple(structs.replace(each, cpus=2.0) for each in less.allocations))
    one = await go(world.scheduler, lease, one, _E.TUNED, at=later + 5, placement=more)
    assert one.sized_at == later  # other CPUs are no other GPUs


async def test_ranks_that_get_a_whole_gpu_in_place_of_a_share_hold_all_of_it(world: World) -> None:
    lease, (one, two, three) = await cluster(world, "j-1", "j-2", "j-3")
    one = await running(world, lease, one, placed((0, share(300, 4))))
    two = await running(world, lease, two, placed((0, share(500, 4))))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(one, _E.TUNED, at=AT, placement=placed((0, None))))
    await go(world.scheduler, lease, two, _E.FAILED, at=AT)
    await go(world.scheduler, lease, one, _E.TUNED, at=AT, placement=placed((0, None)))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(three, _E.PLACED, at=AT, placement=placed((0, share(1, 0)))))


async def test_a_share_that_is_asked_for_is_kept_until_the_step_that_gives_it(world: World) -> None:
    lease, (one,) = await cluster(world, "j-1")
    one = await running(world, lease, one, placed((0, share(300, 4))))
    for asked in (Reshare(request=500, limit=800, role="worker"), Reshare(limit=1000)):
        await world.gateway.ask(AskKind.SHARE, subject_id="j-1", pool="default", tenant="alice", at=AT, share=asked)
    first, second = await world.scheduler.asks(pool="default", limit=10)
    assert (first.kind, first.share, first.tenant) == (
        AskKind.SHARE,
        Reshare(request=500, limit=800, role="worker"),
        "alice",
    )
    assert second.share == Reshare(limit=1000)
    await go(world.scheduler, lease, one, _E.TUNED, at=AT, placement=placed((0, share(500, 4))), ask=first.id)
    assert await world.scheduler.asks(pool="default", limit=10) == [second]


async def test_what_a_gpu_that_lost_memory_is_held_to_by_running_jobs_lets_them_stop_and_grow_elsewhere(
    world: World,
) -> None:
    lease, (one,) = await cluster(world, "j-1")
    one = await running(world, lease, one, placed((0, share(500, 12))))
    await world.scheduler.save_node(lease, node(8), event="changed", cause="it reported", at=AT)
    grown = placed((0, share(500, 12)), (1, share(500, 1)))
    one = await go(world.scheduler, lease, one, _E.RESIZED, at=AT, placement=grown, worked={"worker": 1})
    one = await go(world.scheduler, lease, one, _E.STOPPING, at=AT)
    await go(world.scheduler, lease, one, _E.REQUEUED, at=AT)


# only where there are transactions

SLOT = "INSERT INTO gpu_slots (node_id, gpu_index, job_id, epoch, rank, part, memory) VALUES ($1, 0, $2, 0, 0, $3, $4)"


@pytest.mark.parametrize("second", [(600, GIB), (100, 9 * GIB), (WHOLE, None)])
@pytest.mark.parametrize("commits", [True, False])
async def test_the_second_of_two_transactions_waits_for_the_first_and_sees_what_it_did(
    real: postgres.Stores, second: tuple[int, int | None], commits: bool
) -> None:
    await cluster(world_of(real), "j-1", "j-2")
    first, other = [await real.server.connect("scheduler") for _ in range(2)]
    try:
        transaction = first.transaction()
        await transaction.start()
        await first.execute(SLOT, "node-1", "j-1", 500, 8 * GIB)
        waits = asyncio.create_task(other.execute(SLOT, "node-1", "j-2", *second))
        assert not (await asyncio.wait([waits], timeout=0.3))[0]
        if commits:
            await transaction.commit()
            with pytest.raises(asyncpg.UniqueViolationError, match="GPU 0 of node-1"):
                await waits
        else:
            await transaction.rollback()
            await waits
        rows = await real.owner.fetch("SELECT job_id FROM gpu_slots")
        assert [row["job_id"] for row in rows] == ["j-1" if commits else "j-2"]
    finally:
        await first.close()
        await other.close()


async def test_of_steps_that_want_the_same_gpu_at_once_as_many_are_taken_as_it_has_room_for(
    real: postgres.Stores,
) -> None:
    world = world_of(real)
    lease, jobs = await cluster(world, *(f"j-{number}" for number in range(8)))
    steps = [step(job, _E.PLACED, at=AT, placement=placed((0, share(300, 1)))) for job in jobs]
    asked = [world.scheduler.take(lease, changes_of([job], [made])) for job, made in zip(jobs, steps, strict=True)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(one == [True] for one in found) == 3
    assert sum(isinstance(one, DoubleAllocationError) for one in found) == 5
    assert await real.owner.fetchval("SELECT sum(part) FROM gpu_slots") == 900


async def test_slots_are_refused_in_a_transaction_that_sees_the_past(real: postgres.Stores) -> None:
    await cluster(world_of(real), "j-1")
    connection = await real.server.connect("scheduler")
    try:
        with pytest.raises(asyncpg.InvalidTransactionStateError):
            async with connection.transaction(isolation="repeatable_read"):
                await connection.execute(SLOT, "node-1", "j-1", 500, GIB)
    finally:
        await connection.close()


# the store in one process against the one in Postgres

parts = st.one_of(
    st.none(), st.builds(share, st.sampled_from([1, 250, 300, 500, 700, 999, 1000]), st.sampled_from([0, 4, 8, 12, 17]))
)
places = st.lists(st.tuples(st.integers(0, 1), parts), min_size=1, max_size=3).map(lambda held: placed(*held))
tries = st.tuples(st.integers(0, 3), places, st.booleans())


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(tries, max_size=20))
async def test_any_parts_of_gpus_are_held_alike_in_memory_and_in_postgres(
    real: postgres.Stores, script: list[tuple[int, Placement, bool]]
) -> None:
    await real.clear()
    memory = MemoryStore()
    worlds = [
        World(memory, memory, memory, memory, memory, memory),
        world_of(real),
    ]
    leases = [(await cluster(world, *(f"j-{number}" for number in range(4))))[0] for world in worlds]
    for number, where, restarts in script:
        job = await worlds[0].known(f"j-{number}")
        fields: dict[str, Any]
        match job.state:
            case "queued":
                event, fields = _E.PLACED, {"placement": where}
            case "placed":
                event, fields = _E.STARTING, {}
            case "starting":
                event, fields = _E.STARTED, {}
            case "running" if restarts:
                event, fields = _E.STOPPING, {"next_placement": where}
            case "running":
                event, fields = _E.RESIZED, {"placement": where, "worked": {"worker": 1}}
                if job.placement is not None and _places(where) == _places(job.placement):
                    event, fields = _E.TUNED, {"placement": where}
            case _ if restarts:
                event, fields = _E.REQUEUED, {}
            case _:
                event, fields = _E.RESTARTED, {"placement": job.next_placement, "worked": {"worker": 1}}
        found = [await _outcome(one, lease, job, event, fields) for one, lease in zip(worlds, leases, strict=True)]
        assert found[0] == found[1]
        jobs = await memory.jobs(tenant=None)
        assert jobs == await real.gateway.jobs(tenant=None)
        rows = await real.owner.fetch(
            "SELECT gpu_index, sum(part) AS part, COALESCE(sum(memory), 0) AS memory FROM gpu_slots GROUP BY 1"
        )
        assert {row["gpu_index"]: (row["part"], row["memory"]) for row in rows} == _totals(jobs)


def _places(placement: Placement) -> list[tuple[int, ...]]:
    return [one.gpus for one in placement.allocations]


async def _outcome(world: World, lease: Lease, job: Job, event: JobEvent, fields: dict[str, Any]) -> bool:
    try:
        await go(world.scheduler, lease, job, event, at=AT, **fields)
    except DoubleAllocationError:
        return False
    return True


def _totals(jobs: list[Job]) -> dict[int, tuple[int, int]]:
    """Thousandths and bytes that are held of each GPU."""
    found: dict[int, tuple[int, int]] = {}
    for allocation in (held for job in jobs if job.state.holding for held in job.held):
        part = (WHOLE, 0) if allocation.share is None else (allocation.share.request, allocation.share.memory)
        for gpu in allocation.gpus:
            found[gpu] = (found.get(gpu, (0, 0))[0] + part[0], found.get(gpu, (0, 0))[1] + part[1])
    return found
