"""What jobs of two classes slow each other down on one GPU, from the store to the place of a share."""

from typing import Any

import pytest

from tests.support.lives import Life
from tests.support.scheduler import World, world
from tests.support.shared_gpus import shape, single
from tests.unit.test_scheduler_loop import World as DeskWorld
from weft.domain.classes import CLASS_LABEL
from weft.domain.job import Allocation
from weft.messages.signals import PairSlowdown
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.reasons.why import why_there
from weft.planning.resource_request import PlacementRequest
from weft.planning.scores import Scores
from weftd.scheduler.refreshing import SCORES_SECONDS
from weftd.scheduler.thinking.record import entries as recorded
from weftd.scheduler.thinking.record.keeping import pickled, unpickled

MEMORY, COMPUTE = PlacementRequest("memory"), PlacementRequest("compute")


def room_with(slowdowns: dict[tuple[str, str], float], *sizes: int) -> FreeCapacity:
    free_capacity = single(*sizes)
    free_capacity.scores.slow(slowdowns)
    return free_capacity


def take(free_capacity: FreeCapacity, part: int, asked: PlacementRequest, **more: Any) -> Allocation:
    found = find(free_capacity, shape(part, **more), asked)
    assert found is not None
    free_capacity.take_all(found)
    return found[0]


def two_shared(slowdowns: dict[tuple[str, str], float], *, of_memory: int = 500, of_compute: int = 500) -> FreeCapacity:
    """One node: on GPU 0 a share of a memory job, on GPU 1 one of a compute job. Training avoids training."""
    free_capacity = room_with(slowdowns, 2)
    assert take(free_capacity, of_memory, MEMORY, kind="training").gpus == (0,)
    assert take(free_capacity, of_compute, COMPUTE, kind="training").gpus == (1,)
    return free_capacity


SLOW = {("memory", "memory"): 1.3, ("memory", "compute"): 1.02, ("compute", "memory"): 1.04}


def test_a_share_goes_beside_the_jobs_that_it_slows_down_least() -> None:
    assert take(two_shared({}), 300, MEMORY).gpus == (0,)
    assert take(two_shared(SLOW), 300, MEMORY).gpus == (1,)
    assert take(two_shared(SLOW), 300, COMPUTE).gpus == (1,)
    assert take(two_shared({("compute", "compute"): 1.2}), 300, COMPUTE).gpus == (0,)


def test_what_jobs_slow_each_other_down_counts_as_much_as_what_is_left_over_of_a_gpu() -> None:
    """On GPU 0 there is 0.2 less left over. Beside memory a memory job costs 0.6, twice 0.3; beside compute 0.06."""
    assert take(two_shared(SLOW, of_memory=700), 300, MEMORY).gpus == (1,)
    little = {**SLOW, ("memory", "memory"): 1.1}
    assert take(two_shared(little, of_memory=700), 300, MEMORY).gpus == (0,)


def test_no_share_is_kept_from_the_last_place_there_is() -> None:
    free_capacity = room_with({("memory", "memory"): 4.0}, 1)
    take(free_capacity, 500, MEMORY)
    assert take(free_capacity, 500, MEMORY).gpus == (0,)


def test_the_class_of_a_job_is_known_as_long_as_it_holds_its_share() -> None:
    free_capacity = two_shared(SLOW)
    held = take(free_capacity, 300, MEMORY)
    assert held.share is not None
    assert held.share.job_class == "memory"
    another = take(free_capacity, 100, MEMORY)
    assert another.gpus == (1,), "a memory job is on both by now, and of GPU 1 less is left over"
    free_capacity.give_back_all([held, another])
    node = free_capacity.nodes[held.node_id]
    assert [node.gpus.shared[gpu].company for gpu in (0, 1)] == [4, 1]


def test_the_most_sensitive_class_and_an_unknown_one_are_not_noted() -> None:
    for job_class in ("compute", "", "odd"):
        held = take(single(1), 300, PlacementRequest(job_class))
        assert held.share is not None
        assert held.share.job_class == ""


