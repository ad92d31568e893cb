"""Replicas that join and leave a job that runs: where they go, and which of them leave."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import node
from tests.support.tier import examples
from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity, Placer
from weft.planning.finding import Place
from weft.planning.locality import Locality
from weft.planning.placement.unscored import packed
from weft.planning.placement.weft_best import weft_best
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.resizing import COOL_DOWN_SECONDS, grow, is_cool, shrink
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import Scores

ASKED = PlacementRequest("A", "j-1")
WORKER = RoleRequest("worker", 1, 1, Request(gpus=1, cpus=1.0, memory=1))
PLACERS = {name: Policy(placement=name).placing.placer for name in PLACEMENTS}


def room_of(*gpus: int, slow: tuple[str, ...] = (), placer: Placer = packed, across: float = 1.5) -> FreeCapacity:
    """Nodes `n1`, `n2`, … with so many GPUs each and 4 cores; GPUs on `slow` ones take twice as long."""
    names = [f"n{number}" for number in range(1, len(gpus) + 1)]
    scores = {
        (name, gpu): 2.0 if name in slow else 1.0
        for name, count in zip(names, gpus, strict=True)
        for gpu in range(count)
    }
    free_capacity = FreeCapacity(Scores({"A": scores}), placer=placer, locality=Locality(across_nodes=across))
    for name, count in zip(names, gpus, strict=True):
        free_capacity.add(node(name, gpus=count, cpus=4, memory=64))
    return free_capacity


def held(free_capacity: FreeCapacity, *gpus: tuple[str, int], role: str = "worker") -> Place:
    """A job with one rank on each of these GPUs; the room knows."""
    allocations = tuple(
        Allocation(rank=rank, role=role, node_id=name, gpus=(gpu,), cpus=1.0, memory=1)
        for rank, (name, gpu) in enumerate(gpus)
    )
    free_capacity.take_all(allocations)
    return allocations


def on(*nodes: str, role: str = "worker") -> Place:
    """A job with one rank on each of these nodes, of no room."""
    return tuple(
        Allocation(rank=rank, role=role, node_id=name, gpus=(rank,), cpus=1.0, memory=1)
        for rank, name in enumerate(nodes)
    )


def where(place: Place | None) -> list[tuple[int, str]]:
    assert place is not None
    return [(new.rank, new.node_id) for new in place]


def ranks(allocations: Place) -> list[int]:
    return [allocation.rank for allocation in allocations]


def free_in(free_capacity: FreeCapacity) -> dict[str, object]:
    return {
        "nodes": {
            name: (list(there.gpus.whole), there.cpus, there.memory) for name, there in free_capacity.nodes.items()
        },
        "buckets": {free: list(names) for free, names in free_capacity.buckets.items()},
        "grown": free_capacity.grown,
    }


def test_a_job_grows_on_its_own_node_with_the_ranks_it_is_given() -> None:
    free_capacity = room_of(2, 4)
    job = held(free_capacity, ("n2", 0))
    assert where(grow(free_capacity, job, WORKER, 2, first_rank=7)) == [(7, "n2"), (8, "n2")]


def test_it_spills_over_once_its_own_nodes_are_full() -> None:
    free_capacity = room_of(4, 3, 4)
    job = held(free_capacity, ("n2", 0))
    assert where(grow(free_capacity, job, WORKER, 4, first_rank=1)) == [(1, "n2"), (2, "n2"), (3, "n1"), (4, "n1")]


def test_slow_gpus_beside_it_are_left_for_fast_ones_elsewhere() -> None:
    names = {("n1", 0): 1.0, ("n1", 1): 3.0, ("n2", 0): 1.0, ("n2", 1): 1.0}
    free_capacity = FreeCapacity(Scores({"A": names}), placer=weft_best, locality=Locality(across_nodes=1.5))
    for name in ("n1", "n2"):
        free_capacity.add(node(name, gpus=2))
    job = held(free_capacity, ("n1", 0))
    assert where(grow(free_capacity, job, WORKER, 1, first_rank=1, asked=ASKED)) == [(1, "n2")]  # 1.5 is less than 3.0


def test_it_grows_by_as_many_as_fit_if_the_caller_takes_fewer() -> None:
    free_capacity = room_of(2, 2)
    job = held(free_capacity, ("n1", 0))
    assert grow(free_capacity, job, WORKER, 4, first_rank=1) is None
    assert where(grow(free_capacity, job, WORKER, 4, first_rank=1, least=1)) == [(1, "n1"), (2, "n2"), (3, "n2")]


def test_replicas_without_gpus_grow_too() -> None:
    free_capacity = room_of(0, 0)
    want = RoleRequest("ps", 1, 1, Request(gpus=0, cpus=3.0, memory=1))
    server = Allocation(rank=0, role="ps", node_id="n1", cpus=3.0, memory=1)
    free_capacity.take(server)
    assert where(grow(free_capacity, [server], want, 1, first_rank=1)) == [(1, "n2")]
    assert grow(free_capacity, [server], want, 2, first_rank=1) is None


def test_a_pinned_job_grows_behind_the_gpus_it_has() -> None:
    free_capacity = room_of(4)
    job = held(free_capacity, ("n1", 1))
    want = RoleRequest("worker", 1, 1, Request(gpus=1, cpus=1.0, memory=1, node="n1", gpu=1))
    place = grow(free_capacity, job, want, 2, first_rank=1)
    assert place is not None
    assert [new.gpus for new in place] == [(2,), (3,)]
    assert grow(free_capacity, job, want, 3, first_rank=1) is None


def test_closed_nodes_take_no_replica_even_beside_the_job() -> None:
    free_capacity = room_of(2, 2)
    job = held(free_capacity, ("n1", 0))
    free_capacity.close(["n1"])
    assert where(grow(free_capacity, job, WORKER, 1, first_rank=1)) == [(1, "n2")]


def test_a_cool_down_is_over_when_it_ends_whatever_the_rounding_error() -> None:
    for number in range(1000):
        changed_at = round(number * 0.1234567, 6)
        ends_at = round(changed_at + COOL_DOWN_SECONDS, 6)
        assert is_cool(changed_at, ends_at, restart_s=0.0, seconds=COOL_DOWN_SECONDS), changed_at
        assert not is_cool(changed_at, ends_at - 1e-6, restart_s=0.0, seconds=COOL_DOWN_SECONDS), changed_at


def test_growing_by_nothing_is_refused() -> None:
    free_capacity = room_of(2)
    with pytest.raises(ValueError, match="one replica at least"):
        grow(free_capacity, (), WORKER, 0, first_rank=0)
    with pytest.raises(ValueError, match="3 to 2"):
        grow(free_capacity, (), WORKER, 2, first_rank=0, least=3)


def test_the_newest_leave_and_the_core_stays() -> None:
    stay, leave = shrink(on("n1", "n1", "n2", "n2"), "worker", 2, least=1)
    assert (ranks(stay), ranks(leave)) == ([0, 1], [2, 3])
    with pytest.raises(ValueError, match="worker: of 2 replicas 1 stay, so 2 of them cannot leave"):
        shrink(stay, "worker", 2, least=1)


def test_the_core_is_the_lowest_ranks_of_the_role_whatever_their_numbers() -> None:
    allocations = (*on("n1", role="ps"), Allocation(rank=9, role="worker", node_id="n1", cpus=1.0, memory=1))
    allocations = (*allocations, Allocation(rank=4, role="worker", node_id="n2", cpus=1.0, memory=1))
    stay, leave = shrink(allocations, "worker", 1, least=1)
    assert (ranks(stay), ranks(leave)) == ([0, 4], [9])


def test_lonely_ranks_leave_first_if_asked() -> None:
    job = on("n1", "n1", "n2", "n1", "n3", "n3")
    assert ranks(shrink(job, "worker", 1, least=1, lonely_first=True)[1]) == [2]
    assert ranks(shrink(job, "worker", 3, least=1, lonely_first=True)[1]) == [2, 4, 5]
    assert ranks(shrink(job, "worker", 3, least=1)[1]) == [3, 4, 5]


@settings(max_examples=examples(200))
@given(
    placer=st.sampled_from(sorted(PLACERS)),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    taken=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=6, unique=True),
    has=st.integers(0, 3),
    more=st.integers(1, 6),
    least=st.integers(1, 6),
)
def test_a_growth_fits_and_leaves_the_room_alone(
    placer: str, sizes: list[int], taken: list[tuple[int, int]], has: int, more: int, least: int
) -> None:
    free_capacity = room_of(*sizes, placer=PLACERS[placer], slow=("n2",))
    there = [(f"n{at + 1}", gpu) for at, gpu in taken if at < len(sizes) and gpu < sizes[at]]
    job = held(free_capacity, *there)[:has]
    before = free_in(free_capacity)
    least = min(least, more)
    place = grow(free_capacity, job, WORKER, more, first_rank=11, least=least, asked=ASKED)
    assert place == grow(free_capacity, job, WORKER, more, first_rank=11, least=least, asked=ASKED)
    assert free_in(free_capacity) == before
    fits = min(more, sum(min(len(one.gpus.whole), int(one.cpus)) for one in free_capacity.nodes.values()))
    if place is None:
        assert fits < least
        return
    assert len(place) == fits
    assert [new.rank for new in place] == list(range(11, 11 + len(place)))
    for new in place:
        assert free_capacity.nodes[new.node_id].gpus.has(new.gpus)
        free_capacity.take(new)
    assert all(one.cpus >= 0 and one.memory >= 0 for one in free_capacity.nodes.values())
    assert max(Counter((new.node_id, new.gpus) for new in place).values()) == 1


@given(
    nodes=st.lists(st.sampled_from(["n1", "n2", "n3"]), min_size=1, max_size=9),
    least=st.integers(1, 9),
    fewer=st.integers(0, 8),
    lonely=st.booleans(),
)
def test_a_shrink_keeps_the_core_and_takes_the_same_ranks_however_it_is_divided(
    nodes: list[str], least: int, fewer: int, lonely: bool
) -> None:
    job = on(*nodes)
    least = min(least, len(job))
    fewer = min(fewer, len(job) - least)
    stay, leave = shrink(job, "worker", fewer, least=least, lonely_first=lonely)
    assert sorted((*stay, *leave), key=lambda held: held.rank) == list(job)
    assert len(leave) == fewer
    assert set(ranks(job)[:least]) <= set(ranks(stay))
    for half in range(fewer + 1):
        first, gone = shrink(job, "worker", half, least=least, lonely_first=lonely)
        rest, later = shrink(first, "worker", fewer - half, least=least, lonely_first=lonely)
        assert set(gone) | set(later) == set(leave)
        assert rest == stay
