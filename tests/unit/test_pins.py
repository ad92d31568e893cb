"""Jobs that must run on one node, or on certain GPUs of it: nowhere else, whoever places, moves or preempts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import job, node, spec
from tests.support.scheduler import world
from weft.domain.checkpoints import CHECKPOINTS_LABEL
from weft.domain.job import Allocation, CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.signals import GpuScore
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.explain import explain
from weft.planning.reasons.refusals import never_fits, why_not
from weft.planning.resource_request import PlacementRequest, resource_request_of
from weft.planning.scores import Scores
from weftd.scheduler.thinking.core_settings import Settings

S, E = JobState, JobEvent


def pin(node_id: str, gpu: int | None = None) -> dict[str, Any]:
    return {"pin": {"node": node_id} if gpu is None else {"node": node_id, "gpu": gpu}}


def room_of(*gpus: int, placement: str = "weft-best", scores: Scores | None = None) -> FreeCapacity:
    free_capacity = FreeCapacity(scores, placer=Policy(placement=placement).placing.placer)
    for number, count in enumerate(gpus, 1):
        free_capacity.add(node(f"node-{number}", gpus=count))
    return free_capacity


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_finds_exactly_the_gpus_that_a_job_is_pinned_to(placement: str) -> None:
    free_capacity = room_of(4, 4, 4, placement=placement)
    found = find(
        free_capacity, resource_request_of(spec(gpus=2, **pin("node-2", 1))), PlacementRequest("compute", "j-1")
    )
    assert found is not None
    assert [(one.node_id, one.gpus) for one in found] == [("node-2", (1, 2))]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_job_pinned_to_a_node_gets_gpus_of_that_node_alone(placement: str) -> None:
    free_capacity = room_of(4, 2, 4, placement=placement)
    resource_request = resource_request_of(spec(gpus=1, replicas=2, **pin("node-2")))
    found = find(free_capacity, resource_request, PlacementRequest("compute", "j-1"))
    assert found is not None
    assert [(one.node_id, one.gpus) for one in found] == [("node-2", (0,)), ("node-2", (1,))]
    free_capacity.take(found[0])
    assert find(free_capacity, resource_request) is None


def test_replicas_and_roles_of_a_pinned_job_take_gpus_one_behind_the_other() -> None:
    asked = spec(
        gpus=1,
        replicas=2,
        role={"cpus": 1.0},
        **pin("node-1", 1),
    )
    found = find(room_of(8), resource_request_of(asked))
    assert found is not None
    assert [one.gpus for one in found] == [(1,), (2,)]
    two_roles = spec(roles={"a": {"gpus": 2}, "b": {}, "c": {"gpus": 1}}, **pin("node-1", 4))
    found = find(room_of(8), resource_request_of(two_roles))
    assert found is not None
    assert [(one.role, one.gpus) for one in found] == [("a", (4, 5)), ("b", ()), ("c", (6,))]


def test_a_pinned_job_that_may_have_fewer_replicas_gets_those_that_fit() -> None:
    free_capacity = room_of(4)
    asked = spec(gpus=1, role={"replicas": {"min": 1, "want": 3}}, **pin("node-1", 0))
    free_capacity.take(Allocation(rank=0, role="worker", node_id="node-1", gpus=(2,), cpus=1, memory=1))
    found = find(free_capacity, resource_request_of(asked))
    assert found is not None
    assert [one.gpus for one in found] == [(0,), (1,)]


def test_of_the_gpus_of_its_node_a_pinned_job_gets_the_fastest() -> None:
    scores = Scores({"compute": {("node-2", 0): 1.4, ("node-2", 1): 1.3, ("node-2", 2): 0.9}})
    found = find(
        room_of(4, 3, scores=scores), resource_request_of(spec(**pin("node-2"))), PlacementRequest("compute", "j-1")
    )
    assert found is not None
    assert found[0].gpus == (2,)


@given(
    free=st.sets(st.integers(0, 7)),
    first=st.integers(0, 9),
    size=st.integers(1, 4),
    count=st.integers(1, 3),
)
def test_a_pinned_gang_is_placed_exactly_when_all_its_gpus_are_free(
    free: set[int], first: int, size: int, count: int
) -> None:
    free_capacity = room_of(8, 8)
    held = tuple(set(range(8)) - free)
    free_capacity.take(Allocation(rank=0, role="worker", node_id="node-1", gpus=held, cpus=0, memory=0))
    wanted = set(range(first, first + size * count))
    found = find(free_capacity, resource_request_of(spec(gpus=size, replicas=count, **pin("node-1", first))))
    assert (found is not None) == (wanted <= free)
    if found is not None:
        assert {gpu for one in found for gpu in one.gpus} == wanted


def test_what_could_never_fit_is_said_clearly() -> None:
    nodes = [node("node-1", gpus=4), node("node-2", gpus=0, model="")]
    unknown = never_fits(spec(**pin("node-9")), nodes)
    assert unknown is not None
    assert unknown.code is CauseCode.TOO_BIG
    assert unknown.sentence == "is pinned to node-9, which is not in its pool"
    beyond = never_fits(spec(gpus=2, **pin("node-1", 3)), nodes)
    assert beyond is not None
    assert beyond.sentence == "is pinned to GPUs 3, 4 of node-1, which has GPUs 0–3"
    none = never_fits(spec(**pin("node-2", 0)), nodes)
    assert none is not None
    assert none.sentence == "is pinned to GPU 0 of node-2, which has no GPUs"
    other = never_fits(spec(gpu_model="H100", **pin("node-1", 0)), nodes)
    assert other is not None
    assert other.sentence == "is pinned to GPU 0 of node-1, where GPU 0 is no H100"
    assert never_fits(spec(gpus=4, **pin("node-1", 0)), nodes) is None
    assert never_fits(spec(gpus=0, **pin("node-2")), nodes) is None


def test_a_gpu_that_is_held_is_named_with_its_holder() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=4)
    w.round()
    w.submit("j-2", spec=pin("node-1", 2))
    w.round()
    waiting = w.core.cluster_state.jobs["j-2"].waiting_for
    assert waiting is not None
    assert waiting.code is CauseCode.NO_ROOM
    assert waiting.sentence == "is pinned to GPU 2 of node-1, of which GPU 2 is not free; held by j-1"
    assert waiting.by == "j-1"


def test_explain_names_only_those_in_the_way_of_a_pinned_job() -> None:
    w = world(nodes=2, gpus=2)
    for name in ("j-1", "j-2", "j-3", "j-4"):
        w.submit(name)
    w.round()
    pinned = job("j-5", seq=5, spec=pin("node-2", 1))
    there = [one for one in w.open_jobs() if one.placement and one.placement.allocations[0].node_id == "node-2"]
    in_the_way = [one.id for one in there if one.placement and one.placement.allocations[0].gpus == (1,)]
    found = explain(
        pinned, nodes=list(w.core.cluster_state.pool.nodes.values()), holding=w.open_jobs(), queued=[pinned], now=w.now
    )
    assert [holder.job_id for holder in found.holders] == in_the_way
    assert found.sentence.endswith(f"held by {in_the_way[0]}")


def test_a_node_that_takes_no_work_is_said_to_take_none() -> None:
    free_capacity = room_of(4, 4)
    free_capacity.close(["node-1"])
    found = why_not(free_capacity, resource_request_of(spec(**pin("node-1", 0))))
    assert found is not None
    assert found.code is CauseCode.NO_NODES
    assert "takes no work now" in found.sentence


def test_a_pinned_job_waits_for_its_gpu_and_holds_nobody_back() -> None:
    w = world(nodes=2, gpus=2)
    w.submit("j-1", gpus=2, spec={"time_limit": "1h"})
    w.round()
    on = w.core.cluster_state.jobs["j-1"].placement
    assert on is not None
    there = on.allocations[0].node_id
    w.submit("j-2", spec=pin(there, 1))
    w.submit("j-3")
    w.submit("j-4")
    w.round()
    assert [w.state(name) for name in ("j-2", "j-3", "j-4")] == [S.QUEUED, S.RUNNING, S.RUNNING]
    w.nodes[there].end(("j-1", 0, 0), 0)
    w.round()
    assert w.state("j-2") is S.RUNNING
    placement = w.core.cluster_state.jobs["j-2"].placement
    assert placement is not None
    assert placement.allocations[0].gpus == (1,)
    assert placement.why.startswith(f"pinned: 1 GPU of {there}")


def test_a_pinned_job_preempts_whoever_has_its_gpu_and_nobody_else() -> None:
    w = world(gpus=4)
    for name in ("j-1", "j-2", "j-3", "j-4"):
        w.submit(name)
    w.round()
    holder = next(
        one.id
        for one in w.core.cluster_state.jobs.values()
        if one.placement is not None and one.placement.allocations[0].gpus == (2,)
    )
    w.submit("j-5", spec={"priority": 10, **pin("node-1", 2)})
    w.round()
    w.round()
    assert w.state("j-5") is S.RUNNING
    assert {step.job_id for step in w.steps if step.event is E.STOPPING} == {holder}


def test_a_drained_node_that_a_pinned_job_waits_for_stays_drained_however_long_it_waits() -> None:
    """The node is kept for the job that waited long, and takes no work when that ends: it took none before."""
    w = world(nodes=2, gpus=1, settings=Settings(lease_seconds=1e6, stop_seconds=1e7, patience_seconds=10.0))
    w.ask(AskKind.DRAIN, "node-1")
    w.round()
    w.submit("j-1", spec=pin("node-1"))
    for _ in range(3):
        w.tick(20.0)
    w.submit("j-2")
    w.submit("j-3")
    for _ in range(3):
        w.tick(20.0)
    assert not w.core.cluster_state.pool.free_capacity.is_open("node-1")
    placed = [job.placement for job in w.core.cluster_state.jobs.values() if job.placement is not None]
    assert [one.allocations[0].node_id for one in placed] == ["node-2"]


@pytest.mark.parametrize("pinned", [True, False])
def test_a_pinned_job_is_not_moved_to_better_gpus(pinned: bool) -> None:
    w = world(gpus=2, settings=Settings(lease_seconds=1e6, stop_seconds=1e7))
    where = pin("node-1", 0) if pinned else {}
    w.submit("j-1", spec={"labels": {CHECKPOINTS_LABEL: "0s"}, **where})
    w.round()
    scores = ((0, 1.5), (1, 1.0))
    w.core.cluster_state.rescore(
        [GpuScore(node_id="node-1", gpu_index=gpu, job_class="compute", score=score) for gpu, score in scores]
    )
    w.tick(3600.0)
    assert (w.state("j-1") is S.RUNNING) is pinned


def test_jobs_pinned_to_different_gpus_are_of_different_shapes() -> None:
    assert resource_request_of(spec(**pin("node-1", 1))) != resource_request_of(spec(**pin("node-1", 2)))
    assert resource_request_of(spec(**pin("node-1", 1))) == resource_request_of(spec(**pin("node-1", 1)))
