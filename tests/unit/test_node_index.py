"""The best node for a need, found without looking at all of them again."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import node
from tests.support.tier import examples
from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity, NodeCapacity
from weft.planning.capacity.node_index import NodeIndex

NODES = [f"node-{number}" for number in range(5)]
NEEDS = (1, 2, 3)


def room_of(nodes: int = 3, gpus: int = 4) -> FreeCapacity:
    free_capacity = FreeCapacity()
    for name in NODES[:nodes]:
        free_capacity.add(node(name, gpus=gpus))
    return free_capacity


Cost = tuple[float, ...]


def leftover(need: int) -> Callable[[NodeCapacity], Cost | None]:
    """The fewer GPUs are left over, the better; then the lowest index counts."""
    return lambda there: (len(there.gpus.whole) - need, there.gpus.whole[0]) if len(there.gpus.whole) >= need else None


def least(free_capacity: FreeCapacity, need: int) -> tuple[Cost, str] | None:
    """All of them looked at."""
    costs = [(leftover(need)(there), there.node.id) for there in free_capacity.open_nodes]
    return min(((cost, name) for cost, name in costs if cost is not None), default=None)


def best_of(offers: NodeIndex[NodeCapacity], free_capacity: FreeCapacity) -> tuple[Cost, str] | None:
    return offers.best({there.node.id: there for there in free_capacity.open_nodes}, free_capacity.changed)


def held(name: str, *gpus: int) -> Allocation:
    return Allocation(rank=0, role="worker", node_id=name, gpus=gpus, cpus=0.0, memory=0)


def test_the_cheapest_node_is_best_and_of_nodes_alike_the_first_by_id() -> None:
    free_capacity = room_of()
    offers = NodeIndex(leftover(1))
    assert best_of(offers, free_capacity) == ((3, 0), "node-0")
    free_capacity.take(held("node-1", 3))
    assert best_of(offers, free_capacity) == ((2, 0), "node-1")


def test_where_it_fits_nowhere_there_is_no_best_until_something_is_given_back() -> None:
    free_capacity = room_of(1)
    offers = NodeIndex(leftover(4))
    free_capacity.take(held("node-0", 0))
    assert best_of(offers, free_capacity) is None
    free_capacity.give_back(held("node-0", 0))
    assert best_of(offers, free_capacity) == ((0, 0), "node-0")


def test_a_closed_node_is_no_offer_and_a_reopened_one_is() -> None:
    free_capacity = room_of(2)
    offers = NodeIndex(leftover(1))
    free_capacity.close(["node-0"])
    assert best_of(offers, free_capacity) == ((3, 0), "node-1")
    free_capacity.reopen(["node-0"])
    assert best_of(offers, free_capacity) == ((3, 0), "node-0")


def test_a_node_that_goes_or_comes_is_noticed() -> None:
    free_capacity = room_of(2)
    offers = NodeIndex(leftover(1))
    free_capacity.remove("node-0")
    free_capacity.add(node("node-0", gpus=8))
    assert best_of(offers, free_capacity) == ((3, 0), "node-1")
    free_capacity.add(node("a-node", gpus=1))
    assert best_of(offers, free_capacity) == ((0, 0), "a-node")


def test_only_nodes_that_changed_are_looked_at_again() -> None:
    free_capacity = room_of(5)
    looked: list[str] = []

    def cost(there: NodeCapacity) -> Cost | None:
        looked.append(there.node.id)
        return leftover(1)(there)

    offers = NodeIndex(cost)
    best_of(offers, free_capacity)
    assert len(looked) == 5
    best_of(offers, free_capacity)
    assert len(looked) == 5
    free_capacity.take(held("node-3", 1))
    free_capacity.take(held("node-3", 2))
    best_of(offers, free_capacity)
    assert looked[5:] == ["node-3"]


def test_a_room_looks_anew_when_scores_changed() -> None:
    free_capacity = room_of(2)
    found = free_capacity.best_node("need", lambda there: (free_capacity.scores.get("A", (there.node.id, 0)),))
    assert found is not None
    assert (found[0], found[1].node.id) == ((1.0,), "node-0")
    free_capacity.rescore("A", {("node-0", 0): 1.5})
    found = free_capacity.best_node("need", lambda there: (free_capacity.scores.get("A", (there.node.id, 0)),))
    assert found is not None
    assert found[1].node.id == "node-1"


STEPS = st.tuples(
    st.sampled_from(["take", "give", "close", "reopen", "add", "remove"]), st.sampled_from(NODES), st.integers(0, 3)
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(STEPS, st.sampled_from((0, *NEEDS))), max_size=40), st.booleans())
def test_the_best_offer_is_the_least_of_all(steps: list[tuple[tuple[str, str, int], int]], by_room: bool) -> None:
    """Whatever is taken, given back, closed, reopened, removed and added, and however long nobody asks."""
    free_capacity = room_of(len(NODES))
    offers = {need: NodeIndex(leftover(need)) for need in NEEDS}

    def best(need: int) -> tuple[Cost, str] | None:
        if not by_room:
            return best_of(offers[need], free_capacity)
        found = free_capacity.best_node(need, leftover(need))
        return None if found is None else (found[0], found[1].node.id)

    for (step, name, gpu), asked in steps:
        there = free_capacity.nodes.get(name)
        if step == "take" and there is not None and gpu in there.gpus.whole:
            free_capacity.take(held(name, gpu))
        elif step == "give" and there is not None and gpu not in there.gpus.whole:
            free_capacity.give_back(held(name, gpu))
        elif step == "close":
            free_capacity.close([name])
        elif step == "reopen":
            free_capacity.reopen([name])
        elif step == "add":
            free_capacity.add(node(name, gpus=gpu + 1))
        elif step == "remove":
            free_capacity.remove(name)
        if asked:
            assert best(asked) == least(free_capacity, asked)
    for need in NEEDS:
        assert best(need) == least(free_capacity, need)
        assert best(need) == least(free_capacity, need)
