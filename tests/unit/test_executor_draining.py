"""How long a run may finish its requests before it is stopped: by what routers say, and by the time."""

import math

import pytest

from weft.messages.serving import ReplicaServed, ServiceServed, ServicesServed
from weftd.executor.runs import RunKey
from weftd.executor.thinking.draining import ALONE_SECONDS, HEARD_SECONDS, ROUTER_SECONDS, ROUTERS_MAX, Draining

KEY = RunKey("job-1", 1, 3)


def said(
    in_flight: int | None = 0,
    *,
    draining: bool = True,
    router: str = "r-1",
    seq: int = 1,
    boot: str = "b",
    part: int = 0,
    parts: int = 1,
    job: str = "job-1",
) -> ServicesServed:
    """`in_flight` None: this replica is left out."""
    replica = ReplicaServed(epoch=1, rank=3, in_flight=in_flight or 0, draining=draining)
    services = (ServiceServed(job_id=job, replicas=() if in_flight is None else (replica,)),)
    return ServicesServed(router=router, boot=boot, seq=seq, at=0.0, part=part, parts=parts, services=services)


def begun(seconds: float = 30.0, *, routers: tuple[str, ...] = ()) -> Draining:
    """A drain that began at 100, with routers that were heard a moment before."""
    draining = Draining()
    for router in routers:
        draining.heard(said(None, router=router, seq=0), 99.5)
    assert draining.begin(KEY, seconds, 100.0)
    return draining


def test_without_a_router_a_run_waits_for_a_moment_only() -> None:
    draining = begun()
    assert not draining.over(KEY, 100.0 + ALONE_SECONDS - 0.01)
    assert draining.over(KEY, 100.0 + ALONE_SECONDS)


def test_an_executor_that_has_just_started_waits_until_it_would_have_heard_a_router() -> None:
    draining = begun()
    draining.listens_since = 99.0
    assert not draining.over(KEY, 99.0 + HEARD_SECONDS - 0.01)
    assert draining.over(KEY, 99.0 + HEARD_SECONDS)


def test_a_run_is_stopped_as_soon_as_every_router_has_no_request_there() -> None:
    draining = begun(routers=("r-1", "r-2"))
    assert not draining.over(KEY, 101.0)
    assert draining.heard(said(0, router="r-1"), 101.0)
    assert not draining.over(KEY, 101.0)
    assert draining.heard(said(0, router="r-2"), 101.1)
    assert draining.over(KEY, 101.1)


def test_requests_in_flight_are_waited_for_and_no_longer_than_the_bound() -> None:
    draining = begun(10.0, routers=("r-1",))
    for second in range(10):
        draining.heard(said(2, seq=second + 1), 100.0 + second)
        assert not draining.over(KEY, 100.0 + second)
    assert draining.over(KEY, 110.0)


def test_a_router_that_still_gives_it_requests_is_waited_for_though_none_is_in_flight() -> None:
    draining = begun(routers=("r-1",))
    draining.heard(said(0, draining=False), 101.0)
    assert not draining.over(KEY, 101.0)


def test_a_router_that_had_none_and_has_some_again_is_waited_for() -> None:
    draining = begun(routers=("r-1",))
    draining.heard(said(0), 101.0)
    draining.heard(said(1, seq=2), 101.5)
    assert not draining.over(KEY, 101.5)


def test_what_was_sent_before_the_news_of_the_drain_does_not_count_as_leaving_out() -> None:
    draining = begun(routers=("r-1",))
    draining.heard(said(None), 100.1)
    assert not draining.over(KEY, 100.2)
    draining.heard(said(None, seq=2), 100.3)
    assert draining.over(KEY, 100.3)


def test_a_run_is_left_out_only_by_all_parts_of_what_a_router_says() -> None:
    draining = begun(routers=("r-1",))
    draining.heard(said(None, seq=2, parts=3), 101.0)
    draining.heard(said(None, seq=2, part=1, parts=3), 101.0)
    assert not draining.over(KEY, 101.0)
    draining.heard(said(None, seq=3, part=2, parts=3), 102.0)
    assert not draining.over(KEY, 102.0), "that is a part of another message"
    for part in (0, 1):
        draining.heard(said(None, seq=3, part=part, parts=3, job="job-2"), 102.0)
    assert draining.over(KEY, 102.0)


def test_a_router_that_fell_silent_is_not_waited_for() -> None:
    draining = begun(routers=("r-1",))
    assert not draining.over(KEY, 99.5 + ROUTER_SECONDS)
    assert draining.over(KEY, 99.6 + ROUTER_SECONDS)


@pytest.mark.parametrize("seconds", [0.0, -1.0, -math.inf, math.nan])
def test_a_drain_that_is_no_time_does_not_wait(seconds: float) -> None:
    assert begun(seconds, routers=("r-1",)).over(KEY, 100.0)


def test_no_drain_lasts_for_ever() -> None:
    draining = begun(math.inf, routers=("r-1",))
    for second in range(3600):
        draining.heard(said(1, seq=second + 1), 100.0 + second)
    assert draining.over(KEY, 3700.0)


def test_a_drain_begins_once_and_anew_after_the_run_was_ordered_again() -> None:
    draining = begun(routers=("r-1",))
    assert not draining.begin(KEY, 30.0, 105.0)
    draining.heard(said(0), 101.0)
    draining.keep(set())
    assert draining.begin(KEY, 30.0, 102.0)
    assert not draining.over(KEY, 102.0), "what a router said of the earlier drain does not count"


def test_a_leaving_node_hurries() -> None:
    draining = begun(600.0, routers=("r-1",))
    draining.hurry(2.0)
    draining.heard(said(1), 101.9)
    assert not draining.over(KEY, 101.9)
    assert draining.over(KEY, 102.0)


def test_very_many_routers_are_not_all_remembered() -> None:
    draining = Draining()
    for number in range(ROUTERS_MAX * 3):
        draining.heard(said(None, router=f"r-{number}"), float(number))
    assert len(draining._routers) == ROUTERS_MAX
    assert "r-0" not in draining._routers
