"""What a run tells of its steps becomes a pace: robust, bounded, never staying where it was when a run falls silent."""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weftd.executor.thinking.pace import NAME_BYTES_MAX, NAMES_MAX, WINDOW_SECONDS, Pacer, slope, spread


def told(*points: tuple[float, Mapping[str, float]]) -> Pacer:
    pacer = Pacer()
    for at, line in points:
        pacer.tell([line], at=at)
    return pacer


def steady(*, seconds: float, steps: int, begin: int = 0, **more: float) -> list[tuple[float, dict[str, float]]]:
    return [(place * seconds, {"step": float(begin + place), **more}) for place in range(steps)]


def test_nothing_told_or_one_step_is_no_pace() -> None:
    assert told().pace(5.0) is None
    assert told((0.0, {"step": 1.0})).pace(1.0) is None
    assert told((0.0, {"step": 1.0})).pace(1e6) is None
    assert told((0.0, {"loss": 1.0}), (1.0, {"loss": 2.0})).pace(1.0) is None


def test_single_steps_tell_their_rate_their_time_and_their_spread() -> None:
    pace = told(*steady(seconds=0.25, steps=81)).pace(20.0)
    assert pace is not None
    assert (pace.window_seconds, pace.steps, pace.steps_rate) == (20.0, 80, 4.0)
    assert (pace.step_seconds, pace.step_spread, pace.samples_rate, pace.phases) == (0.25, 0.0, None, {})


def test_a_burst_is_one_point_and_a_steps_time_is_the_time_between_bursts_over_their_steps() -> None:
    pacer = Pacer()
    for burst in range(20):
        lines = [{"step": 50.0 * burst + step, "samples": 8 * (50.0 * burst + step)} for step in range(50)]
        pacer.tell(lines, at=0.5 * burst)
    pace = pacer.pace(10.0)
    assert pace is not None
    assert (pace.steps_rate, pace.samples_rate, pace.step_seconds) == (100.0, 800.0, 0.01)


def test_what_a_run_measures_itself_counts_more_than_when_its_lines_came() -> None:
    lines = [(float(place), {"step": float(place), "t_compute": 0.4, "t_wait": 0.5}) for place in range(10)]
    pace = told(*lines).pace(9.0)
    assert pace is not None
    assert (pace.step_seconds, pace.steps_rate) == (0.4, 1.0)
    assert pace.phases == {"t_compute": 0.4, "t_wait": 0.5}


def test_phases_told_on_a_line_of_their_own_belong_to_the_next_step() -> None:
    pacer = told((0.0, {"step": 1.0}), (0.5, {"t_data": 0.2}), (1.0, {"step": 2.0}))
    pace = pacer.pace(1.0)
    assert pace is not None
    assert pace.phases == {"t_data": 0.2}


def test_single_steps_that_took_thrice_as_long_change_nothing_much() -> None:
    clock, pacer = 0.0, Pacer()
    for step in range(100):
        clock += 0.6 if step % 10 == 3 else 0.2
        pacer.tell([{"step": float(step)}], at=clock)
    pace = pacer.pace(clock)
    assert pace is not None
    assert pace.step_seconds == pytest.approx(0.2)
    assert pace.step_spread == pytest.approx(0.0, abs=1e-6)


def test_noise_is_told_as_spread() -> None:
    rng, clock, pacer = random.Random(7), 0.0, Pacer()
    for step in range(100):
        pacer.tell([{"step": float(step)}], at=clock)
        clock += rng.uniform(0.2, 0.4)
    pace = pacer.pace(clock)
    assert pace is not None
    assert pace.steps_rate == pytest.approx(1 / 0.3, rel=0.05)
    assert pace.step_spread == pytest.approx(0.05 / 0.3, rel=0.3)


def test_a_run_that_turns_slow_is_said_to_be_slow_within_a_window() -> None:
    pacer = told(*steady(seconds=0.5, steps=100))
    for step in range(100, 140):
        pacer.tell([{"step": float(step)}], at=49.5 + (step - 99) * 1.0)
    pace = pacer.pace(49.5 + 40)
    assert pace is not None
    assert (pace.steps_rate, pace.step_seconds) == (1.0, 1.0)


def test_a_step_that_goes_back_begins_a_new_window() -> None:
    pacer = told(*steady(seconds=0.5, steps=20))
    pacer.tell([{"step": 5.0}], at=20.0)
    assert pacer.pace(20.0) is None
    assert (pacer.values["step"], pacer.disbelieved) == (5.0, 1)
    for place in range(1, 10):
        pacer.tell([{"step": 5.0 + place}], at=20.0 + 2 * place)
    pace = pacer.pace(38.0)
    assert pace is not None
    assert (pace.steps, pace.steps_rate, pace.window_seconds) == (9, 0.5, 18.0)


def test_steps_and_samples_that_are_counted_anew_in_each_epoch_are_no_nonsense() -> None:
    pacer = Pacer()
    for place in range(40):
        epoch, step = divmod(place, 10)
        pacer.tell([{"epoch": float(epoch), "step": float(step), "samples": 8.0 * step + 8}], at=float(place))
    pace = pacer.pace(39.0)
    assert pace is not None
    assert (pace.steps_rate, pace.samples_rate, pacer.disbelieved) == (1.0, 8.0, 0)


