"""What is tried out in a room leaves nothing behind, however it ends."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import node
from tests.support.tier import examples
from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.planning.capacity import Room
from weft.planning.finding import find
from weft.planning.placement.weft_best import weft_best
from weft.planning.scores import Scores
from weft.planning.shape import PlacementRequest, Want

NODES = [f"node-{number}" for number in range(4)]
GPUS = 3

Seen = tuple[object, ...]


SCORES = {  # some as good as equal, so that other classes matter
    "A": {(name, gpu): 1.0 + (3 * at + gpu) % 5 / 1000 for at, name in enumerate(NODES) for gpu in range(GPUS)},
    "B": {(name, gpu): 1.0 + (2 * at + gpu) % 3 / 10 for at, name in enumerate(NODES) for gpu in range(GPUS)},
}


def room_of() -> Room:
    room = Room(Scores(SCORES), placer=weft_best)
    for name in NODES:
        room.add(node(name, gpus=GPUS))
    return room


def held(name: str, *gpus: int) -> Allocation:
    return Allocation(rank=0, role="worker", node_id=name, gpus=gpus, cpus=0.1, memory=7)


def places_in(room: Room) -> list[tuple[Allocation, ...] | None]:
    return [
        find(room, (Want("worker", count, count, Request(gpus=size, cpus=0.1, memory=7)),), PlacementRequest(job_class))
        for count, size in ((1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (2, 2))
        for job_class in SCORES
    ]


def fresh(room: Room) -> Room:
    """A room with the same free, of which nothing was asked yet."""
    made = room_of()
    for name, there in room.nodes.items():
        made.take(held(name, *(gpu for gpu in range(GPUS) if not there.gpus.has([gpu]))))
        made.nodes[name].cpus, made.nodes[name].memory = there.cpus, there.memory
        if not room.is_open(name):
            made.close([name])
    return made


def seen(room: Room) -> Seen:
    """All that is free, to the last bit, and what a placement that keeps offers finds there."""
    nodes = {one.node.id: (one.gpus.whole, one.cpus, one.memory) for one in room.nodes.values()}
    places = places_in(room)
    buckets = {free: list(node_ids) for free, node_ids in room.buckets.items()}
    return nodes, buckets, [one.node.id for one in room.open_nodes], room.gpus_free, room.grown, places


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "give back", "resize", "close", "reopen", "look", "begin", "end"]),
        st.sampled_from(NODES),
        st.integers(0, GPUS - 1),
    ),
    max_size=40,
)


def change(room: Room, what: str, name: str, gpu: int) -> None:
    one = held(name, gpu)
    if what == "take" and room.nodes[name].gpus.has([gpu]):
        room.take(one)
    elif what == "give back" and not room.nodes[name].gpus.has([gpu]):
        room.give_back(one)
    elif what == "resize":
        room.resize(one, Allocation(rank=0, role="worker", node_id=name, gpus=(gpu,), cpus=0.3, memory=gpu))
    elif what == "close":
        room.close([name])
    elif what == "reopen":
        room.reopen([name])
    elif what == "look":
        assert places_in(room) == places_in(fresh(room))
        assert [there.node.id for there in room.open_nodes] == [name for name in NODES if room.is_open(name)]


class _BrokenOffError(Exception):
    pass


def suppose(room: Room, steps: list[tuple[str, str, int]]) -> None:
    """The steps in a scope; at each `begin` what follows is one scope deeper, and every scope ends by an exception."""
    before = seen(room)
    with suppress(_BrokenOffError), room.supposing():
        while steps:
            what, name, gpu = steps.pop(0)
            if what == "begin":
                suppose(room, steps)
            elif what == "end":
                break
            else:
                change(room, what, name, gpu)
        raise _BrokenOffError
    assert seen(room) == before
    change(room, "look", NODES[0], 0)


@settings(max_examples=examples(150), deadline=None)
@given(before=STEPS, steps=STEPS)
def test_after_a_supposition_everything_is_as_it_was(
    before: list[tuple[str, str, int]], steps: list[tuple[str, str, int]]
) -> None:
    room = room_of()
    for step in before:
        change(room, *step)
    suppose(room, list(steps))


def test_a_supposition_begins_with_what_is_given_back_and_what_is_closed() -> None:
    room = room_of()
    room.take(held("node-0", 0, 1))
    grown = room.grown
    with room.supposing(given_back=[held("node-0", 0, 1)], closed=["node-1"]):
        assert room.nodes["node-0"].gpus.whole == [0, 1, 2]
        assert not room.is_open("node-1")
        assert room.gpus_free == 3 * GPUS
    assert room.nodes["node-0"].gpus.whole == [2]
    assert (room.is_open("node-1"), room.grown) == (True, grown)


def test_nodes_come_and_go_in_no_supposition() -> None:
    room = room_of()
    with pytest.raises(AssertionError), room.supposing():
        room.add(node("node-9"))
    with pytest.raises(AssertionError), room.supposing():
        room.rescore("A", {})


def test_without_some_nodes_the_others_are_given_for_good_and_only_the_open_ones_open_again() -> None:
    room = room_of()
    room.close(["node-0"])
    grown = room.grown
    with suppress(_BrokenOffError), room.without(["node-0", "node-1", "node-9"]):
        assert [one.node.id for one in room.open_nodes] == ["node-2", "node-3"]
        room.take(held("node-2", 0))
        raise _BrokenOffError
    assert [one.node.id for one in room.open_nodes] == ["node-1", "node-2", "node-3"]
    assert (room.nodes["node-2"].gpus.whole, room.grown) == ([1, 2], grown)
