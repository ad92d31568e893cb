"""Who is served first, who preempts whom, and when that changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.builders import job
from tests.support.tier import examples
from weft.domain.job import JobState
from weft.planning import order
from weft.planning.jobs import standing_of
from weft.planning.order import (
    DRF,
    FAIR,
    FIFO,
    LAS,
    LAS_FIRST_GPU_SECONDS,
    LAS_GROWTH,
    LAS_LEVELS,
    LAS_PATIENCE,
    LAS_PATIENCE_SECONDS,
    PRIORITY,
    SHORT_PATIENCE,
    SHORT_PATIENCE_SECONDS,
    SIZE_PATIENCE_SECONDS,
    SRTF,
    Order,
    Standing,
    las_level,
)
from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS, Policy
from weft.planning.queue import Queue, place_of
from weft.planning.tiers import changes_at


def standing(name: str = "j", seq: int = 1, **fields: float | str | int | bool | None) -> Standing:
    made = replace(Standing(id=name, seq=seq, gpus=1), **fields)
    return replace(made, attained_gpu_s=made.attained_s * made.gpus)


def served(order: Order, *jobs: Standing) -> list[str]:
    return [job.id for job in sorted(jobs, key=lambda job: place_of(order, job))]


# all of them


def test_a_policy_is_called_by_its_three_names() -> None:
    policy = Policy("las", "weft-best", "easy")
    assert str(policy) == "las+weft-best+easy"
    assert [Policy(order=name).ordering.name for name in ORDERS] == list(ORDERS)
    assert set(ORDERS) == {"fifo", "srtf", "las", "drf", "fair", "priority"}
    assert set(BACKFILLS) == {"none", "easy", "conservative"}
    assert set(PLACEMENTS) >= {"packed", "packed-sticky", "random", "spread", "pm-first", "pal", "weft-best"}


@pytest.mark.parametrize("field", ["order", "placement", "backfill"])
def test_a_name_that_is_none_is_refused_with_those_that_are(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: no such {field} as 'best'; there are "):
        Policy(**{field: "best"})


@pytest.mark.parametrize("name", ORDERS)
def test_of_jobs_alike_the_older_is_served_first_and_then_the_id_decides(name: str) -> None:
    order = Policy(order=name).ordering
    assert served(order, standing("b", 2), standing("a", 3), standing("c", 1)) == ["c", "b", "a"]
    assert served(order, standing("b", 1), standing("a", 1)) == ["a", "b"]


@pytest.mark.parametrize("name", ORDERS)
def test_nobody_preempts_a_job_like_itself(name: str) -> None:
    preempts = Policy(order=name).ordering.preempts
    assert preempts is None or not preempts(standing("new", 9), standing("old", 1))


# fifo


def test_first_in_is_first_out_whatever_else_is_known_of_a_job() -> None:
    older = standing("older", 1, gpus=64, priority=-5, attained_s=1e6, left_s=1e6, share=1.0)
    assert served(FIFO, standing("newer", 2, priority=9, left_s=1.0), older) == ["older", "newer"]
    assert FIFO.preempts is None


# priority


def test_the_more_important_comes_first_and_preempts_the_less_important() -> None:
    high, low = standing("high", 9, priority=1), standing("low", 1)
    assert served(PRIORITY, low, high) == ["high", "low"]
    assert PRIORITY.preempts is not None
    assert PRIORITY.preempts(high, low)
    assert not PRIORITY.preempts(low, high)
    assert not PRIORITY.preempts(standing("other", 2, priority=1), high)


def test_within_one_priority_a_job_preempts_those_that_had_more_if_both_write_checkpoints() -> None:
    had = {"attained_s": LAS_FIRST_GPU_SECONDS + 1}
    old, fresh = standing("old", 1, checkpoints=True, **had), standing("fresh", 2, checkpoints=True)
    assert served(PRIORITY, old, fresh) == ["fresh", "old"]
    assert PRIORITY.preempts is not None
    assert PRIORITY.preempts(fresh, old)
    assert not PRIORITY.preempts(old, fresh)
    loses_all = replace(old, id="loses-all", checkpoints=False)
    assert not PRIORITY.preempts(fresh, loses_all), "it would lose all its work"
    assert not PRIORITY.preempts(replace(fresh, checkpoints=False), old), "nothing could ever be had back from it"
    assert served(PRIORITY, fresh, loses_all) == ["loses-all", "fresh"], "it begins again, as if it were new"
    assert PRIORITY.preempts(replace(fresh, checkpoints=False, priority=1), old)
    assert PRIORITY.preempts(replace(old, priority=1), replace(fresh, checkpoints=False))
    assert PRIORITY.changes_after_s(old) is not None
    assert PRIORITY.changes_after_s(loses_all) is None, "its tier stays as it is"


def test_within_a_level_the_smaller_job_comes_first_and_of_two_about_as_large_the_older() -> None:
    jobs = (
        standing("large", 1, gpus=8),
        standing("three", 2, gpus=3),
        standing("two", 3, gpus=2),
        standing("part", 4, gpus=0.5),
    )
    assert served(PRIORITY, *jobs) == ["part", "three", "two", "large"]
    assert served(PRIORITY, standing("urgent", 9, gpus=8, priority=1), *jobs)[0] == "urgent"


def test_a_large_job_that_ran_for_minutes_does_not_wait_a_day_to_count_as_new() -> None:
    ran = standing("ran", 1, gpus=16, checkpoints=True, attained_s=600.0, attained_gpu_s=9600.0, waited_s=600.0)
    assert las_level(ran) > 0
    assert PRIORITY.promotes_after_s(ran) == SHORT_PATIENCE * 600.0 - 600.0
    assert PRIORITY.promotes_after_s(replace(ran, attained_s=1.0)) == SHORT_PATIENCE_SECONDS - 600.0
    assert PRIORITY.promotes_after_s(replace(ran, attained_s=1e6)) == LAS.promotes_after_s(replace(ran, attained_s=1e6))
    assert PRIORITY.promotes_after_s(replace(ran, promoted=True)) is None


def test_a_new_job_comes_after_smaller_ones_for_some_hours_at_most() -> None:
    large, small = standing("large", 1, gpus=8, waited_s=100.0), standing("small", 2)
    assert PRIORITY.promotes_after_s(large) == SIZE_PATIENCE_SECONDS - 100.0
    assert served(PRIORITY, large, small) == ["small", "large"]
    assert served(PRIORITY, replace(large, promoted=True), small) == ["large", "small"]


# shortest remaining time


def test_the_shortest_comes_first_and_of_whom_nobody_knows_comes_last() -> None:
    jobs = (standing("unknown", 1), standing("long", 2, left_s=1e9), standing("short", 3, left_s=5.0))
    assert served(SRTF, *jobs) == ["short", "long", "unknown"]
    assert served(SRTF, standing("b", 2), standing("a", 1)) == ["a", "b"]


def test_a_job_preempts_one_that_still_needs_about_twice_as_long() -> None:
    assert SRTF.preempts is not None
    assert SRTF.preempts(standing(left_s=500.0), standing(left_s=1100.0))
    assert not SRTF.preempts(standing(left_s=600.0), standing(left_s=1000.0))  # less than twice
    assert SRTF.preempts(standing(left_s=1e12), standing())
    assert not SRTF.preempts(standing(), standing())


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_no_two_jobs_can_evict_each_other_in_turn(one: float, other: float) -> None:
    """A preempted job may come back only to who has become longer than it, and nothing grows longer by running."""
    assert SRTF.preempts is not None
    if SRTF.preempts(standing(left_s=one), standing(left_s=other)):
        assert one < other
    if other >= 2 * one and other >= 2:
        assert SRTF.preempts(standing(left_s=one), standing(left_s=other))


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(1, 1e9))
def test_a_running_jobs_tier_is_another_when_it_was_said_that_it_changes(left_s: float) -> None:
    after = SRTF.changes_after_s(standing(left_s=left_s))
    assert after is not None
    assert after > 0
    assert order._doublings(standing(left_s=left_s - after - 1e-3)) < order._doublings(standing(left_s=left_s))
    assert order._doublings(standing(left_s=left_s - after)) >= order._doublings(standing(left_s=left_s)) - 1


def test_a_job_at_its_end_and_one_of_which_nobody_knows_change_no_more() -> None:
    assert SRTF.changes_after_s(standing(left_s=0.5)) is None
    assert SRTF.changes_after_s(standing()) is None


# least attained service


def ends_of_levels() -> list[float]:
    return [LAS_FIRST_GPU_SECONDS * LAS_GROWTH**number for number in range(LAS_LEVELS - 1)]


def test_a_job_falls_to_the_next_level_at_its_end_and_the_last_has_none() -> None:
    for number, end in enumerate(ends_of_levels()):
        assert order.las_level(standing(attained_s=end * 0.999)) == number
        assert order.las_level(standing(attained_s=end)) == number + 1
    assert order.las_level(standing(attained_s=1e15)) == LAS_LEVELS - 1


def test_what_a_job_had_is_counted_in_gpu_seconds() -> None:
    assert order.las_level(standing(gpus=10, attained_s=LAS_FIRST_GPU_SECONDS / 10)) == 1
    assert order.las_level(standing(gpus=9, attained_s=LAS_FIRST_GPU_SECONDS / 10)) == 0


def test_who_had_little_comes_first_and_preempts_who_had_more_levels() -> None:
    fresh, old = standing("fresh", 9), standing("old", 1, attained_s=LAS_FIRST_GPU_SECONDS)
    assert served(LAS, old, fresh) == ["fresh", "old"]
    assert LAS.preempts is not None
    assert LAS.preempts(fresh, old)
    assert not LAS.preempts(old, fresh)


def test_within_a_level_the_oldest_comes_first_and_preempts_nobody() -> None:
    more, less = standing("more", 1, attained_s=LAS_FIRST_GPU_SECONDS * 0.9), standing("less", 2)
    assert served(LAS, less, more) == ["more", "less"]
    assert LAS.preempts is not None
    assert not LAS.preempts(less, more)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 64), st.floats(0, 1e6))
def test_a_running_job_is_in_the_next_level_when_it_was_said_that_it_will_be(gpus: int, attained_s: float) -> None:
    job = standing(gpus=gpus, attained_s=attained_s)
    after = LAS.changes_after_s(job)
    if after is None:
        assert order.las_level(job) == LAS_LEVELS - 1
        return
    assert after > 0
    assert order.las_level(standing(gpus=gpus, attained_s=attained_s + after + 1e-3)) == order.las_level(job) + 1
    assert order.las_level(
        standing(gpus=gpus, attained_s=max(attained_s, attained_s + after - 1e-3))
    ) == order.las_level(job)


def test_a_job_without_gpus_never_falls() -> None:
    assert LAS.changes_after_s(standing(gpus=0, attained_s=1e9)) is None


def test_a_job_of_the_first_level_has_no_promotion_to_wait_for() -> None:
    assert LAS.promotes_after_s(standing(waited_s=1e9)) is None


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_a_job_is_promoted_once_it_waited_long_against_what_it_had(attained_s: float, waited_s: float) -> None:
    job = standing(attained_s=LAS_FIRST_GPU_SECONDS + attained_s, waited_s=waited_s)
    after = LAS.promotes_after_s(job)
    assert after == max(LAS_PATIENCE_SECONDS, LAS_PATIENCE * job.attained_s) - waited_s
    assert after <= LAS.promotes_after_s(replace(job, waited_s=0.0))


@pytest.mark.parametrize("name", [name for name in ORDERS if name not in ("las", "priority")])
def test_no_other_order_promotes(name: str) -> None:
    assert Policy(order=name).ordering.promotes_after_s(standing(waited_s=1e12, attained_s=1e9)) is None


# dominant resource fairness


def test_the_tenant_that_holds_least_comes_first_then_who_is_important_then_who_is_old() -> None:
    assert DRF.by_share
    assert DRF.preempts is None
    poor, rich = standing("poor", 9, share=0.1), standing("rich", 1, share=0.2, priority=9)
    assert served(DRF, rich, poor) == ["poor", "rich"]
    assert served(DRF, standing("old", 1), standing("vip", 2, priority=1), standing("new", 3)) == ["vip", "old", "new"]


def test_drf_and_fair_are_the_only_orders_that_go_by_shares() -> None:
    assert [name for name in ORDERS if Policy(order=name).ordering.by_share] == ["drf", "fair"]


def test_what_one_tenant_takes_brings_another_forward_with_its_first_job_first() -> None:
    ranks = {"alice": 0.0, "bob": 0.0}
    queue = Queue(FAIR)
    for seq, tenant, gpus, priority in ((1, "bob", 1, 2), (2, "alice", 1, 1), (3, "bob", 4, 2), (4, "bob", 2, 0)):
        queue.add(standing(f"j-{seq}", seq, gpus=gpus, priority=priority, tenant=tenant), gpus)
    walk = queue.served(ranks.__getitem__)
    for job_id, after in (("j-1", {"bob": 1.0}), ("j-2", {"alice": 1.0, "bob": 0.0})):
        assert walk.next() == job_id
        queue.remove(job_id)
        ranks |= after
        walk.taken()
    assert walk.next() == "j-3"


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(10**9, 10**11).map(lambda micros: micros / 1e6))
def test_a_waiting_job_is_promoted_at_the_very_time_for_which_that_was_planned(since: float) -> None:
    """A difference of two times is not exact: at that time it may be a hair less than the patience."""
    waiting = replace(job(gpus=4), state=JobState.QUEUED, since=since)
    at = changes_at(since + SIZE_PATIENCE_SECONDS, now=since)
    assert at > since
    assert standing_of(waiting, at, PRIORITY).promoted
    assert not standing_of(waiting, at - 1.0, PRIORITY).promoted
