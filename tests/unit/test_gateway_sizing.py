"""Which sizes a job may be given, what is told of those it cannot have, and how its size is shown and explained."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import GIB, job, node, spec
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.sizes import wrong_size
from weft.domain.spec import JobSpec, ResizeHow
from weft.messages.http import JobView
from weft.planning.reasons.explain import explain
from weft.store.tenants import Access
from weftd.gateway.errors import RejectedError
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.views import job_view, node_views
from weftd.gateway.submissions import notes_on
from weftd.gateway.thinking.updating import check_size

RANGE = {"replicas": {"min": 1, "want": 2, "max": 4}}
_S = JobState


def allocation(rank: int, *, gpu: int, role: str = "worker", **fields: Any) -> Allocation:
    return Allocation(rank=rank, role=role, node_id="node-1", gpus=(gpu,), cpus=1.0, memory=GIB, **fields)


def place(*ranks: Allocation) -> Placement:
    return Placement(allocations=ranks)


def elastic(state: JobState = _S.RUNNING, *, says: dict[str, Any] | None = None, **fields: Any) -> Job:
    """A job of one to four workers that wants two, and has them."""
    has = place(allocation(0, gpu=0), allocation(1, gpu=1)) if state.holding else None
    return job(state=state, spec={"role": RANGE, **(says or {})}, **{"placement": has, **fields})


def refusal(of: Job, size: dict[str, int]) -> tuple[int, str, str] | None:
    try:
        check_size(of, size)
    except RejectedError as error:
        return error.status, error.field, error.reason
    return None


LIVE, SAVES = {"resize": {"how": "live"}}, {"checkpoints": {"every": "10m"}}


@pytest.mark.parametrize("says", [LIVE, SAVES, {"resize": {"how": "restart"}}, {"labels": {"weft/checkpoints": "0s"}}])
def test_a_running_job_that_can_take_another_size_may_be_given_every_size_in_its_range(says: dict[str, Any]) -> None:
    assert [count for count in range(1, 4097) if refusal(elastic(says=says), {"worker": count}) is None] == [1, 2, 3, 4]


@pytest.mark.parametrize("says", [{}, {"resize": {"how": "never"}}])
def test_a_job_that_waits_may_be_given_a_size_and_keeps_it_once_it_holds_gpus(says: dict[str, Any]) -> None:
    assert refusal(elastic(_S.QUEUED, says=says), {"worker": 4}) is None
    for state in (_S.PLACED, _S.STARTING, _S.RUNNING, _S.STOPPING):
        status, field, reason = refusal(elastic(state, says=says), {"worker": 4}) or (0, "", "")
        assert (status, field) == (409, "job")
        assert "keeps its size" in reason
        assert "resize.how" in reason


def test_a_pinned_job_keeps_its_size_even_before_it_runs() -> None:
    pinned = elastic(_S.QUEUED, says={"pin": {"node": "node-1"}, **LIVE})
    assert refusal(pinned, {"worker": 3}) == (409, "job", "j-1 keeps its size: it is pinned to node-1")


@pytest.mark.parametrize("state", [_S.SUCCEEDED, _S.FAILED, _S.CANCELLED])
def test_a_job_that_is_over_has_no_size_to_change(state: JobState) -> None:
    assert refusal(elastic(state, says=LIVE), {"worker": 3}) == (409, "job", f"j-1 is over already: {state}")


@pytest.mark.parametrize(
    ("size", "field", "reason"),
    [
        ({"ps": 1}, "size.ps", "the job has no role ps; it has worker"),
        ({"worker": 5}, "size.worker", "5 is outside 1 to 4, the range of role worker"),
        ({"worker": 2, "ps": 1}, "size.ps", "the job has no role ps; it has worker"),
    ],
)
def test_a_size_that_the_job_cannot_have_names_the_role(size: dict[str, int], field: str, reason: str) -> None:
    assert refusal(elastic(says=LIVE), size) == (400, field, reason)
    assert refusal(elastic(_S.QUEUED), size) == (400, field, reason)


@given(st.dictionaries(st.sampled_from(["worker", "ps", "other"]), st.integers(1, 4096), min_size=1), st.booleans())
def test_a_size_is_taken_just_if_every_role_may_have_it(size: dict[str, int], runs: bool) -> None:
    of = elastic(_S.RUNNING if runs else _S.QUEUED, says=LIVE)
    assert (refusal(of, size) is None) == (wrong_size(of.spec, size) is None)
    assert (refusal(of, size) is None) == (set(size) == {"worker"} and size["worker"] <= 4)


def test_a_submission_that_cannot_use_its_range_is_taken_with_a_note() -> None:
    note, _ = notes_on(spec(role=RANGE))
    assert "its size cannot change while it runs" in note
    assert "checkpoints" in note
    assert notes_on(spec(role=RANGE, **LIVE, **SAVES)) == notes_on(spec(role=RANGE, **SAVES)) == ()
    assert notes_on(spec(role={"replicas": {"min": 1, "want": 2}}, **SAVES)) == ()  # it only starts with fewer
    (note,) = notes_on(spec(role=RANGE, resize={"how": "restart"}))
    assert "loses its progress" in note


@pytest.mark.parametrize(
    "fields",
    [
        SAVES,
        {"gpus": 0},
        {"time_limit": "5m"},
        {"kind": "batch"},
        {"preemptible": False},
        {"kind": "inference", "service": {"port": 8080}},
    ],
)
def test_only_a_training_job_that_may_run_for_long_is_told_what_checkpoints_buy(fields: dict[str, Any]) -> None:
    (note,) = notes_on(spec())
    assert note.startswith("it does not set `checkpoints`")
    assert note not in notes_on(spec(**fields))


# what is shown


def shown(of: Job, *, whole: bool = True) -> JobView:
    return job_view(of, LiveCluster(clock=lambda: 0.0), whole=whole)


def test_the_view_has_what_the_job_has_and_should_have_and_may_have() -> None:
    ranks = allocation(0, gpu=0), allocation(1, gpu=1), allocation(2, gpu=2, extra=True, leaving=True)
    view = shown(elastic(says=LIVE, size={"worker": 3}, placement=place(*ranks)))
    (worker,) = view.size.values()
    assert (worker.granted, worker.wanted, worker.least, worker.most) == (2, 3, 1, 4)
    assert (worker.leaving, worker.next, view.resize) == (1, None, ResizeHow.LIVE)
    assert [(run.rank, run.extra, run.leaving) for run in view.runs][2:] == [(2, True, True)]
    assert (view.gpus, view.replicas) == (3, 3)  # the rank that leaves holds its GPU until it is gone


def test_a_job_that_restarts_shows_what_it_will_have_and_all_that_it_holds() -> None:
    following = place(allocation(0, gpu=0), allocation(1, gpu=1), allocation(2, gpu=2))
    restarts = elastic(_S.STOPPING, says=SAVES, size={"worker": 3}, next_placement=following)
    view = shown(restarts)
    assert (view.size["worker"].granted, view.size["worker"].next, view.resize) == (2, 3, ResizeHow.RESTART)
    assert view.gpus == 3
    (seen,) = node_views([node("node-1", gpus=4)], [restarts], LiveCluster(clock=lambda: 0.0), Access(tenant="alice"))
    assert [gpu.held_by is not None for gpu in seen.gpus] == [True, True, True, False]


def test_a_job_that_waits_shows_the_size_with_which_it_will_start() -> None:
    view = shown(elastic(_S.QUEUED, size={"worker": 4}))
    assert (view.gpus, view.replicas, view.size["worker"].granted) == (4, 4, 0)


def test_lists_leave_out_the_size_of_jobs_that_have_one_only() -> None:
    assert shown(job(), whole=False).size == {}
    assert shown(job()).size.keys() == {"worker"}
    assert shown(elastic(), whole=False).size.keys() == {"worker"}


# why


def explained(of: Job) -> Any:
    return explain(of, nodes=[node("node-1")], holding=[of], queued=[], now=0.0)


def test_an_explanation_has_the_size_and_why_it_stays() -> None:
    told = explained(elastic(says=LIVE))
    assert (told.size["worker"].granted, told.resize, told.keeps_size_for) == (2, ResizeHow.LIVE, "")
    told = explained(elastic())
    assert told.resize is ResizeHow.NEVER
    assert told.keeps_size_for == ("it has no resize.how and no checkpoints: resize.how live, or checkpoints, allow it")
    assert explained(elastic(_S.QUEUED)).size["worker"].wanted == 2
    assert explained(job(state=_S.RUNNING, placement=place(allocation(0, gpu=0)))).size == {}


def test_a_specification_that_says_nothing_of_its_size_has_one() -> None:
    made: JobSpec = structs.replace(spec(replicas=3))
    assert wrong_size(made, {"worker": 3}) is None
    assert wrong_size(made, {"worker": 2}) == ("worker", "2 is outside 3 to 3, the range of role worker")
