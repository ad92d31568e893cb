"""Of every place it is said how fast it is there, and what packing would have given."""

import pytest

from tests.support.builders import GIB, node, spec
from weft.planning.capacity import FreeCapacity, Placer
from weft.planning.finding import find
from weft.planning.locality import Locality
from weft.planning.placement.unscored import packed
from weft.planning.placement.weft_best import weft_best
from weft.planning.reasons.why import PlacementExplanation, why_there
from weft.planning.resource_request import PlacementRequest, resource_request_of
from weft.planning.scores import GpuKey, Scores

COMPUTE = PlacementRequest("compute", "j-1")
SLOW_FIRST = {("node-1", 0): 1.13, ("node-1", 1): 1.1, ("node-1", 2): 0.97, ("node-1", 3): 0.96}


def told(
    scores: dict[GpuKey, float],
    *,
    nodes: int = 1,
    placer: Placer = weft_best,
    asked: PlacementRequest = COMPUTE,
    gpus: int = 1,
    replicas: int = 1,
) -> PlacementExplanation:
    by_class = {"compute": scores, "memory": {}}
    free_capacity = FreeCapacity(Scores(by_class), placer=placer, locality=Locality(across_nodes=1.5))
    for number in range(1, nodes + 1):
        free_capacity.add(node(f"node-{number}", gpus=4))
    resource_request = resource_request_of(spec(gpus=gpus, replicas=replicas))
    found = find(free_capacity, resource_request, asked)
    assert found is not None
    why = why_there(
        free_capacity, resource_request, asked, found, placement="packed" if placer is packed else "weft-best"
    )
    assert find(free_capacity, resource_request, asked) == found
    return why


def test_it_says_which_gpus_how_fast_they_are_and_what_was_gained() -> None:
    why = told(SLOW_FIRST, gpus=2)
    assert (
        why.sentence == "weft-best: 2 GPUs of node-1 together, slowest 0.97;"
        " here it takes 14 % less time than at the place of the placement packed (1.13)"
    )
    assert why.numbers == {"slowdown": 0.97, "slowest": 0.97, "locality": 1.0, "slowdown_packed": 1.13}


def test_a_single_gpu_has_one_score() -> None:
    assert told(SLOW_FIRST).sentence.startswith("weft-best: 1 GPU of node-1, score 0.96; here it takes 15 % less time")


def test_a_gang_across_nodes_says_what_locality_costs_it() -> None:
    why = told({("node-2", 0): 1.2}, nodes=2, replicas=8)
    assert why.sentence == (
        "weft-best: 8 GPUs of node-1 and node-2, slowest 1.20 × locality 1.50; on several nodes, because no node had"
        " enough GPUs for all 8 replicas (1 GPU each); the placement packed would be as fast"
    )
    assert why.numbers["slowdown"] == pytest.approx(1.8)


def test_the_limit_that_spread_a_gang_over_nodes_is_named() -> None:
    """Four replicas fit the GPUs of either node, but not its memory."""
    free_capacity = FreeCapacity(placer=weft_best, locality=Locality(across_nodes=1.7))
    for number in (1, 2):
        free_capacity.add(node(f"node-{number}", gpus=8, memory=10 * GIB))
    resource_request = resource_request_of(spec(gpus=1, replicas=4, role={"memory": "4GiB"}))
    found = find(free_capacity, resource_request, COMPUTE)
    assert found is not None
    assert {allocation.node_id for allocation in found} == {"node-1", "node-2"}
    told = why_there(free_capacity, resource_request, COMPUTE, found, placement="weft-best").sentence
    assert "on several nodes, because no node had enough memory for all 4 replicas (4GiB each)" in told


def test_of_many_nodes_only_the_number_is_said() -> None:
    assert "20 GPUs of 5 nodes," in told({}, nodes=5, replicas=20).sentence


def test_slower_gpus_than_packing_would_take_are_left_to_others_on_purpose() -> None:
    """To a job of class memory all GPUs are alike but one, and the fast one helps others."""
    why = told({("node-1", 0): 0.9, ("node-1", 1): 1.2}, asked=PlacementRequest("memory", "j-1"))
    assert why.sentence == "weft-best: 1 GPU of node-1, score 1.00; the placement packed would be as fast"


def test_packing_is_not_compared_with_itself() -> None:
    assert told(SLOW_FIRST, gpus=2, placer=packed).sentence == "packed: 2 GPUs of node-1 together, slowest 1.13"


def test_what_needs_no_gpu_is_told_without_scores() -> None:
    why = told(SLOW_FIRST, gpus=0)
    assert why.sentence == "its CPUs and memory are free on node-1; the fullest node that fits it without GPUs"
    assert why.numbers == {}
