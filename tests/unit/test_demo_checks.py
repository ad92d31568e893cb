"""The demo is not content with a job's state: it wants what the job should have shown to be in its story and log."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.steps import placement
from weft.domain.job import Cause, CauseCode, JobEvent, JobState
from weft.domain.spec import Kind
from weft.messages.http import EventData, EventView, JobView
from weft.messages.http.explanation import Explanation
from weftd.cli.demo.burst import Burst
from weftd.cli.demo.checks import Evidence, judge, spent

FELL = "loss fell from 0.882811 to 0.049556"


def job(**changes: Any) -> JobView:
    made = JobView(
        id="j", name="n", tenant="t", kind=Kind.TRAINING, pool="default", state=JobState.SUCCEEDED, epoch=0, version=1,
        priority=0, preemptible=True, gpus=1, replicas=1, seq=1, submitted_at=0.0, since=0.0,
    )  # fmt: skip
    return replace(made, **changes)


def event(kind: JobEvent, code: CauseCode, *, state: JobState = JobState.QUEUED, second: int = 0) -> EventView:
    return EventView(
        specversion="1.0", id="e", source="/weft", type=f"weft.jobs.{kind}", subject="j",
        time=f"2026-01-01T00:00:{second:02}.000Z", datacontenttype="application/json",
        data=EventData(version=1, pool="default", state=state, cause=Cause(code=code, sentence="because")),
    )  # fmt: skip


PREEMPTED = event(JobEvent.REQUEUED, CauseCode.PREEMPTED)
GREW = event(JobEvent.RESIZED, CauseCode.GREW)
GAVE = event(JobEvent.RESIZED, CauseCode.PREEMPTED)
KEPT = Cause(
    code=CauseCode.KEPT,
    sentence="each worker 0.20 → 0.40 cores stays: speed 20 → 40 per second (+100.0%)",
    numbers={"speed_before": 20.0, "speed": 40.0, "gain": 1.0},
)
LEFT_ASIDE = (
    "weft-best: 1 GPU of node-1, score 1.00; left aside: gpu-0 of node-1 is 2.00× slower for compute-bound jobs"
)
SEEN = "members: 1 (piece 0)\nmembers: 6 (piece 9)\nmembers: 4 (piece 99)"
LESS = "\n".join(f"second {second}: {0.7 if second < 8 else 0.31} of the GPU" for second in range(1, 17))
MORE = "\n".join(f"second {second}: {0.29 if second < 8 else 0.7} of the GPU" for second in range(1, 17))
LENT = event(JobEvent.RESIZED, CauseCode.LENT)
ANSWERED = Burst(sent=400, answered=400, seconds=[0.1] * 380 + [0.4] * 20)


def sized(replicas: int, code: CauseCode = CauseCode.LOAD) -> EventView:
    found = event(JobEvent.SCALED, code)
    return replace(found, data=replace(found.data, size={"worker": replicas}))


def tuned(cause: Cause) -> EventView:
    found = event(JobEvent.TUNED, cause.code)
    return replace(found, data=replace(found.data, cause=cause))


def of_picky(sentence: str, *, gpu: int = 1) -> Evidence:
    found = event(JobEvent.PLACED, CauseCode.FITS)
    cause = Cause(code=CauseCode.FITS, sentence=sentence)
    placed = replace(found, data=replace(found.data, placement=placement(("node-1", gpu)), cause=cause))
    return Evidence(job=job(), story=(placed,))


ENDED = job(state=JobState.CANCELLED)
GREW_AND_SHRANK = (sized(2), sized(3), sized(2))
FAILED_ONCE = event(JobEvent.REQUEUED, CauseCode.EXITED)
EXPLAINED = Explanation(job_id="j", name="n", state=JobState.QUEUED, code="no-room", sentence="wants 2 GPUs")


@pytest.mark.parametrize(
    ("name", "evidence"),
    [
        ("picky", of_picky(LEFT_ASIDE)),
        ("starved", Evidence(job=ENDED, story=(event(JobEvent.TUNED, CauseCode.UPSCALED), tuned(KEPT)))),
        ("alpha", Evidence(job=job(), story=(), logs=("members: 2\nmembers: 8\nmembers: 7\nmembers: 5",))),
        ("beta", Evidence(job=job(), story=(), logs=("members: 2\nmembers: 4\nmembers: 8",))),
        ("trainer", Evidence(job=job(), story=(PREEMPTED,), logs=(f"resumed at step 70\n{FELL}",))),
        ("gang", Evidence(job=job(), story=(), logs=(f"{FELL}; all ranks have the same weights: True",))),
        ("flaky", Evidence(job=job(), story=(FAILED_ONCE,), logs=("try 2: 9592 primes",))),
        ("patient", Evidence(job=job(), story=(), explained=EXPLAINED)),
        ("doomed", Evidence(job=job(state=JobState.CANCELLED), story=())),
        ("urgent", Evidence(job=job(), story=())),
        ("elastic", Evidence(job=job(), story=(GREW, GAVE), logs=(SEEN,))),
        ("guest", Evidence(job=job(), story=())),
        ("major", Evidence(job=job(), story=(), logs=(LESS,))),
        ("minor", Evidence(job=job(), story=(), logs=(MORE,))),
        ("model", Evidence(job=ENDED, story=GREW_AND_SHRANK, burst=ANSWERED)),
        ("lender", Evidence(job=job(), story=(LENT,))),
    ],
)
def test_a_job_that_showed_what_it_should_is_good(name: str, evidence: Evidence) -> None:
    assert judge(name, evidence).good


@pytest.mark.parametrize(
    ("name", "evidence", "why"),
    [
        ("picky", of_picky(LEFT_ASIDE, gpu=0), "on the slow GPU"),
        ("picky", of_picky("weft-best: 1 GPU of node-1, score 1.00"), "its placement does not name the slow GPU"),
        ("picky", of_picky(LEFT_ASIDE.replace("gpu-0", "gpu-3")), "its placement does not name the slow GPU"),
        ("starved", Evidence(job=ENDED, story=()), "none was tried"),
        ("starved", Evidence(job=ENDED, story=(event(JobEvent.TUNED, CauseCode.ROLLED_BACK),)), "kept: because"),
        (
            "starved",
            Evidence(job=ENDED, story=(tuned(replace(KEPT, numbers={"speed_before": 20.0, "speed": 20.0})),)),
            "did not become faster",
        ),
        ("alpha", Evidence(job=job(), story=(), logs=("members: 2\nmembers: 8",)), "had [2, 8] GPUs in turn"),
        ("alpha", Evidence(job=job(), story=(), logs=("members: 2\nmembers: 4",)), "had [2, 4] GPUs in turn"),
        ("beta", Evidence(job=job(), story=(), logs=("members: 2\nmembers: 8",)), "had [2, 8] GPUs in turn"),
        ("beta", Evidence(job=job(epoch=1), story=(), logs=("members: 4\nmembers: 8",)), "started 2 times"),
        ("elastic", Evidence(job=job(), story=(GREW,), logs=(SEEN,)), "gave ranks back 0 times"),
        ("elastic", Evidence(job=job(epoch=1), story=(GREW, GAVE), logs=(SEEN,)), "started 2 times"),
        ("elastic", Evidence(job=job(), story=(GREW, GAVE), logs=("members: 1 (piece 0)",)), "never grew"),
        ("elastic", Evidence(job=job(), story=(GREW, GAVE), logs=(SEEN[:43],)), "never grew"),
        ("major", Evidence(job=job(), story=(), logs=(MORE,)), "did not change hands"),
        ("minor", Evidence(job=job(), story=(), logs=(LESS,)), "did not change hands"),
        ("major", Evidence(job=job(epoch=1), story=(), logs=(LESS,)), "started 2 times"),
        ("major", Evidence(job=job(), story=(), logs=("second 1: 0.7 of the GPU",)), "too short to judge"),
        ("model", Evidence(job=ENDED, story=GREW_AND_SHRANK), "no request was sent"),
        ("model", Evidence(job=ENDED, story=GREW_AND_SHRANK, burst=Burst()), "no request was sent"),
        (
            "model",
            Evidence(job=ENDED, story=GREW_AND_SHRANK, burst=Burst(sent=9, answered=6, refused=2, failed=1)),
            "6 of 9 requests were answered: 2 were refused, 1 failed",
        ),
        ("model", Evidence(job=ENDED, story=(sized(1),), burst=ANSWERED), "never asked for more"),
        (
            "model",
            Evidence(job=ENDED, story=(sized(3, CauseCode.SCALE_ASKED),), burst=ANSWERED),
            "never asked for more",
        ),
        ("model", Evidence(job=ENDED, story=(sized(2), sized(3)), burst=ANSWERED), "never made smaller"),
        ("model", Evidence(job=replace(ENDED, epoch=1), story=GREW_AND_SHRANK, burst=ANSWERED), "started 2 times"),
        ("model", Evidence(job=job(), story=GREW_AND_SHRANK, burst=ANSWERED), "should be cancelled"),
        ("lender", Evidence(job=job(), story=(GAVE,)), "lent nothing"),
        ("lender", Evidence(job=job(epoch=1), story=(LENT,)), "started 2 times"),
        ("trainer", Evidence(job=job(), story=(), logs=(f"resumed at step 70\n{FELL}",)), "never pre-empted"),
        ("trainer", Evidence(job=job(), story=(PREEMPTED,), logs=(f"starting from nothing\n{FELL}",)), "not resume"),
        ("trainer", Evidence(job=job(), story=(PREEMPTED,), logs=("resumed at step 70",)), "loss fell"),
        ("gang", Evidence(job=job(replicas=2), story=(), logs=("weights: True", "weights: False")), "0 of 2 ranks"),
        ("flaky", Evidence(job=job(), story=(), logs=("try 1: 9592 primes",)), "0 times"),
        ("patient", Evidence(job=job(), story=()), "`explain` gave no reason"),
        ("doomed", Evidence(job=job(), story=()), "should be cancelled"),
        ("urgent", Evidence(job=job(state=JobState.FAILED), story=(FAILED_ONCE,)), "should be succeeded: because"),
    ],
)
def test_a_job_that_did_not_is_not_and_it_is_said_why(name: str, evidence: Evidence, why: str) -> None:
    verdict = judge(name, evidence)
    assert not verdict.good
    assert why in verdict.why


def test_time_spent_in_a_state_is_told_by_the_story() -> None:
    story = (
        event(JobEvent.SUBMITTED, CauseCode.SUBMITTED, second=0),
        event(JobEvent.PLACED, CauseCode.FITS, state=JobState.PLACED, second=3),
        event(JobEvent.STARTED, CauseCode.NODE_REPORTED, state=JobState.RUNNING, second=4),
        event(JobEvent.REQUEUED, CauseCode.PREEMPTED, second=10),
        event(JobEvent.PLACED, CauseCode.FITS, state=JobState.PLACED, second=12),
    )
    assert spent(story, JobState.QUEUED) == 5
    assert spent(story, JobState.RUNNING) == 6


def test_the_time_of_a_part_of_the_answers_is_that_of_the_slowest_of_them() -> None:
    assert (ANSWERED.within(0.5), ANSWERED.within(0.95), ANSWERED.within(1.0)) == (0.1, 0.4, 0.4)
    assert Burst().within(0.5) == 0.0
