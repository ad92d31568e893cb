"""A job of which some roles only help: `done_when` names the roles whose end is the job's."""

import json

import pytest
from msgspec.structs import replace

from tests.support.scheduler import World, world
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.job import CauseCode, JobState
from weft.domain.spec import Replicas, ResizeHow, ResizeRules, Role
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason

S = JobState
PS, FIRST, SECOND = 0, 1, 2  # ranks


def training(w: World, **fields: object) -> None:
    roles = {"ps": Role(), "worker": Role(gpus=1, replicas=Replicas(want=2))}
    w.submit("j-1", spec={"roles": roles, "done_when": "worker"} | fields)
    w.round()
    assert w.state("j-1") is S.RUNNING


def refusal(**fields: object) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        decode_spec(json.dumps(job(**fields)).encode())
    return caught.value.field, caught.value.reason


def job(**fields: object) -> dict[str, object]:
    return {"name": "a", "command": ["true"], **fields}


def end(w: World, rank: int, status: int = 0, *, at: float, reason: EndReason = EndReason.EXIT) -> None:
    """A rank ends, and its node tells nobody yet."""
    node, key = w.nodes["node-1"], ("j-1", 0, rank)
    node.end(key, status, reason=reason)
    node.runs[key] = replace(node.runs[key], ended_at=at)


def test_a_job_has_succeeded_when_its_workers_have_and_its_helper_was_stopped() -> None:
    w = world()
    training(w)
    w.nodes["node-1"].unkillable.add(("j-1", 0, PS))
    end(w, FIRST, at=10)
    w.sync("node-1")
    assert w.state("j-1") is S.RUNNING
    end(w, SECOND, at=11)
    w.sync("node-1")
    stopping = w.stored["j-1"]
    assert (stopping.state, stopping.exit_code) == (S.STOPPING, 0)
    assert w.steps[-1].cause.code is CauseCode.CORE_DONE
    assert w.steps[-1].cause.sentence == "every rank of role worker ended with status 0: the other ranks stop"
    end(w, PS, 143, at=12, reason=EndReason.STOPPED)
    w.sync("node-1")
    assert (w.stored["j-1"].state, w.stored["j-1"].epoch, w.stored["j-1"].exit_code) == (S.SUCCEEDED, 0, 0)


def test_the_end_of_a_helper_with_0_is_not_the_end_of_its_job_and_no_failure() -> None:
    w = world()
    training(w)
    end(w, PS, at=9)
    w.round()
    assert w.state("j-1") is S.RUNNING
    end(w, FIRST, at=10)
    end(w, SECOND, at=11)
    w.sync("node-1")
    assert w.state("j-1") is S.SUCCEEDED
    assert w.steps[-1].cause.sentence == "every rank of role worker ended with status 0"


@pytest.mark.parametrize("failed", [PS, FIRST])
def test_the_failure_of_any_replica_before_the_end_is_the_failure_of_the_job(failed: int) -> None:
    w = world()
    training(w)
    end(w, failed, 3, at=9)
    w.round()
    assert (w.state("j-1"), w.stored["j-1"].exit_code) == (S.FAILED, 3)


@pytest.mark.parametrize(("lost_it_at", "state"), [(12.0, S.SUCCEEDED), (9.0, S.FAILED)])
@pytest.mark.parametrize("told_at_once", [True, False])
def test_a_helper_may_fail_by_the_end_of_the_workers_but_not_before_it(
    lost_it_at: float, state: JobState, told_at_once: bool
) -> None:
    w = world()
    training(w)
    w.nodes["node-1"].unkillable |= {("j-1", 0, FIRST), ("j-1", 0, SECOND)}
    end(w, PS, 1, at=lost_it_at)
    if not told_at_once:  # as where the workers are on a node that reports later
        w.sync("node-1")
        assert w.state("j-1") is S.STOPPING
    end(w, FIRST, at=10)
    end(w, SECOND, at=11)
    w.round()
    assert w.state("j-1") is state


def test_a_pre_empted_job_whose_workers_were_interrupted_goes_back_to_the_queue() -> None:
    w = world(gpus=2)
    training(w)
    w.submit("j-high", gpus=2, spec={"priority": 10})
    w.nodes["node-1"].unkillable |= {("j-1", 0, rank) for rank in (PS, FIRST, SECOND)}
    w.round()
    assert w.state("j-1") is S.STOPPING
    end(w, PS, 143, at=10, reason=EndReason.STOPPED)
    end(w, FIRST, at=10)
    end(w, SECOND, at=10, reason=EndReason.STOPPED)
    w.sync("node-1")
    assert (w.stored["j-1"].state, w.stored["j-1"].epoch) == (S.QUEUED, 1)


