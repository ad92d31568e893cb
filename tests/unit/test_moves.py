"""Which running jobs move, and that all of it together is possible and worth its cost."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import node
from tests.support.tier import examples
from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity, Placer
from weft.planning.choosing_again import ChoosingAgain, Movable
from weft.planning.locality import Locality
from weft.planning.moves import AT_ONCE_MOST, HORIZON_S, JOINT_MOST, Move, moves_for
from weft.planning.placement.weft_best import weft_best
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import GpuKey, Scores

Seen = dict[str, tuple[list[int], float, int]]
LONG_S = 100_000.0
REQUEST = Request(gpus=1, cpus=0.01, memory=1)


def room_of(
    *gpus: int, scores: Mapping[str, Sequence[Sequence[float]]] | None = None, placer: Placer = weft_best
) -> FreeCapacity:
    """Nodes `n1`, `n2`, … with so many GPUs each; `scores`: by class and node, that of each GPU."""
    by_class: dict[str, dict[GpuKey, float]] = {
        name: {
            (f"n{number}", gpu): score for number, of_node in enumerate(by_node, 1) for gpu, score in enumerate(of_node)
        }
        for name, by_node in (scores or {}).items()
    }
    free_capacity = FreeCapacity(Scores(by_class), placer=placer, locality=Locality(across_nodes=1.5))
    for number, count in enumerate(gpus, 1):
        free_capacity.add(node(f"n{number}", gpus=count))
    return free_capacity


def running(
    free_capacity: FreeCapacity,
    name: str,
    *gpus: GpuKey,
    job_class: str = "A",
    left_s: float = LONG_S,
    cost_s: float = 30.0,
) -> Movable:
    """A job that holds these GPUs, one a rank; the room knows."""
    allocations = tuple(
        Allocation(rank=rank, role="worker", node_id=there, gpus=(gpu,), cpus=0.01, memory=1)
        for rank, (there, gpu) in enumerate(gpus)
    )
    for allocation in allocations:
        free_capacity.take(allocation)
    return Movable(
        job_id=name,
        resource_request=(RoleRequest("worker", len(gpus), len(gpus), REQUEST),),
        asked=PlacementRequest(job_class, name),
        allocations=allocations,
        gpus=len(gpus),
        left_s=left_s,
        cost_s=cost_s,
    )


def seen(free_capacity: FreeCapacity) -> Seen:
    return {
        there.node.id: (list(there.gpus.whole), round(there.cpus, 6), there.memory)
        for there in free_capacity.nodes.values()
    }


def goes(move: Move) -> list[GpuKey]:
    return [(allocation.node_id, gpu) for allocation in move.allocations for gpu in allocation.gpus]


def check(free_capacity: FreeCapacity, jobs: Sequence[Movable], moves: Sequence[Move]) -> None:
    """Made all at once they fit, and in all they are worth more than they cost."""
    by_id = {job.job_id: job for job in jobs}
    assert len({move.job_id for move in moves}) == len(moves)
    for move in moves:
        for allocation in by_id[move.job_id].allocations:
            free_capacity.give_back(allocation)
    for move in moves:
        assert len(goes(move)) == by_id[move.job_id].gpus
        assert set(move.allocations) != set(by_id[move.job_id].allocations)
        for allocation in move.allocations:
            assert set(allocation.gpus) <= set(free_capacity.nodes[allocation.node_id].gpus.whole)
            free_capacity.take(allocation)
    if moves:
        assert sum(move.gain for move in moves) > 0
    if len(jobs) > JOINT_MOST:
        assert all(move.gain > 0 for move in moves)


def found(free_capacity: FreeCapacity, *jobs: Movable, margin: float = 1.0) -> dict[str, list[GpuKey]]:
    """By job, where it goes; the room is unchanged by the question."""
    before = seen(free_capacity)
    moves = moves_for(free_capacity, jobs, margin=margin)
    assert seen(free_capacity) == before
    check(free_capacity, jobs, moves)
    return {move.job_id: goes(move) for move in moves}


SLOW_FIRST = {"A": [[2.0], [1.0]]}


# one job


def test_a_job_moves_to_a_gpu_that_is_faster() -> None:
    free_capacity = room_of(1, 1, scores=SLOW_FIRST)
    assert found(free_capacity, running(free_capacity, "j-1", ("n1", 0))) == {"j-1": [("n2", 0)]}


def test_a_job_moves_together_where_it_was_apart() -> None:
    free_capacity = room_of(2, 2, 2)
    job = running(free_capacity, "j-1", ("n1", 0), ("n2", 0))
    moved = found(free_capacity, job)
    assert list(moved) == ["j-1"]
    assert len({there for there, _ in moved["j-1"]}) == 1


def test_a_job_that_is_where_it_would_go_stays() -> None:
    free_capacity = room_of(1, 1, scores=SLOW_FIRST)
    assert found(free_capacity, running(free_capacity, "j-1", ("n2", 0))) == {}


@pytest.mark.parametrize(("left_s", "moves"), [(29.0, False), (31.0, True), (LONG_S, True)])
def test_a_job_that_soon_ends_is_not_moved(left_s: float, moves: bool) -> None:
    """On a GPU of half the speed it saves as many seconds as it has work left; a move costs 30."""
    free_capacity = room_of(1, 1, scores=SLOW_FIRST)
    assert bool(found(free_capacity, running(free_capacity, "j-1", ("n1", 0), left_s=left_s))) is moves


def test_a_move_must_be_worth_its_cost_by_the_margin() -> None:
    free_capacity = room_of(1, 1, scores=SLOW_FIRST)
    job = running(free_capacity, "j-1", ("n1", 0), left_s=50.0)
    assert moves_for(free_capacity, [job], margin=1.0)
    assert not moves_for(free_capacity, [job], margin=2.0)


def test_what_a_move_gains_is_counted_in_gpu_seconds_and_no_longer_than_the_horizon() -> None:
    free_capacity = room_of(1, 1, scores=SLOW_FIRST)
    (move,) = moves_for(free_capacity, [running(free_capacity, "j-1", ("n1", 0), left_s=1e9, cost_s=30.0)])
    assert move.gain == pytest.approx((1.0 - 0.5) * HORIZON_S - 30.0)


def test_a_job_that_begins_now_moves_for_the_least_gain() -> None:
    free_capacity = room_of(1, 1, scores={"A": [[1.01], [1.0]]})
    assert found(free_capacity, running(free_capacity, "j-1", ("n1", 0), left_s=10.0, cost_s=0.0)) == {
        "j-1": [("n2", 0)]
    }


# several jobs


def test_jobs_of_different_classes_change_places_where_that_helps_in_all() -> None:
    free_capacity = room_of(1, 1, scores={"A": [[3.0], [1.0]], "C": [[1.0], [1.0]]})
    jobs = (
        running(free_capacity, "a", ("n1", 0), job_class="A"),
        running(free_capacity, "c", ("n2", 0), job_class="C"),
    )
    assert found(free_capacity, *jobs) == {"a": [("n2", 0)], "c": [("n1", 0)]}


def test_jobs_do_not_change_places_where_that_only_costs() -> None:
    free_capacity = room_of(1, 1, scores={"A": [[3.0], [1.0]]})
    jobs = (running(free_capacity, "a", ("n1", 0)), running(free_capacity, "b", ("n2", 0)))
    assert found(free_capacity, *jobs) == {}


def test_a_job_that_would_gain_little_stays_while_another_moves() -> None:
    free_capacity = room_of(1, 1, 1, 1, scores={"A": [[3.0], [1.0], [1.001], [1.0]]})
    jobs = (running(free_capacity, "much", ("n1", 0)), running(free_capacity, "little", ("n3", 0), left_s=1000.0))
    assert found(free_capacity, *jobs) == {"much": [("n2", 0)]}


def test_jobs_in_each_others_way_are_brought_together() -> None:
    """Two pairs, each in two nodes: one of each changes its place."""
    free_capacity = room_of(2, 2)
    jobs = (running(free_capacity, "a", ("n1", 0), ("n2", 0)), running(free_capacity, "b", ("n1", 1), ("n2", 1)))
    moved = found(free_capacity, *jobs)
    assert moved
    assert all(len({there for there, _ in gpus}) == 1 for gpus in moved.values())


def test_nobody_moves_where_all_gpus_are_alike_and_every_gang_is_in_one_node() -> None:
    free_capacity = room_of(4, 4, scores={"A": [[1.0] * 4] * 2})
    jobs = (running(free_capacity, "a", ("n1", 0)), running(free_capacity, "b", ("n2", 0), ("n2", 3), cost_s=0.0))
    assert found(free_capacity, *jobs) == {}


@pytest.mark.parametrize("cost_s", [0.0, 1.0, 30.0])
@settings(max_examples=examples(60), deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_without_differences_and_with_all_gangs_local_nobody_moves(sizes: list[int], cost_s: float) -> None:
    free_capacity = room_of(*([4] * len(sizes)), scores={"A": [[1.0] * 4] * len(sizes)})
    jobs = [
        running(free_capacity, f"j-{number}", *((f"n{number}", 3 - gpu) for gpu in range(size)), cost_s=cost_s)
        for number, size in enumerate(sizes, 1)
    ]
    assert found(free_capacity, *jobs) == {}


def test_nobody_to_move_is_no_move() -> None:
    assert found(room_of(2)) == {}


def test_a_job_on_a_closed_node_stays_and_keeps_no_other_from_moving() -> None:
    free_capacity = room_of(1, 1, 1, scores={"A": [[2.0], [1.0], [2.0]]})
    jobs = (running(free_capacity, "open", ("n1", 0)), running(free_capacity, "closed", ("n3", 0)))
    free_capacity.close(["n3"])
    assert found(free_capacity, *jobs) == {"open": [("n2", 0)]}


# many jobs: one by one


def many(count: int, free: int, *, slow: float = 2.0, cost_s: float = 30.0) -> tuple[FreeCapacity, list[Movable]]:
    """`count` jobs on slow GPUs, and `free` fast ones."""
    free_capacity = room_of(count, free, scores={"A": [[slow] * count, [1.0] * free]})
    return free_capacity, [
        running(free_capacity, f"j-{number:03d}", ("n1", number), cost_s=cost_s) for number in range(count)
    ]


def test_of_many_jobs_those_move_that_gain_by_what_is_free() -> None:
    free_capacity, jobs = many(JOINT_MOST + 5, 3)
    moved = found(free_capacity, *jobs)
    assert len(moved) == 3
    assert {there for gpus in moved.values() for there, _ in gpus} == {"n2"}


def test_of_many_jobs_only_so_many_move_at_once() -> None:
    free_capacity, jobs = many(JOINT_MOST + 5, AT_ONCE_MOST + 5)
    assert len(found(free_capacity, *jobs)) == AT_ONCE_MOST


def test_of_many_jobs_none_moves_whose_gain_is_not_worth_it() -> None:
    free_capacity, jobs = many(JOINT_MOST + 5, 5, slow=1.001)
    assert found(free_capacity, *jobs) == {}
    free_capacity, jobs = many(JOINT_MOST + 5, 5, cost_s=HORIZON_S / 2 + 1)
    assert found(free_capacity, *jobs) == {}, "it saves half of the horizon"


def test_those_of_many_move_first_that_gain_most() -> None:
    free_capacity = room_of(JOINT_MOST + 1, 1, scores={"A": [[1.5] * JOINT_MOST + [2.0], [1.0]]})
    jobs = [running(free_capacity, f"j-{number:03d}", ("n1", number)) for number in range(JOINT_MOST + 1)]
    assert found(free_capacity, *jobs) == {f"j-{JOINT_MOST:03d}": [("n2", 0)]}


# whatever runs


@pytest.mark.parametrize("placement", PLACEMENTS)
@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.9, 1.0, 1.0, 1.2, 2.5]), min_size=32, max_size=32),
    st.lists(
        st.tuples(
            st.integers(1, 5),
            st.sampled_from(["A", "C"]),
            st.sampled_from([0.0, 20.0, 500.0, LONG_S]),
            st.sampled_from([0.0, 30.0, 120.0]),
        ),
        max_size=8,
    ),
    st.permutations(range(16)),
    st.sampled_from([1.0, 2.0]),
    st.booleans(),
)
def test_moves_are_possible_all_at_once_and_worth_their_cost(
    placement: str,
    gpus: list[int],
    scores: list[float],
    drawn: list[tuple[int, str, float, float]],
    order: list[int],
    margin: float,
    many_more: bool,
) -> None:
    """For every placement, from any state that there can be, jointly and one by one."""
    by_class = {
        name: [[scores[at + 4 * number + gpu] for gpu in range(count)] for number, count in enumerate(gpus)]
        for name, at in (("A", 0), ("C", 16))
    }
    placer = Policy(placement=placement).placing.placer
    extra = JOINT_MOST + 1 if many_more else 0
    free_capacity = room_of(*gpus, extra, scores=by_class, placer=placer)
    places = [(f"n{number}", gpu) for number, count in enumerate(gpus, 1) for gpu in range(count)]
    shuffled = [places[at] for at in order if at < len(places)]
    jobs: list[Movable] = []
    for number, (size, job_class, left_s, cost_s) in enumerate(drawn):
        if size <= len(shuffled):
            mine, shuffled = shuffled[:size], shuffled[size:]
            jobs.append(running(free_capacity, f"j-{number}", *mine, job_class=job_class, left_s=left_s, cost_s=cost_s))
    last = f"n{len(gpus) + 1}"
    jobs += [running(free_capacity, f"k-{gpu}", (last, gpu), left_s=0.0) for gpu in range(extra)]
    before = seen(free_capacity)
    moves = moves_for(free_capacity, jobs, margin=margin)
    assert seen(free_capacity) == before
    assert moves == moves_for(free_capacity, jobs, margin=margin)
    check(free_capacity, jobs, moves)


class _Step(NamedTuple):
    """What happens between two decisions."""

    what: str
    number: int
    gpus: int
    job_class: str
    left_s: float


_STEPS = st.builds(
    _Step,
    st.sampled_from(["begins", "begins", "begins", "ends", "moves", "scores", "closes"]),
    st.integers(0, 15),
    st.integers(1, 4),
    st.sampled_from(["A", "C"]),
    st.sampled_from([10.0, 3000.0, LONG_S]),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(_STEPS, min_size=3, max_size=14), st.integers(0, 10_000))
def test_what_is_remembered_of_earlier_choices_changes_no_move(steps: list[_Step], seed: int) -> None:
    dice = Random(seed)
    by_class = {name: [[round(dice.uniform(0.9, 1.3), 2) for _ in range(4)] for _ in range(4)] for name in "AC"}
    free_capacity = room_of(4, 4, 4, 4, scores=by_class)
    choosing = ChoosingAgain()
    jobs: dict[str, Movable] = {}
    for at, step in enumerate(steps):
        if step.what == "begins":
            free = [(name, gpu) for name, there in free_capacity.nodes.items() for gpu in there.gpus.whole]
            if step.gpus <= len(free):
                places = dice.sample(free, step.gpus)
                name = f"j-{at}"
                jobs[name] = running(free_capacity, name, *places, job_class=step.job_class, left_s=step.left_s)
        elif step.what == "ends" and jobs:
            gone = jobs.pop(sorted(jobs)[step.number % len(jobs)])
            free_capacity.give_back_all(gone.allocations)
        elif step.what == "scores":
            free_capacity.rescore(step.job_class, {(f"n{1 + step.number % 4}", step.gpus - 1): dice.uniform(0.9, 1.3)})
        elif step.what == "closes":
            free_capacity.close([f"n{1 + step.number % 4}"])
        moves = moves_for(free_capacity, list(jobs.values()), choosing=choosing)
        assert moves == moves_for(free_capacity, list(jobs.values()))
        if step.what == "moves":
            for move in moves:
                free_capacity.give_back_all(jobs[move.job_id].allocations)
            for move in moves:
                free_capacity.take_all(move.allocations)
                jobs[move.job_id] = structs.replace(jobs[move.job_id], allocations=move.allocations)
