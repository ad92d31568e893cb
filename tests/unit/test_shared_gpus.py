"""Shares of GPUs come and go: no GPU is ever given beyond its time or its memory, and nothing is left behind."""

import pickle
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import GIB, capacity, spec
from tests.support.shared_gpus import MODELS, NAMES, node_of, shape, single
from tests.support.tier import examples
from weft.domain.job import Allocation
from weft.domain.shares import CONTEXT_BYTES, WHOLE, Share
from weft.planning.capacity import FreeCapacity
from weft.planning.capacity.gpus_left import GpusLeft
from weft.planning.finding import find
from weft.planning.placement.unscored import packed
from weft.planning.placement.weft_best import weft_best
from weft.planning.resource_request import (
    PlacementRequest,
    ResourceRequest,
    RoleRequest,
    gpus_in,
    gpus_least,
    gpus_of,
    resource_request_of,
)
from weft.planning.scores import Scores

SCORES = {"compute": {(name, gpu): 1.0 + (3 * at + gpu) % 5 / 10 for at, name in enumerate(NAMES) for gpu in range(3)}}


def room_of(placer: str = "weft-best", *, nodes: int = 4) -> FreeCapacity:
    free_capacity = FreeCapacity(Scores(SCORES), placer=weft_best if placer == "weft-best" else packed)
    for at, name in enumerate(NAMES[:nodes]):
        free_capacity.add(node_of(name, real=at % 2 == 0))
    return free_capacity


def seen(free_capacity: FreeCapacity) -> object:
    nodes = {
        name: (list(there.gpus.whole), dict(there.gpus.shared), round(there.cpus, 6), there.memory)
        for name, there in free_capacity.nodes.items()
    }
    return (
        nodes,
        {free: list(names) for free, names in free_capacity.buckets.items()},
        free_capacity.gpus_free,
        free_capacity.gpus_left,
    )


def copied(free_capacity: FreeCapacity) -> FreeCapacity:
    """The same room, of which nothing was asked yet."""
    made: FreeCapacity = pickle.loads(pickle.dumps(free_capacity))
    return made


JOBS = st.one_of(
    st.builds(
        shape,
        st.sampled_from([1, 100, 250, 300, 500, 700, 999, 1000]),
        st.sampled_from([0.001, 1, 4, 7.5, 12, 15.5, 16, 23.5, 24, 30]),
        count=st.integers(1, 4),
        kind=st.sampled_from(["training", "inference", "notebook", "batch", ""]),
        models=st.sampled_from([(), (), *((model,) for model in MODELS)]),
    ),
    st.builds(
        shape,
        gpus=st.integers(1, 3),
        count=st.integers(1, 2),
        models=st.sampled_from([(), *((model,) for model in MODELS)]),
    ),
    st.builds(shape, st.just(250), st.just(2), node=st.sampled_from(NAMES), gpu=st.sampled_from([None, 0, 1])),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "end", "begin", "restore", "close", "reopen"]), JOBS, st.integers(0, 99)
    ),
    max_size=40,
)


def check(free_capacity: FreeCapacity, jobs: list[tuple[Allocation, ...]]) -> None:
    """By a ledger that knows nothing of rooms."""
    time: dict[tuple[str, int], int] = defaultdict(int)
    memory: dict[tuple[str, int], int] = defaultdict(int)
    for one in (one for place in jobs for one in place):
        assert one.share is None or len(one.gpus) == 1
        for gpu in one.gpus:
            kind = free_capacity.nodes[one.node_id].node.capacity.gpus[gpu]
            context = 0 if kind.emulated else CONTEXT_BYTES
            time[one.node_id, gpu] += WHOLE if one.share is None else one.share.request
            memory[one.node_id, gpu] += kind.memory if one.share is None else one.share.memory + context
    for (name, gpu), held in time.items():
        assert held <= WHOLE, f"GPU {gpu} of {name} is held {held} thousandths"
        assert memory[name, gpu] <= free_capacity.nodes[name].node.capacity.gpus[gpu].memory
    for name, there in free_capacity.nodes.items():
        for gpu in there.gpus.models:
            left = there.gpus.left_of(gpu)
            assert (left.time if left else 0) == WHOLE - time[name, gpu]
            assert (gpu in there.gpus.whole) == (not time[name, gpu])


