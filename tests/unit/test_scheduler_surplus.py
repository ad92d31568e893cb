"""An elastic job gives ranks beyond its core to a job that starves, and ranks beyond what its user wants to any."""

from typing import Any

import pytest

from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.planning.growth import OFFER_COOL_DOWN_SECONDS
from weft.planning.policy import Policy
from weft.planning.surplus import STARVED_SECONDS
from weftd.scheduler.thinking.core_settings import Settings

S = JobState
ORDERS = ("priority", "fifo", "las", "drf")


def live(least: int, want: int, most: int, **fields: Any) -> dict[str, Any]:
    return {"role": {"replicas": {"min": least, "want": want, "max": most}}, "resize": {"how": "live"}, **fields}


def rounds(w: World, count: int = 3) -> None:
    for _ in range(count):
        w.round()


def pool(spec: dict[str, Any], *, order: str = "priority") -> World:
    """One elastic job on all four GPUs."""
    w = world(gpus=4, settings=Settings(policy=Policy(order, "packed-sticky", "easy")))
    w.submit("j-big", gpus=1, spec=spec)
    rounds(w)
    return w


@pytest.mark.parametrize("order", ORDERS)
def test_a_job_that_starves_gets_what_an_equal_one_has_beyond_its_core(order: str) -> None:
    w = pool(live(1, 4, 4), order=order)
    w.submit("j-small", gpus=1)
    w.tick(STARVED_SECONDS - 5.0)
    rounds(w, 2)
    assert (w.state("j-small"), w.stored["j-big"].granted) == (S.QUEUED, {"worker": 4}), "it does not starve yet"
    w.tick(5.0)
    rounds(w)
    assert (w.state("j-small"), w.state("j-big")) == (S.RUNNING, S.RUNNING)
    assert (w.stored["j-big"].epoch, w.stored["j-big"].granted) == (0, {"worker": 3})
    (left,) = [step for step in w.steps if step.cause.code is CauseCode.PREEMPTED]
    assert (left.job_id, left.event, left.cause.by) == ("j-big", JobEvent.RESIZED, "j-small")
    assert "these ranks are beyond the core of that job" in left.cause.sentence
    w.ask(AskKind.CANCEL, "j-small")
    rounds(w, 5)
    assert w.stored["j-big"].granted == {"worker": 4}, "it grows back once nobody waits"


def test_the_core_is_never_given_to_an_equal_job_however_long_it_starves() -> None:
    w = pool(live(3, 4, 4))
    w.submit("j-small", gpus=2)
    w.tick(100 * STARVED_SECONDS)
    rounds(w, 4)
    assert (w.state("j-small"), w.stored["j-big"].granted) == (S.QUEUED, {"worker": 4}), "one rank does not suffice"


def test_a_service_that_may_borrow_nothing_keeps_nothing_from_a_job_of_its_shape_behind_it() -> None:
    w = pool(live(1, 4, 4, priority=1), order="fifo")  # it lends nothing to a service of priority 0
    service = {"role": {"replicas": {"min": 0, "want": 1, "max": 1}}, "kind": "inference", "service": {"ready": "/ok"}}
    w.submit("s-first", gpus=1, spec=service)
    w.submit("j-small", gpus=1, spec={"priority": 1})
    w.tick(STARVED_SECONDS)
    w.round()
    assert "j-small" in {step.cause.by for step in w.steps if step.cause.code is CauseCode.PREEMPTED}
    rounds(w)
    assert w.state("j-small") is S.RUNNING


def test_a_job_of_lower_priority_gets_nothing() -> None:
    w = pool(live(1, 4, 4, priority=1))
    w.submit("j-small", gpus=1)
    w.tick(100 * STARVED_SECONDS)
    rounds(w, 4)
    assert (w.state("j-small"), w.stored["j-big"].granted) == (S.QUEUED, {"worker": 4})


def test_a_job_that_may_not_be_preempted_keeps_its_ranks() -> None:
    w = pool(live(1, 4, 4, preemptible=False))
    w.submit("j-small", gpus=1)
    w.tick(100 * STARVED_SECONDS)
    rounds(w, 4)
    assert w.stored["j-big"].granted == {"worker": 4}


def test_ranks_beyond_what_the_user_wants_come_back_at_once_and_no_others() -> None:
    w = pool(live(1, 2, 4))
    w.scale("j-big", worker=4)  # as the planner does while GPUs idle
    rounds(w)
    assert w.stored["j-big"].granted == {"worker": 4}
    w.submit("j-first", gpus=2)
    rounds(w)
    assert (w.state("j-first"), w.stored["j-big"].granted) == (S.RUNNING, {"worker": 2})
    w.submit("j-second", gpus=1)
    rounds(w)
    assert (w.state("j-second"), w.stored["j-big"].granted) == (S.QUEUED, {"worker": 2}), "the rest is wanted"


