"""Throughput against size."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.tier import examples
from weft.messages.signals import Curve, CurvePoint
from weft.variability.curves import (
    CHANGE_MOST,
    POINTS_MAX,
    confidence_of,
    joined,
    measured,
    rounded,
    speed_at,
)


def point(
    replicas: int, cpus: float, speed: float, *, windows: int = 20, spread: float = 0.01, at: float = 0.0
) -> CurvePoint:
    return CurvePoint(replicas=replicas, cpus=cpus, speed=speed, windows=windows, spread=spread, at=at)


def curve(*points: CurvePoint) -> Curve:
    return Curve(subject="job:j", pool="default", points=points)


# points


def test_a_point_is_the_median_of_its_windows_whatever_single_ones_say() -> None:
    made = measured(2, 8.1, [100.0, 101.0, 99.0, 1000.0, nan, -5.0, inf, 0.0], at=7.0)
    assert made is not None
    assert (made.replicas, made.cpus, made.speed, made.windows, made.at) == (2, 8.0, 100.5, 4, 7.0)
    assert made.spread == pytest.approx(1 / 100.5, rel=0.5)
    assert measured(2, 8.0, [nan, -1.0], at=0.0) is None
    assert measured(0, 8.0, [1.0], at=0.0) is None
    assert measured(1, nan, [1.0], at=0.0) is None


def test_small_numbers_of_cpus_stay_apart() -> None:
    assert len({rounded(cpus) for cpus in (0.1, 0.2, 0.4, 1.0)}) == 4
    assert rounded(0.9) == rounded(1.1) == 1.0


def test_points_of_one_size_are_merged_by_their_windows() -> None:
    (merged,) = joined([point(2, 8, 100, windows=2)], [point(2, 8.1, 110, windows=2, at=5.0)])
    assert merged.speed == pytest.approx(105)
    assert (merged.windows, merged.at) == (4, 5.0)
    (merged,) = joined([point(2, 8, 100, windows=20)], [point(2, 8, 110, windows=2)])
    assert 100 < merged.speed < 101.5


def test_an_outlier_changes_little_and_a_change_is_followed() -> None:
    known: tuple[CurvePoint, ...] = (point(2, 8, 100),)
    (once,) = joined(known, [point(2, 8, 1000, windows=2)])
    assert once.speed < 100 * (1 + (CHANGE_MOST - 1) * 0.1)
    for _ in range(40):
        known = joined(known, [point(2, 8, 50, windows=2)])
    assert known[0].speed == pytest.approx(50, rel=0.05)


def test_points_are_bounded_and_the_oldest_go() -> None:
    many = [point(number, 1, 1.0, at=float(number)) for number in range(1, POINTS_MAX + 20)]
    kept = joined((), many)
    assert len(kept) == POINTS_MAX
    assert kept[0].replicas == 20


def test_more_windows_and_less_spread_are_surer() -> None:
    assert confidence_of(point(1, 1, 1, windows=2)) < confidence_of(point(1, 1, 1, windows=20))
    assert confidence_of(point(1, 1, 1, spread=0.3)) < 0.5 * confidence_of(point(1, 1, 1, spread=0.01))


# what to expect


def test_nothing_is_expected_of_nothing() -> None:
    assert speed_at(None, 2, 4.0) == (0.0, 0.0)
    assert speed_at(curve(), 2, 4.0) == (0.0, 0.0)
    assert speed_at(curve(point(1, 1, 1)), 0, 4.0) == (0.0, 0.0)
    assert speed_at(curve(point(1, 1, 1)), 1, nan) == (0.0, 0.0)


def test_what_was_measured_is_what_is_expected() -> None:
    known = curve(point(1, 4, 100), point(2, 8, 190), point(4, 16, 350))
    for one in known.points:
        assert speed_at(known, one.replicas, one.cpus) == (one.speed, confidence_of(one))


def test_between_two_sizes_it_is_interpolated_and_less_sure() -> None:
    known = curve(point(1, 4, 100), point(4, 16, 350))
    speed, sure = speed_at(known, 2, 8)
    assert speed == pytest.approx((100 * 350) ** 0.5)
    assert 0 < sure < confidence_of(known.points[0])


def test_beyond_them_it_goes_on_as_it_went() -> None:
    known = curve(point(1, 4, 100), point(2, 8, 180))
    speed, sure = speed_at(known, 4, 16)
    assert speed == pytest.approx(100 * 1.8**2)
    assert sure == pytest.approx(confidence_of(known.points[1]) / 2)
    assert speed_at(known, 8, 32)[1] < sure


def test_more_replicas_than_help_are_not_expected_to_help() -> None:
    known = curve(point(2, 8, 100), point(4, 16, 90))
    assert speed_at(known, 8, 32)[0] == pytest.approx(90)
    assert 90 < speed_at(known, 3, 12)[0] < 100


def test_cpus_are_interpolated_and_more_than_were_tried_promise_nothing() -> None:
    known = curve(point(2, 2, 40), point(2, 4, 80), point(2, 8, 100))
    assert speed_at(known, 2, 6)[0] == pytest.approx(90)
    assert speed_at(known, 2, 32)[0] == 100
    assert speed_at(known, 2, 1)[0] == pytest.approx(20)
    assert speed_at(curve(point(2, 4, 80)), 2, 1)[0] == pytest.approx(40), "half of it may be lost to CPU, or none"


SIZES = st.tuples(st.integers(1, 64), st.floats(0.5, 512.0), st.floats(0.01, 1e6), st.integers(1, 100))


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(SIZES, min_size=1, max_size=8), st.lists(SIZES, max_size=8), st.integers(1, 256), st.floats(0.5, 2048.0)
)
def test_it_is_never_faster_than_in_proportion_nor_surer_than_what_was_measured(
    own: list[tuple[int, float, float, int]], others: list[tuple[int, float, float, int]], replicas: int, cpus: float
) -> None:
    points = joined((), [point(r, c, s, windows=w) for r, c, s, w in own])
    prior = joined((), [point(r, c, s, windows=w) for r, c, s, w in others])
    speed, sure = speed_at(curve(*points), replicas, cpus, prior=curve(*prior))
    assert 0 < speed < inf
    assert 0 <= sure <= 1
    largest = max(one.replicas for one in points)
    best = max(one.speed for one in points if one.replicas == largest)
    if replicas > largest:
        assert speed <= best * replicas / largest * (1 + 1e-9)
    assert sure <= max(map(confidence_of, (*points, *prior))) + 1e-9


# the workload as a prior


def test_a_prior_alone_is_what_is_expected_and_less_sure() -> None:
    prior = curve(point(1, 4, 100), point(2, 8, 180))
    speed, sure = speed_at(None, 2, 8, prior=prior)
    assert speed == 180
    assert 0 < sure < 0.6 * confidence_of(prior.points[1])


def test_a_prior_is_scaled_to_the_jobs_own_points() -> None:
    prior = curve(point(1, 4, 100), point(2, 8, 180), point(4, 16, 300))
    own = curve(point(1, 4, 50))
    assert speed_at(own, 1, 4, prior=prior)[0] == pytest.approx(50)
    speed, sure = speed_at(own, 4, 16, prior=prior)
    alone, how_sure = speed_at(own, 4, 16)
    assert abs(speed - 150) < abs(alone - 150)
    assert sure > how_sure


def test_a_prior_never_promises_more_than_in_proportion() -> None:
    prior = curve(point(1, 4, 100), point(2, 8, 400))
    assert speed_at(curve(point(1, 4, 50)), 2, 8, prior=prior)[0] <= 100


# what a node reports may be anything


ANY_SPEED = st.one_of(st.floats(0.0, 1e308), st.sampled_from([5e-324, 1e-300, 1e-9, 1.0, 1e15, 1e300, inf]))


@settings(max_examples=examples(200), deadline=None)
@given(
    told=st.lists(st.tuples(st.integers(1, 8), st.lists(ANY_SPEED, min_size=1, max_size=4)), min_size=1, max_size=8),
    others=st.lists(st.tuples(st.integers(1, 8), ANY_SPEED, st.floats(0.0, 1e308)), max_size=4),
    replicas=st.integers(1, 4096),
)
def test_whatever_speeds_nodes_report_an_expected_speed_is_a_number(
    told: list[tuple[int, list[float]]], others: list[tuple[int, float, float]], replicas: int
) -> None:
    """A node that reported 1 sample a second of a job, and then 1e300, ended the reallocator with each plan."""
    points: tuple[CurvePoint, ...] = ()
    for size, speeds in told:
        made = measured(size, size * 4.0, speeds, at=0.0)
        points = joined(points, () if made is None else [made])
    stored = [point(size, size * 4.0, speed, spread=spread) for size, speed, spread in others]
    for own, prior in ((points, stored), (stored, points)):
        speed, sure = speed_at(curve(*own), replicas, replicas * 4.0, prior=curve(*prior))
        assert 0.0 <= speed < inf
        assert 0.0 <= sure <= 1.0
    assert all(0.0 <= confidence_of(one) <= 1.0 for one in (*points, *stored))


# models of GPUs


def test_points_on_other_models_are_kept_apart_and_count_only_by_the_ratio_of_the_models() -> None:
    slow, fast = (replace(point(2, 2, speed), model=model) for model, speed in (("T4", 10.0), ("A100", 40.0)))
    kept = joined([slow], [fast, replace(slow, speed=12.0)])
    assert {one.model: one.windows for one in kept} == {"A100": fast.windows, "T4": 2 * slow.windows}
    both = Curve(subject="job:j", pool="p", points=(slow, fast))
    assert [speed_at(both, 2, 2.0, model=model)[0] for model in ("T4", "A100")] == [10.0, 40.0]
    alone = Curve(subject="job:j", pool="p", points=(slow,))
    assert speed_at(alone, 2, 2.0, model="A100") == (0.0, 0.0), "nothing is known of how the models compare"
    speed, sure = speed_at(alone, 2, 2.0, model="A100", ratios={"T4": 1.0, "A100": 3.0})
    assert speed == 30.0
    assert 0.0 < sure < speed_at(alone, 2, 2.0, model="T4")[1]
    unknown = Curve(subject="job:j", pool="p", points=(point(2, 2, 10.0),))
    assert speed_at(unknown, 2, 2.0, model="A100")[0] == 10.0, "a point of an unknown model is one of every model"