@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS, placer=st.sampled_from(["weft-best", "packed"]))
def test_shares_and_whole_gpus_come_and_go(steps: list[tuple[str, ResourceRequest, int]], placer: str) -> None:
    free_capacity = room_of(placer)
    empty = seen(free_capacity)
    jobs: list[tuple[Allocation, ...]] = []

    def act(at: int) -> int:
        """Takes the steps from `at` on until a supposition ends; returns where the next one begins."""
        while at < len(steps):
            what, wants, number = steps[at]
            at += 1
            name = NAMES[number % len(NAMES)]
            if what == "start":
                before = seen(free_capacity)
                place = find(free_capacity, wants, PlacementRequest("compute"))
                assert seen(free_capacity) == before
                assert place == find(copied(free_capacity), wants, PlacementRequest("compute")), (
                    "what was kept is outdated"
                )
                if place is not None:
                    free_capacity.take_all(place)
                    jobs.append(place)
            elif what == "end" and jobs:
                free_capacity.give_back_all(jobs.pop(number % len(jobs)))
            elif what == "close":
                free_capacity.close([name])
            elif what == "reopen":
                free_capacity.reopen([name])
            elif what == "restore":
                return at
            elif what == "begin":
                before, held = seen(free_capacity), list(jobs)
                with free_capacity.supposing(given_back=[one for place in jobs[:1] for one in place], closed=[name]):
                    del jobs[:1]
                    at = act(at)
                jobs[:] = held
                assert seen(free_capacity) == before
            check(free_capacity, jobs)
        return at

    at = 0
    while at < len(steps):
        at = act(at)
    for place in jobs:
        free_capacity.give_back_all(place)
    free_capacity.reopen(NAMES)
    assert seen(free_capacity) == empty


def places(
    free_capacity: FreeCapacity, *wanted: ResourceRequest, take: bool = True
) -> list[list[tuple[str, int]] | None]:
    found: list[list[tuple[str, int]] | None] = []
    for wants in wanted:
        place = find(free_capacity, wants)
        found.append(None if place is None else [(one.node_id, one.gpus[0]) for one in place])
        if take and place:
            free_capacity.take_all(place)
    return found


def test_two_halves_go_to_one_gpu_and_a_third_to_another() -> None:
    free_capacity = single(2)
    assert places(free_capacity, shape(500), shape(500), shape(500)) == [
        [("node-0", 0)],
        [("node-0", 0)],
        [("node-0", 1)],
    ]


def test_no_whole_gpu_is_given_of_which_somebody_holds_a_share() -> None:
    free_capacity = single(1)
    (place,) = places(free_capacity, shape(1))
    assert place == [("node-0", 0)]
    assert find(free_capacity, shape(gpus=1)) is None
    assert places(free_capacity, shape(999), shape(1), take=True) == [[("node-0", 0)], None]


def test_no_share_is_given_of_a_gpu_that_somebody_holds_as_a_whole() -> None:
    free_capacity = single(1)
    free_capacity.take_all(find(free_capacity, shape(gpus=1)) or ())
    assert find(free_capacity, shape(1)) is None


def test_the_share_goes_where_least_is_left_over_in_the_tighter_dimension() -> None:
    free_capacity = single(3)
    for part, gib, gpu in ((500, 1, 0), (100, 10, 1), (300, 3, 2)):
        share = Share(request=part, memory=gib * GIB)
        free_capacity.take(Allocation(rank=0, role="w", node_id="node-0", gpus=(gpu,), cpus=0, memory=0, share=share))
    assert places(free_capacity, shape(450, 1), take=False) == [[("node-0", 0)]], "0.05 of the time is left over"
    assert places(free_capacity, shape(100, 5), take=False) == [[("node-0", 1)]], (
        "a sixteenth of the memory is left over"
    )
    assert places(free_capacity, shape(650, 13), take=False) == [[("node-0", 2)]], "only there is enough of both"


def test_on_real_gpus_every_holder_has_a_context() -> None:
    free_capacity = single(1, real=True)
    assert places(free_capacity, shape(500, 16)) == [None]
    assert places(free_capacity, shape(500, 15.5), shape(100, 0.001)) == [[("node-0", 0)], None]
    assert places(single(1), shape(500, 16), shape(100, 0.001)) == [[("node-0", 0)], None], "emulated: no context"


def test_of_equals_the_fastest_gpu_is_taken() -> None:
    free_capacity = FreeCapacity(Scores({"compute": {("node-0", 1): 0.9}}))
    free_capacity.add(node_of("node-0", gpus=3, model="A"))
    assert places(free_capacity, shape(600), shape(600), take=True) == [[("node-0", 1)], [("node-0", 0)]]
    assert places(free_capacity, shape(400), take=False) == [[("node-0", 1)]]


