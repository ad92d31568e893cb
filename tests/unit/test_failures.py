"""Classes of failures: whose fault they are, and where the next try of a job goes for them."""

import pytest
from msgspec import structs

from tests.support.scheduler import World, world
from weft.domain.failure import TIMED_OUT, Failure, FailureClass, avoided, blamed_of, class_of_cause
from weft.domain.job import Cause, CauseCode, JobEvent, JobState
from weft.domain.spec import Retries
from weft.messages.nodes import EndReason
from weft.planning.reasons.explain import explain

F, S = FailureClass, JobState
THREE = Retries(max=3, backoff="1s")


def node_of(w: World, job_id: str) -> str:
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return placement.allocations[0].node_id


def fails(w: World, job_id: str, *, exit_code: int | None = None, reason: EndReason = EndReason.START_FAILED) -> str:
    """End the only run of a job badly; returns the node that it was on."""
    job = w.core.cluster_state.jobs[job_id]
    home = node_of(w, job_id)
    w.nodes[home].end((job_id, job.epoch, 0), exit_code, reason=reason)
    w.sync(home)
    return home


@pytest.mark.parametrize(
    ("code", "exit_code", "kind"),
    [
        (CauseCode.EXITED, 3, F.PROGRAM),
        (CauseCode.EXITED, 134, F.PROGRAM),
        (CauseCode.RANK_ENDED, 137, F.UNKNOWN),
        (CauseCode.EXITED, 135, F.UNKNOWN),
        (CauseCode.OUT_OF_MEMORY, 137, F.MEMORY),
        (CauseCode.TIME_LIMIT, None, F.LIMIT),
        (CauseCode.START_FAILED, None, F.NODE),
        (CauseCode.GPU_FAILED, None, F.GPU),
        (CauseCode.RUN_LOST, None, F.UNKNOWN),
        (CauseCode.PREEMPTED, None, None),
        (CauseCode.REQUEUE_ASKED, None, None),
    ],
)
def test_a_cause_has_a_class(code: CauseCode, exit_code: int | None, kind: FailureClass | None) -> None:
    numbers = {} if exit_code is None else {"exit_code": float(exit_code)}
    assert class_of_cause(Cause(code=code, numbers=numbers)) is kind


def test_the_node_of_the_rank_that_failed_is_blamed_and_of_many_unknown_ones_none() -> None:
    nodes = {rank: f"node-{rank}" for rank in range(20)}
    assert blamed_of(Cause(code=CauseCode.RANK_ENDED, numbers={"rank": 7.0}), nodes) == ("node-7",)
    assert blamed_of(Cause(code=CauseCode.NODE_LOST, by="node-3"), nodes) == ("node-3",)
    assert blamed_of(Cause(code=CauseCode.START_TIMEOUT), nodes) == ()
    assert blamed_of(Cause(code=CauseCode.START_TIMEOUT), {0: "b", 1: "a"}) == ("a", "b")


def test_the_same_step_on_different_nodes_is_the_program_and_the_same_node_at_different_steps_the_node() -> None:
    one = Failure(kind=F.UNKNOWN, nodes=("node-1",), step=40.0)
    assert avoided([one]) == ("node-1",)
    assert avoided([one, structs.replace(one, nodes=("node-2",))]) == ()
    own = Failure(kind=F.PROGRAM, nodes=("node-1",), step=40.0)
    assert avoided([own]) == ()
    assert avoided([own, structs.replace(own, step=55.0)]) == ("node-1",)
    assert avoided([own, structs.replace(own, step=55.0, nodes=("node-2",))]) == ()
    memory = Failure(kind=F.MEMORY, nodes=("node-1",), step=70.0)
    assert avoided([own, memory]) == ()


def test_a_retry_after_a_failure_of_the_node_goes_elsewhere_and_says_so() -> None:
    w = world(nodes=3, gpus=2)
    w.submit("j-1", gpus=1, spec={"retries": THREE})
    w.round()
    bad = fails(w, "j-1")
    assert w.stored["j-1"].failures == (Failure(kind=F.NODE, nodes=(bad,)),)
    told = explain(
        w.stored["j-1"], nodes=list(w.core.cluster_state.pool.nodes.values()), holding=[], queued=[], now=w.now
    )
    assert f"its next try avoids {bad}, where it failed before, if another place is free" in told.sentence
    w.tick(2.0)
    second = node_of(w, "j-1")
    assert second != bad
    placed = [step for step in w.steps if step.event is JobEvent.PLACED][-1]
    assert placed.cause.sentence.endswith(f"not on {bad}, where it failed before")
    w.round()
    assert fails(w, "j-1") == second
    w.tick(5.0)
    assert node_of(w, "j-1") not in (bad, second)


