"""Where a gang goes, by each placement, in rooms made by hand."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.builders import GIB, capacity, node
from tests.support.tier import examples
from weft.domain.cluster import Drain, Request
from weft.domain.job import Allocation, CauseCode
from weft.planning.capacity import FreeCapacity, Placer
from weft.planning.finding import find
from weft.planning.locality import Locality
from weft.planning.placement.pal import offers, pal
from weft.planning.placement.pm_first import pm_first
from weft.planning.placement.unscored import at_random, packed, spread
from weft.planning.placement.weft_best import AS_FAST, weft_best
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.refusals import why_not
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import GpuKey, Scores

PLACERS = {name: Policy(placement=name).placing.placer for name in PLACEMENTS}
ASKED = PlacementRequest("A", "j-1")
Where = dict[str, list[tuple[int, ...]]]
"""By node, the GPUs of each replica there."""


def room_of(
    *gpus: int,
    scores: Mapping[str, Sequence[Sequence[float]]] | None = None,
    placer: Placer = packed,
    across: float = 1.7,
    groups: int | None = None,
) -> FreeCapacity:
    """Nodes `n1`, `n2`, … with so many GPUs each; `scores`: by class and node, that of each GPU."""
    by_class: dict[str, dict[GpuKey, float]] = {
        name: {
            (f"n{number}", gpu): score for number, of_node in enumerate(by_node, 1) for gpu, score in enumerate(of_node)
        }
        for name, by_node in (scores or {}).items()
    }
    free_capacity = FreeCapacity(Scores(by_class, groups=groups), placer=placer, locality=Locality(across_nodes=across))
    for number, count in enumerate(gpus, 1):
        free_capacity.add(node(f"n{number}", gpus=count))
    return free_capacity


def hold(free_capacity: FreeCapacity, name: str, *gpus: int, cpus: float = 0.0, memory: int = 0) -> None:
    free_capacity.take(Allocation(rank=0, role="worker", node_id=name, gpus=gpus, cpus=cpus, memory=memory))


def wants(count: int, gpus: int = 1, *, cpus: float = 1.0, memory: int = GIB, model: str | None = None) -> RoleRequest:
    return RoleRequest(
        "worker", count, count, Request(gpus=gpus, cpus=cpus, memory=memory, models=(model,) if model else ())
    )


def where(
    placer: Placer, free_capacity: FreeCapacity, want: RoleRequest, asked: PlacementRequest = ASKED
) -> Where | None:
    found = placer(free_capacity, want, want.count, asked)
    return None if found is None else {there.node.id: replicas for there, replicas in found}


def singles(*gpus: int) -> list[tuple[int, ...]]:
    return [(gpu,) for gpu in gpus]


# packed


def test_packed_takes_the_node_with_exactly_so_much_free() -> None:
    free_capacity = room_of(4, 4, 4)
    hold(free_capacity, "n2", 0, 1)
    hold(free_capacity, "n3", 0)
    assert where(packed, free_capacity, wants(2)) == {"n2": singles(2, 3)}
    assert where(packed, free_capacity, wants(3)) == {"n3": singles(1, 2, 3)}


def test_packed_takes_the_fullest_that_still_holds_it_and_the_first_of_nodes_alike() -> None:
    free_capacity = room_of(8, 8, 8)
    hold(free_capacity, "n3", 0, 1, 2)
    assert where(packed, free_capacity, wants(2)) == {"n3": singles(3, 4)}
    assert where(packed, free_capacity, wants(6)) == {"n1": singles(0, 1, 2, 3, 4, 5)}


def test_packed_fills_the_emptiest_nodes_where_no_node_holds_a_gang() -> None:
    free_capacity = room_of(4, 4, 4)
    hold(free_capacity, "n1", 0, 1, 2)
    assert where(packed, free_capacity, wants(7)) == {"n2": singles(0, 1, 2, 3), "n3": singles(0, 1, 2)}
    assert where(packed, free_capacity, wants(9)) == {
        "n2": singles(0, 1, 2, 3),
        "n3": singles(0, 1, 2, 3),
        "n1": singles(3),
    }
    assert where(packed, free_capacity, wants(10)) is None


def test_packed_gives_each_replica_neighbours_and_wastes_no_node_on_a_part_of_one() -> None:
    free_capacity = room_of(4, 3, 4)
    assert where(packed, free_capacity, wants(2, gpus=2)) == {"n1": [(0, 1), (2, 3)]}
    assert where(packed, free_capacity, wants(4, gpus=2)) == {"n1": [(0, 1), (2, 3)], "n3": [(0, 1), (2, 3)]}
    assert where(packed, free_capacity, wants(5, gpus=2)) == {
        "n1": [(0, 1), (2, 3)],
        "n3": [(0, 1), (2, 3)],
        "n2": [(0, 1)],
    }
    assert where(packed, free_capacity, wants(1, gpus=5)) is None


def test_packed_does_not_care_how_fast_gpus_are() -> None:
    assert where(packed, room_of(2, 2, scores={"A": [[9, 9], [1, 1]]}), wants(2)) == {"n1": singles(0, 1)}


# spread


def test_spread_puts_each_replica_where_most_is_free() -> None:
    free_capacity = room_of(4, 4, 4)
    hold(free_capacity, "n1", 0)
    assert where(spread, free_capacity, wants(2)) == {"n2": singles(0), "n3": singles(0)}
    assert where(spread, free_capacity, wants(3)) == {"n2": singles(0), "n3": singles(0), "n1": singles(1)}
    assert where(spread, free_capacity, wants(5)) == {"n2": singles(0, 1), "n3": singles(0, 1), "n1": singles(1)}


def test_spread_goes_on_where_the_emptiest_node_has_no_more_cpus() -> None:
    free_capacity = room_of(8, 4)
    hold(free_capacity, "n1", cpus=62.0)
    assert where(spread, free_capacity, wants(4, cpus=2.0)) == {"n1": singles(0), "n2": singles(0, 1, 2)}


def test_spread_keeps_a_replicas_gpus_together() -> None:
    assert where(spread, room_of(4, 4), wants(3, gpus=2)) == {"n1": [(0, 1), (2, 3)], "n2": [(0, 1)]}
    assert where(spread, room_of(3, 3), wants(3, gpus=2)) is None


# random


def test_random_is_decided_by_who_asks() -> None:
    free_capacity = room_of(8, 8, 8)
    same = [where(at_random, free_capacity, wants(5), PlacementRequest("A", "j-7")) for _ in range(3)]
    assert same[0] == same[1] == same[2]
    others = [where(at_random, free_capacity, wants(5), PlacementRequest("A", f"j-{number}")) for number in range(20)]
    assert len({str(other) for other in others}) > 15


def test_random_takes_every_gpu_about_as_often() -> None:
    free_capacity = room_of(4, 4)
    taken = [0] * 8
    for number in range(400):
        found = where(at_random, free_capacity, wants(2), PlacementRequest("", f"j-{number}"))
        assert found is not None
        for name, replicas in found.items():
            for (gpu,) in replicas:
                taken[(int(name[1:]) - 1) * 4 + gpu] += 1
    assert sum(taken) == 800
    assert 60 < min(taken) <= max(taken) < 140


# pm-first


def test_pm_first_takes_the_fastest_wherever_they_are() -> None:
    free_capacity = room_of(2, 2, 2, scores={"A": [[1.0, 2.0], [2.0, 2.0], [2.0, 1.0]]})
    assert where(pm_first, free_capacity, wants(2)) == {"n1": singles(0), "n3": singles(1)}
    assert where(pm_first, free_capacity, wants(3)) == {"n1": singles(0), "n3": singles(1), "n2": singles(0)}


def test_pm_first_prefers_the_node_that_comes_nearest_to_as_many_as_are_asked_for() -> None:
    scores = {"A": [[1.0] * 4, [1.0, 1.0, 2.0, 2.0], [1.0, 2.0, 2.0, 2.0]]}
    free_capacity = room_of(4, 4, 4, scores=scores)
    assert where(pm_first, free_capacity, wants(2)) == {"n2": singles(0, 1)}
    assert where(pm_first, free_capacity, wants(1)) == {"n3": singles(0)}
    assert where(pm_first, free_capacity, wants(4)) == {"n1": singles(0, 1, 2, 3)}
    assert where(pm_first, free_capacity, wants(5)) == {"n1": singles(0, 1, 2, 3), "n2": singles(0)}


def test_gpus_of_one_bin_are_alike_to_it() -> None:
    """1.00 and 1.01 are of one bin, however little faster the one is."""
    free_capacity = room_of(2, 1, scores={"A": [[1.01, 1.01], [1.0]]}, groups=1)
    assert where(pm_first, free_capacity, wants(2)) == {"n1": singles(0, 1)}


def test_a_class_has_scores_of_its_own_and_an_unknown_one_those_of_the_first() -> None:
    free_capacity = room_of(2, scores={"A": [[2.0, 1.0]], "C": [[1.0, 2.0]]})
    assert where(pm_first, free_capacity, wants(1), PlacementRequest("A")) == {"n1": singles(1)}
    assert where(pm_first, free_capacity, wants(1), PlacementRequest("C")) == {"n1": singles(0)}
    assert where(pm_first, free_capacity, wants(1), PlacementRequest("?")) == {"n1": singles(1)}


# pal

TWO_BINS = {"A": [[1.0, 1.0, 1.5, 1.5], [1.5, 1.0, 1.5, 1.0]]}
"""With two groups: bins of 1.0 and 1.5, and the median of these is 1.25: they count 0.8 and 1.2."""


def test_pals_offers_go_from_the_smallest_product_of_score_and_penalty_on() -> None:
    bins = {("n1", 0): 0.8, ("n1", 1): 1.2, ("n1", 2): 3.0}
    assert offers(bins, 1.7) == [(0.8, True), (1.2, True), (0.8, False), (1.2, False), (3.0, True), (3.0, False)]
    assert offers(bins, 1.4) == [(0.8, True), (0.8, False), (1.2, True), (1.2, False), (3.0, True), (3.0, False)]


def test_pal_tries_one_node_before_several_where_the_penalty_is_nothing() -> None:
    assert offers({("n1", 0): 0.8, ("n1", 1): 1.2}, 1.0) == [(0.8, True), (0.8, False), (1.2, True), (1.2, False)]


def test_pal_takes_two_fast_gpus_of_one_node() -> None:
    assert where(pal, room_of(4, 4, scores=TWO_BINS, groups=2), wants(2)) == {"n1": singles(0, 1)}


def test_pal_takes_slower_gpus_of_one_node_where_several_nodes_would_cost_more() -> None:
    """0.8 within fits nowhere; 1.2 within is 1.2; 0.8 across is 0.8 × 1.7 = 1.36."""
    assert where(pal, room_of(4, 4, scores=TWO_BINS, groups=2), wants(3)) == {"n1": singles(0, 1, 2)}


def test_pal_takes_fast_gpus_of_several_nodes_where_that_costs_less() -> None:
    """0.8 across is 0.8 × 1.4 = 1.12, which is less than 1.2 within."""
    free_capacity = room_of(4, 4, scores=TWO_BINS, groups=2, across=1.4)
    assert where(pal, free_capacity, wants(3)) == {"n1": singles(0, 1), "n2": singles(1)}


def test_pal_knows_the_penalty_of_each_workload() -> None:
    free_capacity = room_of(4, 4, scores=TWO_BINS, groups=2)
    free_capacity.locality = Locality(across_nodes=1.7, by_workload={"bert": 1.4})
    assert where(pal, free_capacity, wants(3), PlacementRequest("A")) == {"n1": singles(0, 1, 2)}
    asked = PlacementRequest("A", workload="bert")
    assert where(pal, free_capacity, wants(3), asked) == {"n1": singles(0, 1), "n2": singles(1)}


def test_pal_takes_the_node_whose_slowest_is_fastest_and_which_has_most_to_choose_from() -> None:
    scores = {"A": [[1.0, 1.5, 1.5, 1.5], [1.0, 1.0, 1.5, 1.5], [1.0, 1.0, 1.0, 1.5]]}
    assert where(pal, room_of(4, 4, 4, scores=scores, groups=2), wants(2)) == {"n3": singles(0, 1)}


@pytest.mark.parametrize("count", [1, 5, 6, 8])
def test_what_fits_one_gpu_or_no_node_goes_by_pm_first_alone(count: int) -> None:
    free_capacity = room_of(4, 4, scores=TWO_BINS, groups=2)
    assert where(pal, free_capacity, wants(count)) == where(pm_first, free_capacity, wants(count))


def test_pal_places_replicas_of_several_gpus_by_the_slowest_of_each() -> None:
    scores = {"A": [[1.0, 1.5, 1.0, 1.5], [1.5, 1.5, 1.0, 1.5]]}
    free_capacity = room_of(4, 4, scores=scores, groups=2)
    assert where(pal, free_capacity, wants(1, gpus=2)) == {"n1": [(0, 2)]}


def test_where_all_gpus_are_alike_pal_only_keeps_gangs_together() -> None:
    free_capacity = room_of(4, 4)
    hold(free_capacity, "n1", 0, 1)
    assert where(pal, free_capacity, wants(3)) == {"n2": singles(0, 1, 2)}


# weft-best


def test_weft_best_takes_the_node_where_the_job_runs_fastest() -> None:
    free_capacity = room_of(4, 4, 4, scores={"A": [[1.5] * 4, [1.0] * 4, [1.5] * 4]})
    assert where(weft_best, free_capacity, wants(2)) == {"n2": singles(0, 1)}


def test_weft_best_goes_across_nodes_where_that_is_faster_all_the_same() -> None:
    free_capacity = room_of(4, 2, 2, scores={"A": [[3.0] * 4, [1.0] * 2, [1.0] * 2]}, placer=weft_best)
    assert where(weft_best, free_capacity, wants(4)) == {"n2": singles(0, 1), "n3": singles(0, 1)}
    near = room_of(4, 2, 2, scores={"A": [[1.6] * 4, [1.0] * 2, [1.0] * 2]}, placer=weft_best)
    assert where(weft_best, near, wants(4)) == {"n1": singles(0, 1, 2, 3)}


def test_weft_best_goes_by_the_slowest_gpu_of_a_gang() -> None:
    free_capacity = room_of(2, 2, scores={"A": [[0.7, 1.8], [1.1, 1.1]]})
    assert where(weft_best, free_capacity, wants(2)) == {"n2": singles(0, 1)}
    assert where(weft_best, free_capacity, wants(1)) == {"n1": singles(0)}


def test_weft_best_takes_gpus_that_are_slow_for_others_alone() -> None:
    """To class C all are alike; the fast one stays free for class A."""
    free_capacity = room_of(4, scores={"A": [[1.0, 1.0, 2.0, 1.0]], "C": [[1.0] * 4]})
    assert where(weft_best, free_capacity, wants(1), PlacementRequest("C")) == {"n1": singles(2)}
    assert where(weft_best, free_capacity, wants(1), PlacementRequest("A")) == {"n1": singles(0)}


def test_weft_best_takes_a_whole_node_where_others_would_gain_from_another() -> None:
    free_capacity = room_of(2, 2, scores={"A": [[1.0, 1.0], [2.0, 2.0]], "C": [[1.0, 1.0], [1.0, 1.0]]})
    assert where(weft_best, free_capacity, wants(2), PlacementRequest("C")) == {"n2": singles(0, 1)}
    assert where(weft_best, free_capacity, wants(2), PlacementRequest("A")) == {"n1": singles(0, 1)}


def test_of_places_as_fast_weft_best_takes_the_one_of_which_nothing_is_left() -> None:
    free_capacity = room_of(4, 4, 4)
    hold(free_capacity, "n3", 0, 1)
    assert where(weft_best, free_capacity, wants(2)) == {"n3": singles(2, 3)}
    assert where(weft_best, free_capacity, wants(1)) == {"n3": singles(2)}
    assert where(weft_best, free_capacity, wants(3)) == {"n1": singles(0, 1, 2)}


def test_a_gang_larger_than_a_node_leaves_slow_gpus_out() -> None:
    free_capacity = room_of(2, 2, 2, scores={"A": [[1.0, 3.0], [1.0, 1.0], [1.0, 1.0]]})
    assert where(weft_best, free_capacity, wants(4)) == {"n2": singles(0, 1), "n3": singles(0, 1)}
    found = where(weft_best, free_capacity, wants(5))
    assert found is not None
    assert found["n1"] == singles(0)


def test_a_gang_larger_than_a_node_takes_whole_nodes_first() -> None:
    free_capacity = room_of(4, 4, 4)
    hold(free_capacity, "n1", 0)
    assert where(weft_best, free_capacity, wants(8)) == {"n2": singles(0, 1, 2, 3), "n3": singles(0, 1, 2, 3)}
    free_capacity = room_of(4, 4, 4)
    hold(free_capacity, "n1", 0, 1)
    assert where(weft_best, free_capacity, wants(6)) == {"n2": singles(0, 1, 2, 3), "n1": singles(2, 3)}


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(st.lists(st.floats(0.5, 3.0), min_size=2, max_size=2), min_size=2, max_size=6), st.integers(3, 12))
def test_no_gang_across_nodes_could_have_faster_gpus(scores: list[list[float]], count: int) -> None:
    """It is as fast as its slowest: that is as fast as can be, or as good as."""
    free_capacity = room_of(*(2 for _ in scores), scores={"A": scores})
    found = where(weft_best, free_capacity, wants(count))
    everything = sorted(score for of_node in scores for score in of_node)
    if found is None:
        assert count > len(everything)
        return
    slowest = max(
        scores[int(name[1:]) - 1][gpu] for name, replicas in found.items() for replica in replicas for gpu in replica
    )
    assert slowest <= everything[count - 1] + AS_FAST


def test_weft_best_goes_by_new_scores_at_once() -> None:
    free_capacity = room_of(
        2, 2, placer=weft_best, scores={"A": [[1.0, 1.0], [1.1, 1.1]], "C": [[1.0, 1.0], [1.0, 1.0]]}
    )
    assert where(weft_best, free_capacity, wants(2)) == {"n1": singles(0, 1)}
    free_capacity.rescore("A", {("n1", 0): 2.0})
    assert where(weft_best, free_capacity, wants(2)) == {"n2": singles(0, 1)}
    assert where(weft_best, free_capacity, wants(1), PlacementRequest("C")) == {"n1": singles(0)}


# all of them

STRANGE = st.fixed_dictionaries(
    {
        "nodes": st.lists(
            st.tuples(
                st.integers(0, 6),  # GPUs
                st.sampled_from([2.0, 4.0, 64.0]),  # CPU cores
                st.sampled_from([2, 5, 256]),  # GiB
                st.sets(st.integers(0, 5)),  # held
                st.sampled_from(["old", "new"]),
                st.sampled_from(["open", "open", "drained", "lost"]),
            ),
            min_size=1,
            max_size=5,
        ),
        "scores": st.lists(st.sampled_from([0.9, 1.0, 1.05, 1.3, 2.8]), min_size=30, max_size=30),
        "count": st.integers(1, 9),
        "gpus": st.integers(1, 3),
        "cpus": st.sampled_from([0.5, 1.0, 3.0]),
        "memory": st.sampled_from([1, 2]),
        "model": st.sampled_from([None, "old", "new"]),
        "across": st.sampled_from([1.0, 1.1, 1.7]),
    }
)


@pytest.mark.parametrize("name", PLACEMENTS)
@settings(max_examples=examples(60), deadline=None)
@given(drawn=STRANGE)
def test_a_place_is_free_whole_and_found_wherever_there_is_one(name: str, drawn: dict[str, object]) -> None:
    nodes, count = drawn["nodes"], drawn["count"]
    assert isinstance(nodes, list)
    assert isinstance(count, int)
    keys = [(f"n{number}", gpu) for number in range(1, 6) for gpu in range(6)]
    by_class = {"A": dict(zip(keys, drawn["scores"], strict=True))}  # type: ignore[call-overload]
    free_capacity = FreeCapacity(
        Scores(by_class), placer=PLACERS[name], locality=Locality(across_nodes=drawn["across"])
    )  # type: ignore[arg-type]
    for number, (gpus, cpus, memory, held, model, state) in enumerate(nodes, 1):
        there = replace(capacity(gpus=gpus, model=model), cpus=cpus, memory=memory * GIB)
        made = replace(
            node(f"n{number}"), capacity=there, drain=Drain() if state == "drained" else None, ready=state != "lost"
        )
        free_capacity.add(made, [Allocation(rank=0, role="", node_id=made.id, gpus=tuple(held), cpus=0.0, memory=0)])
    want = wants(count, drawn["gpus"], cpus=drawn["cpus"], memory=drawn["memory"] * GIB, model=drawn["model"])  # type: ignore[arg-type,operator]
    before = {
        there.node.id: (list(there.gpus.whole), there.cpus, there.memory) for there in free_capacity.nodes.values()
    }
    found = find(free_capacity, (want,), ASKED)
    assert before == {
        there.node.id: (list(there.gpus.whole), there.cpus, there.memory) for there in free_capacity.nodes.values()
    }
    if found is None:
        assert sum(there.count(want.request, count) for there in free_capacity.open_nodes) < count
        cause = why_not(free_capacity, (want,), ASKED)
        assert cause is not None
        assert cause.code in (CauseCode.NO_ROOM, CauseCode.NO_NODES)
        assert cause.sentence
        assert cause.numbers or cause.code is CauseCode.NO_NODES
        return
    assert [allocation.rank for allocation in found] == list(range(count))
    for allocation in found:
        there = free_capacity.nodes[allocation.node_id]
        assert free_capacity.is_open(allocation.node_id)
        assert len(allocation.gpus) == want.request.gpus
        assert set(allocation.gpus) <= set(there.gpus_for(want.request))
        free_capacity.take(allocation)  # so that no two have the same GPU
        assert there.cpus >= -1e-6
        assert there.memory >= 0


@pytest.mark.parametrize("name", PLACEMENTS)
def test_only_gpus_of_the_model_are_taken_and_only_as_many_as_cpus_and_memory_allow(name: str) -> None:
    free_capacity = FreeCapacity(placer=PLACERS[name])
    free_capacity.add(replace(node("n1"), capacity=capacity(gpus=4, model="old")))
    free_capacity.add(replace(node("n2"), capacity=replace(capacity(gpus=4, model="new"), cpus=2.0, memory=3 * GIB)))
    assert where(PLACERS[name], free_capacity, wants(2, model="new")) is not None
    assert where(PLACERS[name], free_capacity, wants(3, model="new")) is None
    assert where(PLACERS[name], free_capacity, wants(2, memory=2 * GIB, model="new")) is None
    old = where(PLACERS[name], free_capacity, wants(4, model="old"))
    assert old is not None
    assert {there: sorted(replicas) for there, replicas in old.items()} == {"n1": singles(0, 1, 2, 3)}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_roles_are_placed_one_after_the_other_and_ranks_numbered_so(name: str) -> None:
    free_capacity = room_of(4, 4, placer=PLACERS[name])
    resource_request = (
        replace(wants(2, gpus=2), role="learner"),
        replace(wants(3), role="actor"),
        replace(wants(1, gpus=0), role="log"),
    )
    found = find(free_capacity, resource_request, ASKED)
    assert found is not None
    assert [(one.rank, one.role, len(one.gpus)) for one in found] == [
        *((0, "learner", 2), (1, "learner", 2), (2, "actor", 1), (3, "actor", 1), (4, "actor", 1), (5, "log", 0)),
    ]
    held = [(one.node_id, gpu) for one in found for gpu in one.gpus]
    assert len(set(held)) == 7
    assert free_capacity.gpus_free == 8
    assert find(free_capacity, (*resource_request, wants(2)), ASKED) is None
    assert free_capacity.gpus_free == 8


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_role_that_may_have_fewer_gets_as_many_as_fit(name: str) -> None:
    free_capacity = room_of(3, 2, placer=PLACERS[name])
    found = find(free_capacity, (replace(wants(8), least=2),), ASKED)
    assert found is not None
    assert len(found) == 5
    assert find(free_capacity, (replace(wants(8), least=6),), ASKED) is None


@pytest.mark.parametrize("name", [name for name in PLACEMENTS if name != "random"])
def test_where_every_gpu_is_alike_the_class_of_a_job_does_not_matter(name: str) -> None:
    flat = {"A": [[1.0] * 4] * 3, "C": [[1.0] * 4] * 3}
    for count in (1, 3, 6):
        found = [
            where(PLACERS[name], room_of(4, 4, 4, scores=flat), wants(count), PlacementRequest(one)) for one in "AC"
        ]
        assert found[0] == found[1] == where(PLACERS[name], room_of(4, 4, 4), wants(count))