@pytest.mark.parametrize("company", [0, 1, 4, 7])
def test_less_than_alone_is_no_gain(company: int) -> None:
    scores = Scores()
    scores.slow({("memory", "memory"): 0.7, ("compute", "memory"): 0.9})
    assert scores.beside("memory", company) == (1.0, 1.0)


def test_it_is_told_with_its_numbers_and_only_where_something_is_known() -> None:
    free_capacity = two_shared(SLOW)
    wanted = shape(300)
    place = find(free_capacity, wanted, MEMORY)
    assert place is not None
    why = why_there(free_capacity, wanted, MEMORY, place, placement="packed")
    assert (why.numbers["beside_slowdown"], why.numbers["neighbours_slowdown"]) == (1.02, 1.04)
    assert "beside the other jobs there its steps take 1.02 times as long, and their steps 1.04 times" in why.sentence
    free_capacity.scores.slow({})
    why = why_there(free_capacity, wanted, MEMORY, place, placement="packed")
    assert "beside_slowdown" not in why.numbers


# the scheduler


def pair(slowdown: float, *, job_class: str = "memory", beside: str = "memory", at: float = 0.0) -> PairSlowdown:
    return PairSlowdown(job_class=job_class, beside=beside, slowdown=slowdown, confidence=1.0, workloads=9, at=at)


def submit(w: World, job_id: str, request: float, job_class: str, kind: str) -> int:
    role = {"share": {"request": request, "limit": 1.0, "memory": "1GiB"}, "gpus": 0}
    w.submit(job_id, gpus=0, spec={"role": role, "kind": kind, "labels": {CLASS_LABEL: job_class}})
    w.round()
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return placement.allocations[0].gpus[0]


@pytest.mark.parametrize(("slowdown", "gpu"), [(1.0, 0), (1.5, 1)])
def test_a_scheduler_places_by_what_it_was_told_and_another_leader_by_what_is_stored(slowdown: float, gpu: int) -> None:
    w = world(gpus=2)
    w.core.cluster_state.slow([pair(slowdown), pair(9.0, beside="odd")])
    assert submit(w, "j-1", 0.5, "memory", "training") == 0
    assert submit(w, "j-2", 0.5, "compute", "training") == 1
    again = unpickled(pickled(w.core), w.core.cluster_state.jobs.values())
    assert (
        again.cluster_state.score_cache.slowdowns
        == w.core.cluster_state.score_cache.slowdowns
        == {("memory", "memory"): slowdown}
    )
    assert submit(w, "j-3", 0.3, "memory", "batch") == gpu


async def test_a_desk_reads_what_scorers_store_at_its_start_and_when_it_changed() -> None:
    w = DeskWorld()
    await w.store.save_slowdowns([pair(1.2, at=w.now)])
    await w.cycles()
    assert w.scheduler_loop.core.cluster_state.score_cache.slowdowns == {("memory", "memory"): 1.2}
    before = w.scheduler_loop.core.cluster_state.score_cache.changes
    await w.store.save_slowdowns([pair(1.205, at=w.now + 1)])
    w.now += SCORES_SECONDS
    await w.cycles(2)
    assert w.scheduler_loop.core.cluster_state.score_cache.changes == before, "that is noise"
    await w.store.save_slowdowns([pair(1.4, at=w.now + 2)])
    w.now += SCORES_SECONDS
    await w.cycles(2)
    assert w.scheduler_loop.core.cluster_state.score_cache.slowdowns == {("memory", "memory"): 1.4}


async def test_random_lives_have_slowdowns_so_that_their_replays_do() -> None:
    """What test_history replays has these in it."""
    life = Life(1)
    await life.live(200)
    await life.settle()
    records = await life.store.history(pool="default", limit=10_000)
    assert any(isinstance(entry, recorded.Slowed) for record in records for entry in recorded.entries_of(record))