def test_a_silent_run_keeps_its_pace_for_a_window_and_then_has_none() -> None:
    pacer = told(*((at, {**line, "samples": at}) for at, line in steady(seconds=0.1, steps=300)))
    last = 29.9
    before = pacer.pace(last + WINDOW_SECONDS - 0.1)
    assert before is not None
    assert before.steps_rate == pytest.approx(10.0)
    after = pacer.pace(last + WINDOW_SECONDS + 0.1)
    assert after is not None
    assert (after.steps, after.steps_rate, after.samples_rate, after.step_seconds) == (0, 0.0, 0.0, 0.0)
    assert pacer.pace(last + 1e6) == after
    pacer.tell([{"step": 400.0}], at=last + 100.0)
    assert pacer.pace(last + 100.0) is None
    pacer.tell([{"step": 401.0}], at=last + 101.0)
    again = pacer.pace(last + 101.0)
    assert again is not None
    assert again.steps_rate == 1.0


def test_a_run_that_tells_the_same_step_again_and_again_is_silent() -> None:
    pacer = told(*steady(seconds=0.1, steps=30))
    for place in range(60):
        pacer.tell([{"step": 29.0, "loss": float(place)}], at=3.0 + place)
    pace = pacer.pace(63.0)
    assert pace is not None
    assert pace.steps == 0


def test_a_run_whose_steps_take_a_minute_has_a_pace_too_and_is_silent_only_after_some_of_them() -> None:
    pacer = told(*steady(seconds=60.0, steps=6))
    pace = pacer.pace(340.0)
    assert pace is not None
    assert (pace.steps_rate, pace.step_seconds) == (pytest.approx(1 / 60, rel=1e-4), 60.0)
    silent = pacer.pace(300.0 + 181.0)
    assert silent is not None
    assert silent.steps == 0


def asked_always(pacer: Pacer, steps: Sequence[tuple[float, float]], *, until: float) -> dict[float, float | None]:
    """Its pace is asked for every two seconds, as an executor does: steps a second, None where no pace is known."""
    rates: dict[float, float | None] = {}
    left = list(steps)
    for now in range(0, int(until) + 1, 2):
        while left and left[0][0] <= now:
            at, step = left.pop(0)
            pacer.tell([{"step": step}], at=at)
        pace = pacer.pace(float(now))
        rates[float(now)] = None if pace is None else pace.steps_rate
    return rates


SLOW = pytest.approx(1 / 45, rel=1e-4)


def test_a_run_that_tells_a_line_every_45_seconds_has_a_pace_from_the_second_on() -> None:
    rates = asked_always(Pacer(), [(45.0 * place, float(place)) for place in range(20)], until=900.0)
    assert [rate for now, rate in rates.items() if now >= 46.0] == [SLOW] * 428


def test_a_slow_run_whose_counter_starts_anew_keeps_a_pace() -> None:
    rates = asked_always(Pacer(), [(45.0 * place, float(place % 10)) for place in range(30)], until=1300.0)
    assert 0.0 not in rates.values()
    known = [rate for now, rate in rates.items() if 496.0 <= now < 900.0]  # 450 is step 0 again
    assert known == [SLOW] * len(known)
    assert known


def test_a_slow_run_that_paused_is_told_as_stopped_and_has_a_pace_again() -> None:
    before, after = [(45.0 * place, float(place)) for place in range(8)], 315.0 + 180.0
    steps = [*before, *((after + 45.0 * place, 8.0 + place) for place in range(20))]
    rates = asked_always(Pacer(), steps, until=1300.0)
    assert rates[after - 1.0] == 0.0
    known = [rate for now, rate in rates.items() if now >= after + 46.0]
    assert known == [SLOW] * len(known)


def test_a_run_that_became_slow_all_at_once_has_a_pace_again() -> None:
    steps = [(float(place), float(place)) for place in range(60)]
    rates = asked_always(Pacer(), [*steps, *((60.0 + 45.0 * place, 60.0 + place) for place in range(20))], until=900.0)
    known = [rate for now, rate in rates.items() if now >= 400.0]
    assert known == [SLOW] * len(known)


def test_a_slow_run_of_two_lines_at_a_time_is_not_silent_between_them() -> None:
    """Each read by itself, so that they are two points, near to each other."""
    steps = [(45.0 * place + more, 2.0 * place + more) for place in range(20) for more in (0, 1)]
    rates = asked_always(Pacer(), steps, until=890.0)
    assert 0.0 not in [rate for now, rate in rates.items() if now >= 46.0]


@pytest.mark.parametrize("begin", [0.0, 500.0])
def test_a_slow_run_that_stops_after_its_counter_started_anew_is_told_as_stopped(begin: float) -> None:
    steps = [(45.0 * place, begin + place) for place in range(8)]
    rates = asked_always(Pacer(), [*steps, (360.0, 0.0), (405.0, 1.0)], until=1200.0)
    assert rates[406.0] == SLOW
    assert [rate for now, rate in rates.items() if now > 405.0 + 3 * 45.0] == [0.0] * len(range(542, 1201, 2))