def test_replicas_of_inference_go_to_different_gpus_while_there_are_any() -> None:
    free_capacity = single(1, 1)
    assert places(free_capacity, shape(250, count=3, kind="inference")) == [
        [("node-0", 0), ("node-1", 0), ("node-0", 0)]
    ]
    free_capacity = single(1, 1)
    (first,) = places(free_capacity, shape(250, kind="inference"))
    assert first == [("node-0", 0)]
    grown = find(free_capacity, shape(250, kind="inference"), PlacementRequest(beside=(("node-0", 0),)))
    assert grown is not None
    assert grown[0].node_id == "node-1"


def test_replicas_of_two_roles_of_inference_are_apart_too() -> None:
    request = shape(250, kind="inference")[0].request
    place = find(single(1, 1), (RoleRequest("front", 1, 1, request), RoleRequest("back", 1, 1, request)))
    assert place is not None
    assert {one.node_id for one in place} == {"node-0", "node-1"}


def test_notebooks_are_packed_together_and_training_is_alone_while_a_gpu_is_free() -> None:
    free_capacity = single(4)
    kinds = ["training", "notebook", "batch", "notebook", "batch", "training"]
    found = places(free_capacity, *(shape(200, kind=kind) for kind in kinds))
    gpus = [place[0][1] if place else None for place in found]
    assert gpus == [0, 0, 0, 0, 0, 1], "the others fill up the GPU that is shared already"
    free_capacity = single(2)
    assert places(free_capacity, shape(200, kind="training"), shape(200, kind="training")) == [
        [("node-0", 0)],
        [("node-0", 1)],
    ]
    free_capacity = single(2)
    assert places(free_capacity, shape(700, kind="training"), shape(100, kind="notebook", node="node-0", gpu=1)) == [
        [("node-0", 0)],
        [("node-0", 1)],
    ]
    assert places(free_capacity, shape(200, kind="training")) == [[("node-0", 1)]], (
        "rather beside a notebook than beside training"
    )
    assert places(free_capacity, shape(200, kind="training")) == [[("node-0", 0)]], (
        "0.1 is left there, 0.7 on the other"
    )


def test_notebooks_go_where_notebooks_are() -> None:
    free_capacity = single(2)
    for gpu, part, kind in ((0, 300, "batch"), (1, 100, "notebook")):
        share = Share(request=part, memory=1, kind=kind)
        free_capacity.take(Allocation(rank=0, role="w", node_id="node-0", gpus=(gpu,), cpus=0, memory=0, share=share))
    assert places(free_capacity, shape(200, kind="notebook"), take=False) == [[("node-0", 1)]]
    assert places(free_capacity, shape(200, kind="batch"), take=False) == [[("node-0", 0)]]


def test_a_node_without_cpus_gives_no_share() -> None:
    free_capacity = single(1, 1, cpus=1.0)
    assert places(free_capacity, shape(100), shape(100), shape(100)) == [[("node-0", 0)], [("node-1", 0)], None]


def test_the_model_and_the_pin_are_respected() -> None:
    free_capacity = room_of(nodes=2)
    assert places(free_capacity, shape(500, models=("B",)), take=False) == [[("node-0", 1)]]
    assert places(free_capacity, shape(500, 20), take=False) == [[("node-0", 1)]], "only B has so much"
    assert places(free_capacity, shape(500, models=("C",)), take=False) == [None]
    assert places(free_capacity, shape(400, count=2, node="node-1", gpu=2)) == [[("node-1", 2), ("node-1", 2)]]
    assert places(free_capacity, shape(400, node="node-1", gpu=2)) == [None]
    assert places(free_capacity, shape(400, node="node-1", models=("A",)), take=False) == [[("node-1", 0)]]
    assert places(free_capacity, shape(400, node="node-9"), take=False) == [None]
    free_capacity.close(["node-1"])
    assert places(free_capacity, shape(400, node="node-1"), take=False) == [None]


def test_gpus_that_are_occupied_or_kept_give_no_share() -> None:
    free_capacity = FreeCapacity()
    free_capacity.add(node_of("node-0", gpus=2, model="A"), occupied=frozenset({0}), kept=frozenset({1}))
    assert find(free_capacity, shape(1)) is None


def test_a_gpu_that_is_withheld_is_not_given_when_its_last_share_comes_back() -> None:
    gpus, share = GpusLeft(capacity(gpus=2).gpus, frozenset({0})), Share(request=500, memory=GIB)
    for index in (0, 1):
        gpus.take_share(index, share)
    assert gpus.whole == []
    for index in (0, 1):
        gpus.give_share_back(index, share)
    assert (gpus.whole, dict(gpus.shared)) == ([1], {})