def test_two_elastic_jobs_of_one_pool_do_not_take_turns_at_shrinking_each_other() -> None:
    w = pool(live(1, 4, 4))
    w.submit("j-other", gpus=1, spec=live(1, 4, 4))
    w.tick(STARVED_SECONDS)
    rounds(w)
    sizes = (w.stored["j-big"].granted, w.stored["j-other"].granted)
    assert sizes == ({"worker": 3}, {"worker": 1})
    before = len(w.steps)
    for _ in range(20):
        w.tick(STARVED_SECONDS)
        w.round()
    assert (w.stored["j-big"].granted, w.stored["j-other"].granted) == sizes
    assert [step for step in w.steps[before:] if step.event is JobEvent.RESIZED] == []


def offered(spec: dict[str, Any]) -> World:
    """The job has had time to be offered what idles of the four GPUs."""
    w = pool(spec)
    w.tick(OFFER_COOL_DOWN_SECONDS)
    rounds(w)
    return w


def test_idle_gpus_are_offered_to_a_live_job_up_to_its_maximum_and_come_back_at_once() -> None:
    w = pool(live(1, 2, 4))
    w.tick(OFFER_COOL_DOWN_SECONDS - 10.0)
    rounds(w)
    assert w.stored["j-big"].granted == {"worker": 2}, "it has only just started"
    w.tick(10.0)
    rounds(w)
    assert (w.stored["j-big"].granted, w.stored["j-big"].size) == ({"worker": 4}, {})
    (grew,) = [step for step in w.steps if step.cause.code is CauseCode.GREW]
    assert grew.cause.sentence == "worker 2 → 4, onto GPUs that no other job needs now"
    w.submit("j-small", gpus=1)
    rounds(w)
    assert (w.state("j-small"), w.stored["j-big"].granted) == (S.RUNNING, {"worker": 3})
    w.ask(AskKind.CANCEL, "j-small")
    rounds(w)
    assert w.stored["j-big"].granted == {"worker": 3}, "it is left alone for a while"


def test_a_job_below_its_size_gets_the_ranks_that_others_have_beyond_what_they_want() -> None:
    w = offered(live(1, 2, 4))
    assert w.stored["j-big"].granted == {"worker": 4}
    w.submit("j-other", gpus=1, spec=live(1, 2, 2))
    rounds(w, 4)
    assert (w.stored["j-big"].granted, w.stored["j-other"].granted) == ({"worker": 2}, {"worker": 2})
    left = [step.cause for step in w.steps if step.cause.code is CauseCode.PREEMPTED]
    assert "it has fewer ranks than it should have, and j-big has more than it wants" in left[-1].sentence


def test_nothing_is_offered_while_a_running_job_lacks_a_rank() -> None:
    """One GPU idles. It is too little for the other job's next rank, and is kept for it all the same."""
    w = pool(live(1, 1, 3, priority=1))
    w.submit("j-wide", gpus=2, spec=live(1, 2, 2))
    rounds(w)
    w.tick(OFFER_COOL_DOWN_SECONDS)
    rounds(w, 4)
    assert (w.stored["j-big"].granted, w.stored["j-wide"].granted) == ({"worker": 1}, {"worker": 1})
    w.ask(AskKind.CANCEL, "j-wide")
    rounds(w, 4)
    w.tick(OFFER_COOL_DOWN_SECONDS)
    rounds(w, 4)
    assert w.stored["j-big"].granted == {"worker": 3}


@pytest.mark.parametrize("kept", ["not preemptible", "a size was asked for"])
def test_a_job_that_would_not_give_it_back_is_offered_nothing(kept: str) -> None:
    w = pool(live(1, 3, 4, preemptible=kept != "not preemptible"))
    if kept == "a size was asked for":
        w.scale("j-big", worker=2)
        rounds(w)
    w.tick(100 * OFFER_COOL_DOWN_SECONDS)
    rounds(w, 4)
    assert w.stored["j-big"].granted == {"worker": 3 if kept == "not preemptible" else 2}


def test_a_job_keeps_the_size_that_was_asked_for_from_one_below_its_size() -> None:
    """Else the two would take turns for ever: the first would grow again onto what it gave up."""
    w = pool(live(1, 2, 4))
    w.scale("j-big", worker=3)
    rounds(w)
    w.submit("j-other", gpus=1, spec=live(1, 2, 2))
    rounds(w, 10)
    assert (w.stored["j-big"].granted, w.stored["j-other"].granted) == ({"worker": 3}, {"worker": 1})