def test_after_a_pause_a_fast_run_that_stops_is_soon_told_as_stopped() -> None:
    before, after = [(0.5 * place, float(place)) for place in range(100)], 400.0
    steps = [*before, *((after + 0.5 * place, 100.0 + place) for place in range(20))]
    rates = asked_always(Pacer(), steps, until=500.0)
    assert rates[410.0] == 2.0
    assert rates[after + 10.0 + WINDOW_SECONDS + 2.0] == 0.0


def test_who_stops_at_its_first_step_after_a_pause_is_told_as_stopped_in_ten_minutes() -> None:
    steps = [(float(place), float(place)) for place in range(60)]
    rates = asked_always(Pacer(), [*steps, (1000.0, 60.0)], until=1700.0)
    assert rates[998.0] == 0.0
    assert rates[1602.0] == 0.0


@pytest.mark.parametrize(
    "line",
    [{"step": -1.0}, {"step": math.nan}, {"step": math.inf}, {"step": 2e12}, {"samples": -5.0}, {"t_compute": -0.1},
     {"t_data": math.nan}, {"loss": math.nan}, {"samples": 1e300}],
)  # fmt: skip
def test_nonsense_is_counted_and_changes_nothing(line: dict[str, float]) -> None:
    pacer = told(*steady(seconds=1.0, steps=10, loss=0.5))
    before, values = pacer.pace(9.0), dict(pacer.values)
    pacer.tell([line], at=9.5)
    assert (pacer.pace(9.5), pacer.values, pacer.disbelieved) == (before, values, 1)


def test_a_million_lines_a_second_take_no_more_room_than_a_few() -> None:
    pacer = Pacer()
    for place in range(10_000):
        pacer.tell([{"step": float(place), f"name-{place}": 1.0, f"t_{place}": 1.0}], at=place * 0.01)
    assert len(pacer.values) <= 34
    pace = pacer.pace(100.0)
    assert pace is not None
    assert pace.steps_rate == pytest.approx(100.0)
    assert pace.window_seconds <= WINDOW_SECONDS
    assert len(pace.phases) <= NAMES_MAX


def test_names_that_are_long_are_ignored_so_that_a_report_of_many_ranks_stays_small() -> None:
    long = {f"{letter * 60}{number}": 1.0 for letter in ("a" * 1000, "ä", "a") for number in range(100)}
    pacer = told((0.0, {"step": 1.0, "loss": 0.5}), (1.0, long), (2.0, {"step": 2.0}))
    assert (pacer.values["step"], pacer.values["loss"]) == (2.0, 0.5)
    assert len(msgspec.json.encode(pacer.values)) < NAMES_MAX * 100
    assert all(name.isascii() and len(name) <= NAME_BYTES_MAX for name in pacer.values)


def test_a_long_name_takes_no_room_from_those_that_follow() -> None:
    pacer = told((0.0, {f"{'x' * 65}{number}": 1.0 for number in range(100)}), (1.0, {"loss": 0.5}))
    assert pacer.values == {"loss": 0.5}


LINES = st.dictionaries(
    st.sampled_from(["step", "samples", "t_compute", "t_x", "epoch", "loss"]), st.floats(width=64), max_size=4
)


@example([(0.0, {"step": 0.0}), (2.0, {"step": 1e-308})])
@given(st.lists(st.tuples(st.floats(0, 100), LINES), max_size=60))
def test_whatever_is_told_a_pace_is_finite_and_not_negative(points: list[tuple[float, dict[str, float]]]) -> None:
    pacer, now = Pacer(), 0.0
    for seconds, line in points:
        now += seconds
        pacer.tell([line], at=now)
        pace = pacer.pace(now)
        if pace is not None:
            numbers = [pace.window_seconds, pace.steps_rate, pace.samples_rate or 0.0, pace.step_seconds]
            numbers += [pace.step_spread, float(pace.steps), *pace.phases.values()]
            assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert all(math.isfinite(value) for value in pacer.values.values())


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20, unique=True),
    st.floats(-100, 100),
    st.floats(-100, 100),
)
def test_the_slope_of_a_line_is_its_slope(places: list[float], rise: float, begin: float) -> None:
    whole = sorted({float(round(place)) for place in places})
    points = [(place, begin + rise * place) for place in whole]
    found = slope(points)
    assert found is None if len(whole) < 2 else found == pytest.approx(rise, abs=1e-6)


def test_a_third_of_the_points_may_lie() -> None:
    points = [(float(place), 2.0 * place + (1000.0 if place % 7 == 0 else 0.0)) for place in range(200)]
    assert slope(points) == pytest.approx(2.0, rel=0.05)


def test_spread_is_of_the_middle() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    assert spread(values) == median([2.0, 1.0, 0.0, 1.0, 97.0]) / 3.0
    assert spread([0.0, 0.0]) == 0.0