def test_a_share_of_a_gpu_that_one_job_holds_as_a_whole_counts_as_more_than_there_is() -> None:
    gpus, share = GpusLeft(capacity(gpus=1).gpus, frozenset()), Share(request=500, memory=GIB)
    gpus.take([0])
    gpus.take_share(0, share)
    assert gpus.shared[0].time == -500
    gpus.give_back([0])
    assert gpus.shared[0].time == 500


def test_as_few_replicas_as_fit_start() -> None:
    wants = (RoleRequest("worker", 1, 9, shape(400)[0].request),)
    place = find(single(2), wants)
    assert place is not None
    assert len(place) == 4


def test_what_is_held_beyond_a_gpu_is_counted_and_given_back() -> None:
    """By mistake, or in a moment between two reports."""
    free_capacity = single(1)
    before = seen(free_capacity)
    held = [
        Allocation(rank=0, role="w", node_id="node-0", gpus=(0,), cpus=0, memory=0, share=share)
        for share in (Share(request=800, memory=GIB), None, Share(request=800, memory=20 * GIB))
    ]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        for at in order:
            free_capacity.take(held[at])
            assert find(free_capacity, shape(gpus=1)) is None
        assert find(free_capacity, shape(1, 0.001)) is None
        for at in order[::-1]:
            free_capacity.give_back(held[at])
        assert seen(free_capacity) == before


def test_another_share_of_the_same_gpu_changes_what_is_left() -> None:
    free_capacity = single(1)
    (place,) = [find(free_capacity, shape(300))]
    assert place is not None
    free_capacity.take_all(place)
    grown = free_capacity.grown
    after = Allocation(
        rank=0, role="worker", node_id="node-0", gpus=(0,), cpus=1, memory=1, share=Share(request=700, memory=2 * GIB)
    )
    free_capacity.resize(place[0], after)
    assert find(free_capacity, shape(400)) is None
    assert find(free_capacity, shape(300)) is not None
    assert free_capacity.grown == grown
    free_capacity.resize(after, place[0])
    assert free_capacity.grown == grown + 1
    free_capacity.give_back_all(place)
    assert free_capacity.gpus_free == 1


def test_shares_count_as_parts_of_gpus() -> None:
    wants = resource_request_of(spec(gpus=0, replicas=3, role={"share": {"request": 0.1, "memory": "1GiB"}}))
    assert gpus_of(wants) == 0.3
    assert gpus_least(wants) == 0.3
    assert wants[0].request.share == Share(request=100, memory=GIB, kind="training")
    place = find(single(3), wants)
    assert place is not None
    assert gpus_in(place) == 0.3
    assert isinstance(gpus_of(resource_request_of(spec(gpus=2, replicas=3))), int)


@pytest.mark.parametrize(("kind", "gpus_used"), [("batch", 25), ("notebook", 25), ("training", 100)])
def test_a_hundred_quarters(kind: str, gpus_used: int) -> None:
    free_capacity = FreeCapacity()
    for number in range(25):
        free_capacity.add(node_of(f"node-{number}", gpus=4, model="A"))
    for _ in range(100):
        free_capacity.take_all(find(free_capacity, shape(250, kind=kind)) or ())
    assert free_capacity.gpus_free == 100 - gpus_used


@settings(max_examples=examples(100), deadline=None)
@given(jobs=st.lists(JOBS, max_size=12), wanted=JOBS)
def test_what_is_found_is_the_best_of_all(jobs: list[ResourceRequest], wanted: ResourceRequest) -> None:
    """Against a look at every GPU."""
    free_capacity = room_of()
    for wants in jobs:
        free_capacity.take_all(find(free_capacity, wants) or ())
    request = wanted[0].request
    share = request.share
    if share is None or request.node is not None:
        return
    share = structs.replace(share, kind="batch")
    place = find(
        free_capacity, (structs.replace(wanted[0], least=1, count=1, request=structs.replace(request, share=share)),)
    )
    best = []
    for name, there in free_capacity.nodes.items():
        for gpu, make, left in there.gpus.giving():
            if not request.suits(make.model, make.memory):
                continue
            time_over, memory_over = left.time - share.request, left.memory - share.memory - make.context
            if left.holders and time_over >= 0 <= memory_over:
                over = sorted([time_over / WHOLE, memory_over / make.memory])
                tier = 2 if left.training else 0 if left.others else 1
                best.append((tier, over, SCORES["compute"].get((name, gpu), 1.0), name, gpu))
    if best:
        assert place is not None
        assert (place[0].node_id, place[0].gpus[0]) == min(best)[3:]
    elif place is not None:
        assert free_capacity.nodes[place[0].node_id].gpus.has(place[0].gpus), (
            "a free GPU only if no shared one has enough"
        )
