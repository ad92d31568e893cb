"""An interruption is not an end: a job that exits 0 because it was told to stop goes back to the queue."""

import pytest
from msgspec.structs import replace

from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason
from weftd.scheduler.thinking.state.runs import is_finished

S = JobState


def end(w: World, job_id: str, status: int, *, reason: EndReason, rank: int = 0, **progress: float) -> None:
    job = w.core.cluster_state.jobs[job_id]
    assert job.placement is not None
    node = w.nodes[job.placement.allocations[rank].node_id]
    node.end((job_id, job.epoch, rank), status, reason=reason)
    node.runs[job_id, job.epoch, rank] = replace(node.runs[job_id, job.epoch, rank], progress=progress)


def pre_empted(w: World) -> None:
    """j-low runs, and is told to stop for j-high; its node says that it has not ended yet."""
    w.submit("j-low", gpus=4)
    w.round()
    w.submit("j-high", gpus=4, spec={"priority": 10})
    w.nodes["node-1"].unkillable.add(("j-low", 0, 0))
    w.round()
    assert w.state("j-low") is S.STOPPING


def test_a_pre_empted_job_that_saves_and_exits_0_goes_back_to_the_queue() -> None:
    w = world()
    pre_empted(w)
    end(w, "j-low", 0, reason=EndReason.STOPPED, step=46, steps=900)
    w.sync("node-1")
    job = w.stored["j-low"]
    assert (job.state, job.epoch, job.attempts) == (S.QUEUED, 1, 0)
    assert w.steps[-1].cause.code is not CauseCode.EXITED


@pytest.mark.parametrize("progress", [{"step": 900, "steps": 900}, {"finished": 1}])
def test_one_whose_progress_says_that_its_work_is_done_has_succeeded(progress: dict[str, float]) -> None:
    w = world()
    pre_empted(w)
    end(w, "j-low", 0, reason=EndReason.STOPPED, **progress)
    w.sync("node-1")
    assert (w.state("j-low"), w.stored["j-low"].exit_code) == (S.SUCCEEDED, 0)


def test_one_that_had_ended_by_itself_before_it_was_told_has_succeeded() -> None:
    w = world()
    pre_empted(w)
    end(w, "j-low", 0, reason=EndReason.EXIT)
    w.sync("node-1")
    assert w.state("j-low") is S.SUCCEEDED


@pytest.mark.parametrize("reason", [EndReason.STOPPED, EndReason.FENCED])
def test_a_job_that_its_node_stopped_goes_back_to_the_queue_though_it_exits_0(reason: EndReason) -> None:
    w = world()
    w.submit("j-1", gpus=1)
    w.round()
    end(w, "j-1", 0, reason=reason)
    w.sync("node-1")
    assert (w.stored["j-1"].epoch, w.stored["j-1"].attempts) == (1, 0)
    (requeued,) = [step for step in w.steps if step.cause.code is CauseCode.NODE_STOPPED]
    assert requeued.exit_code == 0


def test_one_rank_that_was_told_to_stop_keeps_a_gang_from_having_succeeded() -> None:
    w = world(gpus=2)
    w.submit("j-1", gpus=1, replicas=2)
    w.round()
    end(w, "j-1", 0, reason=EndReason.EXIT, rank=0)
    end(w, "j-1", 0, reason=EndReason.STOPPED, rank=1)
    w.sync("node-1")
    assert w.stored["j-1"].epoch == 1


def test_the_last_step_told_by_rank_0_counts_for_every_rank_of_its_gang() -> None:
    w = world(gpus=2)
    w.submit("j-1", gpus=1, replicas=2)
    w.round()
    end(w, "j-1", 0, reason=EndReason.STOPPED, rank=0, step=10, steps=10)
    end(w, "j-1", 0, reason=EndReason.STOPPED, rank=1)
    w.sync("node-1")
    assert w.state("j-1") is S.SUCCEEDED


def test_a_job_over_its_time_limit_has_failed_though_it_exits_0() -> None:
    w = world()
    w.submit("j-1", gpus=1, spec={"time_limit": "60s"})
    w.round()
    w.nodes["node-1"].unkillable.add(("j-1", 0, 0))
    w.tick(100)
    end(w, "j-1", 0, reason=EndReason.STOPPED)
    w.sync("node-1")
    assert w.state("j-1") is S.FAILED


def test_a_cancelled_job_that_exits_0_is_cancelled() -> None:
    w = world()
    w.submit("j-1", gpus=1)
    w.round()
    w.nodes["node-1"].unkillable.add(("j-1", 0, 0))
    w.ask(AskKind.CANCEL, "j-1")
    end(w, "j-1", 0, reason=EndReason.STOPPED, step=5, steps=5)
    w.sync("node-1")
    assert w.state("j-1") is S.CANCELLED


# the rank that failed first


def test_a_failed_job_has_the_status_of_the_rank_that_failed_first_and_names_it() -> None:
    w = world(gpus=2)
    w.submit("j-1", gpus=1, replicas=2)
    w.round()
    w.nodes["node-1"].unkillable.add(("j-1", 0, 0))
    end(w, "j-1", 1, reason=EndReason.EXIT, rank=1)
    w.sync("node-1")
    end(w, "j-1", 143, reason=EndReason.STOPPED, rank=0)
    w.sync("node-1")
    job = w.stored["j-1"]
    assert (job.state, job.exit_code) == (S.FAILED, 1)
    assert w.steps[-1].cause.numbers == {"rank": 1.0, "exit_code": 1.0}
    assert w.steps[-1].cause.sentence == "rank 1 ended with status 1"


def test_of_two_that_failed_by_themselves_the_earlier_is_named() -> None:
    w = world(gpus=2)
    w.submit("j-1", gpus=1, replicas=2)
    w.round()
    for rank, at in ((0, 20.0), (1, 10.0)):
        end(w, "j-1", rank + 1, reason=EndReason.EXIT, rank=rank)
        runs = w.nodes["node-1"].runs
        runs["j-1", 0, rank] = replace(runs["j-1", 0, rank], ended_at=at)
    w.sync("node-1")
    assert (w.stored["j-1"].exit_code, w.steps[-1].cause.numbers["rank"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("progress", "finished"),
    [
        ({}, False),
        ({"step": 5}, False),
        ({"step": 5, "steps": 0}, False),
        ({"step": 5, "steps": 6}, False),
        ({"step": 6, "steps": 6}, True),
        ({"finished": 0}, False),
        ({"finished": 1, "step": 1, "steps": 9}, True),
    ],
)
def test_a_job_says_that_its_work_is_done_by_its_last_step_or_by_a_word(
    progress: dict[str, float], finished: bool
) -> None:
    assert is_finished(progress) is finished