def test_a_retry_goes_back_to_the_node_if_no_other_place_is_free() -> None:
    w = world(nodes=2, gpus=1)
    w.submit("j-1", gpus=1, spec={"retries": THREE})
    w.submit("j-2", gpus=1)
    w.round()
    bad = fails(w, "j-1")
    w.tick(2.0)
    assert node_of(w, "j-1") == bad
    placed = [step for step in w.steps if step.event is JobEvent.PLACED][-1]
    assert f"again on {bad}, where it failed before: no other place is free" in placed.cause.sentence


def test_a_failure_of_its_own_avoids_no_node() -> None:
    w = world(nodes=2, gpus=1)
    w.submit("j-1", gpus=1, spec={"retries": THREE})
    w.round()
    home = fails(w, "j-1", exit_code=3, reason=EndReason.EXIT)
    w.tick(2.0)
    assert (node_of(w, "j-1"), w.stored["j-1"].attempts) == (home, 1)


def test_only_the_last_two_failures_count() -> None:
    w = world(nodes=4, gpus=1)
    w.submit("j-1", gpus=1, spec={"retries": Retries(max=9, backoff="1s")})
    homes: list[str] = []
    for _ in range(3):
        w.tick(10.0)
        w.round()
        homes.append(fails(w, "j-1"))
    assert len(set(homes)) == 3
    assert avoided(w.stored["j-1"].failures) == tuple(sorted(homes[1:]))


def test_a_rank_that_was_killed_for_memory_says_so_by_its_code() -> None:
    w = world(gpus=1)
    w.submit("j-1", gpus=1)
    w.round()
    fails(w, "j-1", exit_code=137, reason=EndReason.OOM)
    failed = w.steps[-1]
    assert (failed.event, failed.cause.code) == (JobEvent.FAILED, CauseCode.OUT_OF_MEMORY)
    told = explain(w.ended("j-1"), nodes=[], holding=[], queued=[], now=w.now, ended_for=failed.cause)
    assert told.fault is F.MEMORY


def test_failures_are_not_forgotten_by_a_new_leader() -> None:
    w = world(nodes=2, gpus=1)
    w.submit("j-1", gpus=1, spec={"retries": THREE})
    w.round()
    bad = fails(w, "j-1")
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    w.round()
    w.tick(30.0)
    w.round()
    assert w.state("j-1") is S.RUNNING
    assert node_of(w, "j-1") != bad


def test_a_gang_whose_rank_waited_for_others_in_vain_is_charged_and_avoids_all_its_nodes() -> None:
    w = world(nodes=4, gpus=2)
    w.submit("j-1", gpus=2, replicas=2, spec={"retries": THREE})
    w.round()
    placement = w.core.cluster_state.jobs["j-1"].placement
    assert placement is not None
    before = {each.node_id for each in placement.allocations}
    first = placement.allocations[0]
    node, key = w.nodes[first.node_id], ("j-1", 0, first.rank)
    node.end(key, 134)
    node.runs[key] = structs.replace(node.runs[key], timed_out=True)
    w.sync(first.node_id)
    w.round()
    stored = w.stored["j-1"]
    assert stored.attempts == 1
    assert stored.failures == (Failure(kind=F.NETWORK, nodes=tuple(sorted(before))),)
    w.tick(5.0)
    w.round()
    again = w.core.cluster_state.jobs["j-1"].placement
    assert again is not None
    assert before.isdisjoint(each.node_id for each in again.allocations)
    stopped = next(step for step in w.steps if step.event is JobEvent.STOPPING)
    assert stopped.cause.sentence.endswith("(status 134), after a rank waited for the others in vain")


def test_a_job_of_one_rank_has_no_others_to_wait_for() -> None:
    w = world(gpus=1)
    w.submit("j-1", gpus=1)
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    run = w.nodes["node-1"].runs["j-1", 0, 0]
    w.nodes["node-1"].runs["j-1", 0, 0] = structs.replace(run, timed_out=True)
    w.sync("node-1")
    (failed,) = [step for step in w.steps if step.event is JobEvent.FAILED]
    assert TIMED_OUT not in failed.cause.numbers
    assert class_of_cause(failed.cause) is F.PROGRAM
