"""What is told of shares: why there is no place for one, why it is where it is, and which jobs would make room."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from tests.support.builders import GIB, spec
from tests.support.shared_gpus import node_of, shape, single
from weft.domain.cluster import Drain, Node
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.spec import JobSpec
from weft.planning.capacity import FreeCapacity, free_capacity_of
from weft.planning.choosing_again import Movable
from weft.planning.finding import find
from weft.planning.jobs import standing_of
from weft.planning.moves import moves_for
from weft.planning.order import LAS
from weft.planning.placement.weft_best import weft_best
from weft.planning.preemption import Holder, select_victims
from weft.planning.preemption.loss import loss
from weft.planning.reasons.explain import explain
from weft.planning.reasons.refusals import never_fits, why_not
from weft.planning.reasons.why import why_there
from weft.planning.resizing import grow
from weft.planning.resource_request import NOBODY, PlacementRequest, ResourceRequest, resource_request_of
from weft.planning.scores import Scores
from weft.planning.shares import Shares

HALF = shape(500, 8)


def with_jobs(free_capacity: FreeCapacity, *jobs: ResourceRequest) -> FreeCapacity:
    for wants in jobs:
        place = find(free_capacity, wants)
        assert place is not None
        free_capacity.take_all(place)
    return free_capacity


def refused(free_capacity: FreeCapacity, wants: ResourceRequest = HALF) -> str:
    cause = why_not(free_capacity, wants)
    assert cause is not None
    return cause.sentence


def test_a_share_that_finds_no_gpu_is_told_what_is_left() -> None:
    cause = why_not(with_jobs(single(1), shape(700, 4)), HALF)
    assert cause is not None
    assert cause.sentence == (
        "wants 0.5 of a GPU with 8GiB; the most left on a shared GPU is 0.3 with 12GiB, and no GPU is free"
    )
    assert cause.numbers == {
        "replicas_wanted": 1.0,
        "gpus_wanted": 0.0,
        "gpus_free": 0.0,
        "gpus_free_max": 0.0,
        "replicas_that_fit": 0.0,
        "share_wanted": 0.5,
        "share_memory_wanted": 8.0 * GIB,
        "share_left_max": 0.3,
        "share_memory_left_max": 12.0 * GIB,
    }


def test_of_several_shared_gpus_the_one_that_comes_nearest_is_told() -> None:
    free_capacity = with_jobs(single(2), shape(100, 13, node="node-0", gpu=0), shape(600, 6, node="node-0", gpu=1))
    assert "the most left on a shared GPU is 0.4 with 10GiB," in refused(free_capacity)
    free_capacity = with_jobs(single(1, real=True), shape(100, 4))
    assert "is 0.9 with 11GiB," in refused(free_capacity, shape(500, 12)), "two contexts are taken off"


@pytest.mark.parametrize(
    ("free_capacity", "wants", "sentence"),
    [
        (with_jobs(single(1), shape(gpus=1)), HALF, "wants 0.5 of a GPU with 8GiB; no GPU is free"),
        (
            with_jobs(single(1), shape(300, 10)),
            shape(500, 8, count=2),
            "wants 0.5 of a GPU with 8GiB, 2 times; the most left on a shared GPU is 0.7 with 6GiB, and no GPU is free",
        ),
        (
            single(2),
            shape(500, 8, count=5),
            "wants 5 replicas of 0.5 of a GPU with 8GiB at once; 4 would fit now, for lack of GPUs"
            " (0.5 of a GPU with 8GiB each)",
        ),
        (
            with_jobs(single(2), shape(500, 1)),
            shape(500, 20, models=("A",)),
            "wants 0.5 of a GPU of A with 20GiB; the most left on a shared GPU is 0.5 with 15GiB,"
            " and the largest GPU that is free has 16GiB for a share",
        ),
        (
            single(2, cpus=0.5),
            HALF,
            "wants 0.5 of a GPU with 8GiB and 1 CPU and 1B on that GPU's node; no node with such a GPU has them"
            " (most free on a node: 0.5 CPUs, 1TiB)",
        ),
        (with_jobs(single(1), HALF), shape(gpus=1), "wants 1 GPU on one node; none is free; 1 GPU is held in shares"),
        (
            with_jobs(single(1), shape(700, 4)),
            shape(500, 8, node="node-0", gpu=0),
            "is pinned to GPU 0 of node-0; it wants 0.5 of a GPU with 8GiB, and 0.3 with 12GiB is left of it",
        ),
        (
            with_jobs(single(1), shape(gpus=1)),
            shape(500, 8, node="node-0", gpu=0),
            "is pinned to GPU 0 of node-0; it wants 0.5 of a GPU with 8GiB, and none of that is left",
        ),
        (
            single(1),
            shape(500, 8, node="node-0", gpu=0, count=3),
            "is pinned to GPU 0 of node-0; it wants 0.5 of a GPU with 8GiB, 3 times, and 1 with 16GiB is left of it",
        ),
        (
            with_jobs(single(1), shape(700, 4)),
            shape(500, 8, node="node-0"),
            "is pinned to node-0; it wants 1 × (0.5 of a GPU with 8GiB, 1 CPU, 1B); free there are 0 GPUs, 999 CPUs,"
            " 1024GiB, and the most left on a shared GPU is 0.3 with 12GiB",
        ),
        (single(1), shape(500, 8, node="node-0", gpu=7), "is pinned to GPU 7 of node-0, which has GPU 0"),
    ],
)
def test_what_a_refused_job_is_told(free_capacity: FreeCapacity, wants: ResourceRequest, sentence: str) -> None:
    assert refused(free_capacity, wants) == sentence


def test_a_drained_node_with_room_for_the_share_is_named() -> None:
    free_capacity = FreeCapacity()
    free_capacity.add(structs.replace(node_of("node-0", model="A"), drain=Drain()))
    free_capacity.add(node_of("node-1", gpus=0))
    assert refused(free_capacity).endswith(
        "node-0 has 0.5 of a GPU with 8GiB free, but is drained (`weft resume node-0`);"
        " it cannot start until node-0 is resumed"
    )


def sharing(request: float = 0.5, memory: str = "8GiB", **fields: object) -> JobSpec:
    return spec(gpus=0, role={"share": {"request": request, "memory": memory}}, **fields)


NODES = [node_of("node-0", model="A"), node_of("node-1", model="B")]


def test_a_share_that_no_gpu_could_give_never_fits() -> None:
    assert never_fits(sharing(memory="23.5GiB"), NODES) is None
    cause = never_fits(sharing(memory="23.6GiB"), NODES)
    assert cause is not None
    assert cause.sentence.endswith("and all 2 together have 6 GPUs; one share can have 23.5GiB of its largest GPU")
    assert cause.numbers["gpus_asked"] == 0.5
    cause = never_fits(sharing(memory="16GiB", gpu_model="A"), NODES)
    assert cause is not None
    assert cause.sentence.startswith("asks for 1 × (0.5 of a GPU of A with 16GiB, 1 CPU, 1GiB);")
    assert cause.sentence.endswith("one share can have 15.5GiB of a GPU of A")


def told(free_capacity: FreeCapacity, wants: ResourceRequest) -> str:
    place = find(free_capacity, wants)
    assert place is not None
    return why_there(free_capacity, wants, NOBODY, place, placement="weft-best").sentence


def test_why_a_share_is_where_it_is() -> None:
    free_capacity = single(2)
    assert (
        told(free_capacity, HALF) == "best fit: 0.5 of GPU 0 of node-0, score 1.00; 0.5 with 8GiB of that GPU is left"
    )
    with_jobs(free_capacity, shape(300, 4))
    assert told(free_capacity, HALF) == (
        "best fit: 0.5 of GPU 0 of node-0, score 1.00; beside 1 other share, 0.2 with 4GiB of that GPU is left"
    )
    assert told(free_capacity, shape(200, 2, count=3)) == (
        "best fit: 3 shares of 1 GPU, 0.6 in all of node-0 together, slowest 1.00;"
        " 0.1 with 6GiB of the fullest of these GPUs is left"
    )
    assert told(free_capacity, shape(500, 8, node="node-0", gpu=1)).startswith(
        "pinned: 0.5 of GPU 1 of node-0, score 1.00;"
    )
    both = told(single(2), (*shape(gpus=1), *shape(250, 2)))
    assert both.startswith("weft-best: 1 GPU and 0.25 of GPU 1 of node-0 together, slowest 1.00; 0.75 with 14GiB")


# jobs


def holding(job_id: str, made: JobSpec, free_capacity: FreeCapacity, **fields: object) -> Job:
    place = find(free_capacity, resource_request_of(made), PlacementRequest(key=job_id))
    assert place is not None
    free_capacity.take_all(place)
    job = Job(id=job_id, tenant="alice", spec=made, seq=1, submitted_at=0.0, state=JobState.RUNNING, placed_at=0.0)
    return structs.replace(job, placement=Placement(allocations=place, why="there"), **fields)


def emulated(gpus: int = 1) -> list[Node]:
    return [node_of("node-0", gpus=gpus, model="A", real=False)]


def test_explain_names_the_shares_in_the_way() -> None:
    free_capacity = free_capacity_of(emulated(), [])
    one, other = (
        holding(name, sharing(0.4, time_limit="1h"), free_capacity, seq=at) for at, name in enumerate(("j-1", "j-2"))
    )
    waiting = Job(id="j-3", tenant="bob", spec=sharing(0.5), seq=3, submitted_at=0.0)
    found = explain(waiting, nodes=emulated(), holding=[one, other], queued=[waiting], now=10.0)
    assert found.code == "no-room"
    assert found.sentence.startswith("wants 0.5 of a GPU with 8GiB; the most left on a shared GPU is 0.2 with 0B")
    assert [(holder.job_id, holder.gpus) for holder in found.holders] == [("j-1", 0.4), ("j-2", 0.4)]
    assert found.estimate_at is not None
    assert explain(one, nodes=emulated(), holding=[one], queued=[], now=10.0).numbers["gpus"] == 0.4


def test_a_quarter_of_a_gpu_attains_a_quarter_of_its_time() -> None:
    job = holding("j-1", sharing(0.25), free_capacity_of(emulated(), []))
    standing = standing_of(job, 100.0, LAS)
    assert (standing.gpus, standing.attained_gpu_s, standing.attained_s) == (0.25, 25.0, 100.0)
    assert LAS.changes_after_s(standing) == (1800.0 - 25.0) / 0.25
    shares = Shares()
    shares.measure(emulated(gpus=2))
    shares.hold(job)
    assert shares.of("alice") == 0.125
    assert loss(job, 100.0, {}, extra=False)[2] == 25.0, "what it would lose, in GPU-seconds"


def test_shares_give_way_until_a_whole_gpu_is_free() -> None:
    free_capacity = single(2)
    quarters = [find_and_take(free_capacity, shape(500, 1)) for _ in range(4)]
    holders = [Holder(job_id=f"j-{at}", worth=(float(at),), allocations=place) for at, place in enumerate(quarters)]
    selection = select_victims(shape(gpus=1), free_capacity=free_capacity, holders=holders)
    assert selection is not None
    assert [victim.job_id for victim in selection.victims] == ["j-0", "j-1"], "both that are on one GPU"
    selection = select_victims(HALF, free_capacity=free_capacity, holders=holders)
    assert selection is not None
    assert [victim.job_id for victim in selection.victims] == ["j-0"]
    assert select_victims(shape(501), free_capacity=free_capacity, holders=holders[:1]) is None


def find_and_take(free_capacity: FreeCapacity, wants: ResourceRequest) -> tuple[Allocation, ...]:
    place = find(free_capacity, wants)
    assert place is not None
    free_capacity.take_all(place)
    return place


def movable(job_id: str, wants: ResourceRequest, place: Sequence[Allocation]) -> Movable:
    return Movable(
        job_id=job_id, resource_request=wants, asked=NOBODY, allocations=tuple(place), gpus=1, left_s=9e6, cost_s=1
    )


def test_jobs_that_hold_shares_do_not_move() -> None:
    free_capacity = FreeCapacity(Scores({"compute": {("node-0", 0): 3.0}}), placer=weft_best)
    free_capacity.add(node_of("node-0", gpus=3, model="A"))
    pinned = {"node": "node-0", "gpu": 0}
    shared = find_and_take(free_capacity, shape(100, **pinned))
    assert moves_for(free_capacity, [movable("j-1", shape(100), shared)]) == []
    free_capacity.give_back_all(shared)
    whole = find_and_take(free_capacity, shape(gpus=1, **pinned))
    assert [move.job_id for move in moves_for(free_capacity, [movable("j-2", shape(gpus=1), whole)])] == ["j-2"]


def test_replicas_of_inference_grow_apart_and_others_near_each_other() -> None:
    for kind, node_id in (("inference", "node-1"), ("batch", "node-0")):
        free_capacity = single(1, 1)
        wants = shape(300, kind=kind)
        place = find_and_take(free_capacity, wants)
        grown = grow(free_capacity, place, wants[0], 1, first_rank=1)
        assert grown is not None
        assert (grown[0].node_id, grown[0].rank) == (node_id, 1)
        assert grown[0].share == wants[0].request.share