def test_a_pre_empted_job_whose_workers_had_ended_by_themselves_has_succeeded() -> None:
    w = world(gpus=2)
    training(w)
    w.submit("j-high", gpus=2, spec={"priority": 10})
    w.nodes["node-1"].unkillable |= {("j-1", 0, rank) for rank in (PS, FIRST, SECOND)}
    w.round()
    end(w, PS, 143, at=11, reason=EndReason.STOPPED)
    end(w, FIRST, at=10)
    end(w, SECOND, at=10)
    w.sync("node-1")
    assert w.state("j-1") is S.SUCCEEDED


def test_a_new_leader_knows_that_the_workers_of_a_stopping_job_succeeded() -> None:
    w = world()
    training(w)
    node = w.nodes["node-1"]
    node.unkillable.add(("j-1", 0, PS))
    end(w, FIRST, at=10)
    end(w, SECOND, at=10)
    w.sync("node-1")
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    end(w, PS, 137, at=12, reason=EndReason.STOPPED)
    assert set(node.runs) == {("j-1", 0, PS)}
    w.round()
    assert w.state("j-1") is S.SUCCEEDED


def test_a_helper_that_cannot_be_stopped_does_not_undo_the_success() -> None:
    w = world()
    training(w, grace="30s")
    w.nodes["node-1"].unkillable.add(("j-1", 0, PS))
    end(w, FIRST, at=10)
    end(w, SECOND, at=10)
    w.sync("node-1")
    for _ in range(40):
        w.now += 10
        w.round()
    assert w.state("j-1") is S.SUCCEEDED
    assert "still ran" in w.steps[-1].cause.sentence


def test_a_job_may_be_cancelled_while_its_helper_stops() -> None:
    w = world()
    training(w)
    w.nodes["node-1"].unkillable.add(("j-1", 0, PS))
    end(w, FIRST, at=10)
    end(w, SECOND, at=10)
    w.sync("node-1")
    w.ask(AskKind.CANCEL, "j-1")
    end(w, PS, 143, at=12, reason=EndReason.STOPPED)
    w.sync("node-1")
    assert w.state("j-1") is S.CANCELLED


def test_of_a_job_that_resizes_live_the_core_of_the_roles_counts() -> None:
    w = world()
    roles = {"ps": Role(), "worker": Role(gpus=1, replicas=Replicas(min=1, want=2))}
    training(w, roles=roles, resize=ResizeRules(how=ResizeHow.LIVE))
    assert w.stored["j-1"].granted == {"ps": 1, "worker": 2}
    end(w, FIRST, at=10)
    w.round()
    assert w.state("j-1") is S.SUCCEEDED


def test_the_progress_of_a_job_is_that_of_the_roles_that_end() -> None:
    w = world()
    training(w)
    runs = w.nodes["node-1"].runs
    for rank, step in ((PS, 900.0), (FIRST, 3.0)):
        runs["j-1", 0, rank] = replace(runs["j-1", 0, rank], progress={"step": step})
    end(w, FIRST, 1, at=10)
    runs["j-1", 0, FIRST] = replace(runs["j-1", 0, FIRST], progress={"step": 3.0})
    w.round()
    assert w.stored["j-1"].progress == {"step": 3.0}


@pytest.mark.parametrize(
    ("done_when", "fields", "reason"),
    [
        ("wroker", {}, "wroker is no role of the job; it has ps, worker"),
        (["worker", "evaluator"], {}, "evaluator is no role of the job; it has ps, worker"),
        (["worker", "worker"], {}, "worker is named twice"),
        (["worker", "ps"], {}, "names every role, so no rank would be stopped: leave it out, or name fewer"),
        (
            "worker",
            {"roles": {"worker": {}}},
            "names every role, so no rank would be stopped: leave it out, or name fewer",
        ),
        (
            "worker",
            {"roles": {"worker": {}}, "kind": "inference", "service": {}},
            "is only for jobs that end; a job with `service` does not end by itself",
        ),
    ],
)
def test_the_roles_whose_end_is_the_jobs_are_some_of_its_roles(
    done_when: object, fields: dict[str, object], reason: str
) -> None:
    roles: dict[str, object] = {"ps": {}, "worker": {"replicas": {"want": 2}}}
    assert refusal(**{"roles": roles, "done_when": done_when} | fields) == ("done_when", reason)


@pytest.mark.parametrize("done_when", [[], 3, {"worker": 1}, ["Worker"], "a b", "", [""], ["x" * 64], ["worker"] * 17])
def test_what_is_no_name_of_a_role_is_refused_where_the_job_names_roles(done_when: object) -> None:
    assert refusal(roles={"ps": {}, "worker": {}}, done_when=done_when)[0] == "done_when"


def test_the_roles_whose_end_is_the_jobs_are_one_or_several_or_all() -> None:
    roles: dict[str, object] = {"ps": {}, "worker": {}, "chief": {}}
    for said, meant in (("worker", ("worker",)), (["chief", "worker"], ("chief", "worker"))):
        assert decode_spec(json.dumps(job(roles=roles, done_when=said)).encode()).done_roles == meant
    assert decode_spec(json.dumps(job(roles=roles)).encode()).done_roles == ("ps", "worker", "chief")
