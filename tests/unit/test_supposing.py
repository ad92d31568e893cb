"""What is tried out in a room leaves nothing behind, however it ends."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import node
from tests.support.tier import examples
from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.placement.weft_best import weft_best
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import Scores

NODES = [f"node-{number}" for number in range(4)]
GPUS = 3

Seen = tuple[object, ...]


SCORES = {  # some as good as equal, so that other classes matter
    "A": {(name, gpu): 1.0 + (3 * at + gpu) % 5 / 1000 for at, name in enumerate(NODES) for gpu in range(GPUS)},
    "B": {(name, gpu): 1.0 + (2 * at + gpu) % 3 / 10 for at, name in enumerate(NODES) for gpu in range(GPUS)},
}


def room_of() -> FreeCapacity:
    free_capacity = FreeCapacity(Scores(SCORES), placer=weft_best)
    for name in NODES:
        free_capacity.add(node(name, gpus=GPUS))
    return free_capacity


def held(name: str, *gpus: int) -> Allocation:
    return Allocation(rank=0, role="worker", node_id=name, gpus=gpus, cpus=0.1, memory=7)


def places_in(free_capacity: FreeCapacity) -> list[tuple[Allocation, ...] | None]:
    return [
        find(
            free_capacity,
            (RoleRequest("worker", count, count, Request(gpus=size, cpus=0.1, memory=7)),),
            PlacementRequest(job_class),
        )
        for count, size in ((1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (2, 2))
        for job_class in SCORES
    ]


def fresh(free_capacity: FreeCapacity) -> FreeCapacity:
    """A room with the same free, of which nothing was asked yet."""
    made = room_of()
    for name, there in free_capacity.nodes.items():
        made.take(held(name, *(gpu for gpu in range(GPUS) if not there.gpus.has([gpu]))))
        made.nodes[name].cpus, made.nodes[name].memory = there.cpus, there.memory
        if not free_capacity.is_open(name):
            made.close([name])
    return made


def seen(free_capacity: FreeCapacity) -> Seen:
    """All that is free, to the last bit, and what a placement that keeps offers finds there."""
    nodes = {one.node.id: (one.gpus.whole, one.cpus, one.memory) for one in free_capacity.nodes.values()}
    places = places_in(free_capacity)
    buckets = {free: list(node_ids) for free, node_ids in free_capacity.buckets.items()}
    return (
        nodes,
        buckets,
        [one.node.id for one in free_capacity.open_nodes],
        free_capacity.gpus_free,
        free_capacity.grown,
        places,
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "give back", "resize", "close", "reopen", "look", "begin", "end"]),
        st.sampled_from(NODES),
        st.integers(0, GPUS - 1),
    ),
    max_size=40,
)


def change(free_capacity: FreeCapacity, what: str, name: str, gpu: int) -> None:
    one = held(name, gpu)
    if what == "take" and free_capacity.nodes[name].gpus.has([gpu]):
        free_capacity.take(one)
    elif what == "give back" and not free_capacity.nodes[name].gpus.has([gpu]):
        free_capacity.give_back(one)
    elif what == "resize":
        free_capacity.resize(one, Allocation(rank=0, role="worker", node_id=name, gpus=(gpu,), cpus=0.3, memory=gpu))
    elif what == "close":
        free_capacity.close([name])
    elif what == "reopen":
        free_capacity.reopen([name])
    elif what == "look":
        assert places_in(free_capacity) == places_in(fresh(free_capacity))
        assert [there.node.id for there in free_capacity.open_nodes] == [
            name for name in NODES if free_capacity.is_open(name)
        ]


class _BrokenOffError(Exception):
    pass


def suppose(free_capacity: FreeCapacity, steps: list[tuple[str, str, int]]) -> None:
    """The steps in a scope; at each `begin` what follows is one scope deeper, and every scope ends by an exception."""
    before = seen(free_capacity)
    with suppress(_BrokenOffError), free_capacity.supposing():
        while steps:
            what, name, gpu = steps.pop(0)
            if what == "begin":
                suppose(free_capacity, steps)
            elif what == "end":
                break
            else:
                change(free_capacity, what, name, gpu)
        raise _BrokenOffError
    assert seen(free_capacity) == before
    change(free_capacity, "look", NODES[0], 0)


@settings(max_examples=examples(150), deadline=None)
@given(before=STEPS, steps=STEPS)
def test_after_a_supposition_everything_is_as_it_was(
    before: list[tuple[str, str, int]], steps: list[tuple[str, str, int]]
) -> None:
    free_capacity = room_of()
    for step in before:
        change(free_capacity, *step)
    suppose(free_capacity, list(steps))


def test_a_supposition_begins_with_what_is_given_back_and_what_is_closed() -> None:
    free_capacity = room_of()
    free_capacity.take(held("node-0", 0, 1))
    grown = free_capacity.grown
    with free_capacity.supposing(given_back=[held("node-0", 0, 1)], closed=["node-1"]):
        assert free_capacity.nodes["node-0"].gpus.whole == [0, 1, 2]
        assert not free_capacity.is_open("node-1")
        assert free_capacity.gpus_free == 3 * GPUS
    assert free_capacity.nodes["node-0"].gpus.whole == [2]
    assert (free_capacity.is_open("node-1"), free_capacity.grown) == (True, grown)


def test_nodes_come_and_go_in_no_supposition() -> None:
    free_capacity = room_of()
    with pytest.raises(AssertionError), free_capacity.supposing():
        free_capacity.add(node("node-9"))
    with pytest.raises(AssertionError), free_capacity.supposing():
        free_capacity.rescore("A", {})


def test_without_some_nodes_the_others_are_given_for_good_and_only_the_open_ones_open_again() -> None:
    free_capacity = room_of()
    free_capacity.close(["node-0"])
    grown = free_capacity.grown
    with suppress(_BrokenOffError), free_capacity.without(["node-0", "node-1", "node-9"]):
        assert [one.node.id for one in free_capacity.open_nodes] == ["node-2", "node-3"]
        free_capacity.take(held("node-2", 0))
        raise _BrokenOffError
    assert [one.node.id for one in free_capacity.open_nodes] == ["node-1", "node-2", "node-3"]
    assert (free_capacity.nodes["node-2"].gpus.whole, free_capacity.grown) == ([1, 2], grown)
