"""Which jobs, and which of their ranks, give way to a job that comes before them in the order."""

from typing import Any

import pytest

from tests.support.builders import job
from tests.support.scheduler import World, world
from tests.support.steps import placement
from weft.domain.job import CauseCode, Job, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.planning.preemption.loss import COOL_DOWN_SECONDS, loss, work_lost_seconds

S, E = JobState, JobEvent
LONG = 10 * COOL_DOWN_SECONDS


def live(least: int, want: int, **fields: Any) -> dict[str, Any]:
    return {"role": {"replicas": {"min": least, "want": want}}, "resize": {"how": "live"}, **fields}


def rounds(w: World, count: int = 3) -> None:
    for _ in range(count):
        w.round()


def running(job_id: str = "j-1", **fields: Any) -> Job:
    return job(
        job_id, state=S.RUNNING, placement=placement(("node-1", 0)), placed_at=1000.0, started_at=1000.0, **fields
    )


# what is lost


@pytest.mark.parametrize(
    ("spec", "progress", "lost"),
    [
        ({}, {}, 3600.0),
        ({"checkpoints": {"on_stop": True}}, {}, 0.0),
        ({"checkpoints": {"every": "10m"}}, {}, 300.0),
        ({"labels": {"weft/checkpoints": "10m"}}, {}, 300.0),
        ({}, {"step": 360.0, "checkpoint": 350.0}, 100.0),
        ({"checkpoints": {"every": "10m"}}, {"step": 360.0, "checkpoint": 360.0}, 0.0),
        ({}, {"step": 360.0, "checkpoint": 900.0}, 0.0),
        ({}, {"step": float("nan"), "checkpoint": 1.0}, 3600.0),
        ({}, {"step": -5.0, "checkpoint": 1.0}, 3600.0),
    ],
)
def test_work_is_lost_since_the_last_checkpoint_as_far_as_that_is_known(
    spec: dict[str, Any], progress: dict[str, float], lost: float
) -> None:
    assert work_lost_seconds(running(spec=spec), 4600.0, progress) == pytest.approx(lost)


def test_a_rank_beyond_the_core_loses_less_than_any_job_and_what_just_gave_way_comes_last() -> None:
    now = 1000.0 + LONG
    rested = running(spec={"checkpoints": {"on_stop": True}})
    again = running(spec={"checkpoints": {"on_stop": True}}, epoch=1, sized_at=now - 1.0)
    keys = [
        loss(rested, now, {}, extra=True),
        loss(rested, now, {}, extra=False),
        loss(running(), now, {}, extra=False),
        loss(again, now, {}, extra=True),
        loss(again, now, {}, extra=False),
    ]
    assert keys == sorted(keys)


# in the scheduler


def test_a_job_that_comes_first_takes_ranks_beyond_the_core_and_the_job_they_were_of_runs_on() -> None:
    w = world(gpus=4)
    w.submit("j-big", gpus=1, spec=live(1, 4))
    rounds(w)
    w.tick(LONG)
    w.submit("j-urgent", gpus=2, spec={"priority": 10})
    rounds(w)
    assert (w.state("j-big"), w.state("j-urgent")) == (S.RUNNING, S.RUNNING)
    assert (w.stored["j-big"].epoch, w.stored["j-big"].granted) == (0, {"worker": 2})
    (left,) = [step for step in w.steps if step.cause.code is CauseCode.PREEMPTED]
    assert (left.job_id, left.event, left.cause.by) == ("j-big", E.RESIZED, "j-urgent")
    assert "2 of its ranks leave" in left.cause.sentence
    w.ask(AskKind.CANCEL, "j-urgent")
    rounds(w, 5)
    assert w.stored["j-big"].granted == {"worker": 4}, "it grows back once the room is free again"


def test_a_job_that_needs_more_than_the_ranks_beyond_the_core_stops_the_job() -> None:
    w = world(gpus=4)
    w.submit("j-big", gpus=1, spec=live(2, 4))
    rounds(w)
    w.submit("j-urgent", gpus=4, spec={"priority": 10})
    rounds(w)
    assert (w.state("j-big"), w.state("j-urgent")) == (S.QUEUED, S.RUNNING)


def test_of_equal_jobs_the_one_that_loses_least_work_gives_way() -> None:
    w = world(gpus=2)
    w.submit("j-saves", gpus=1, spec={"checkpoints": {"on_stop": True}})
    rounds(w)
    w.submit("j-forgets", gpus=1)
    rounds(w)
    w.tick(LONG)
    w.submit("j-urgent", gpus=1, spec={"priority": 10})
    rounds(w)
    assert (w.state("j-saves"), w.state("j-forgets"), w.state("j-urgent")) == (S.QUEUED, S.RUNNING, S.RUNNING)


def test_while_ranks_leave_for_a_job_nobody_else_gives_way_for_it() -> None:
    w = world(gpus=4)
    w.submit("j-big", gpus=1, spec=live(1, 3))
    w.submit("j-other", gpus=1)
    rounds(w)
    w.tick(LONG)
    w.nodes["node-1"].unkillable.add(("j-big", 0, 2))
    w.submit("j-urgent", gpus=1, spec={"priority": 10})
    rounds(w, 5)
    assert (w.state("j-urgent"), w.state("j-other"), w.stored["j-big"].granted) == (S.QUEUED, S.RUNNING, {"worker": 2})
    assert w.stored["j-urgent"].waiting_for is not None
    assert w.stored["j-urgent"].waiting_for.code is CauseCode.MAKING_ROOM
