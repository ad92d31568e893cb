"""The law of steps: what a step leaves of a job, and what a job needs beside its present place for its next epoch."""

from msgspec import structs

from tests.support.builders import GIB, job
from tests.support.steps import placement, step
from weft.domain.job import Allocation, Job, JobEvent, JobState, Loan, Placement, after, beside

LOANS = (Loan(lender="j-2", rank=1, gpus=1.0, ranks=1),)
THERE = placement(("node-1", 0))


def running(**fields: object) -> Job:
    return job(state=JobState.RUNNING, placement=THERE, placed_at=4.0, started_at=4.0, epoch=1, **fields)


def taken(one: Job, *events: JobEvent, at: float = 10.0) -> Job:
    for event in events:
        one = after(one, step(one, event, at=at, placement=THERE if event is JobEvent.RESTARTED else None))
    return one


def test_loans_last_as_long_as_the_epoch_that_borrowed() -> None:
    borrowing = running(loans=LOANS)
    assert taken(borrowing, JobEvent.STOPPING).loans == LOANS
    assert taken(borrowing, JobEvent.STOPPING, JobEvent.RESTARTED).loans == ()
    assert taken(borrowing, JobEvent.REQUEUED).loans == ()
    assert taken(borrowing, JobEvent.FAILED).loans == ()


def test_a_waiting_job_keeps_its_reason_until_it_has_another() -> None:
    waiting = taken(job(), JobEvent.WAITING)
    assert waiting.waiting_for is not None
    for event in (JobEvent.REPRIORITISED, JobEvent.SCALED, JobEvent.UPDATED):
        assert taken(waiting, event).waiting_for == waiting.waiting_for


def test_the_time_of_an_epoch_counts_when_the_job_restarts_and_when_it_goes_back_to_the_queue() -> None:
    assert taken(running(), JobEvent.STOPPING, JobEvent.RESTARTED).attained_seconds == 6.0
    assert taken(running(), JobEvent.REQUEUED).attained_seconds == 6.0
    assert taken(running(), JobEvent.STOPPING).attained_seconds == 0.0, "it holds its GPUs still"


def without_gpus(rank: int, node_id: str = "node-1", role: str = "ps") -> Allocation:
    return Allocation(rank=rank, role=role, node_id=node_id, cpus=1.0, memory=GIB)


def test_each_rank_without_gpus_stands_for_one_rank_of_the_next_epoch() -> None:
    now = Placement(allocations=(without_gpus(0),))
    following = Placement(allocations=(without_gpus(0), without_gpus(1), without_gpus(2, "node-2")))
    assert beside(now, following) == (without_gpus(1), without_gpus(2, "node-2"))
    assert beside(now, now) == ()


def test_a_rank_number_is_given_once_in_an_epoch_though_its_rank_has_left() -> None:
    assert THERE.fresh_rank == 1
    assert structs.replace(THERE, ranks_used=5).fresh_rank == 5
