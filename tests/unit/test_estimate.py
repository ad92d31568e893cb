"""What is believed of a GPU's speed, as its step times come in."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tier import examples
from weft.variability.estimate import (
    AGREEING,
    AGREEING_MAX,
    FAR,
    HALF_LIFE_S,
    ONE_WITNESS_QUARANTINE_S,
    PRIOR_SAMPLES,
    QUARANTINE_S,
    QUARANTINE_S_MAX,
    SUDDEN,
    ScoreEstimate,
    observed,
)

STEP_S = 60.0


def after(known: ScoreEstimate, *samples: float, begins: float = 0.0) -> ScoreEstimate:
    """Samples one minute apart, the first a minute after `begins`."""
    for number, sample in enumerate(samples, 1):
        known = observed(known, sample, begins + number * STEP_S)
    return known


def usual(count: int = 20, prior: float = 1.0) -> ScoreEstimate:
    return after(ScoreEstimate(prior=prior), *([prior] * count))


# what is believed of whom nothing was measured


def test_a_gpu_that_was_never_measured_counts_as_it_is_believed_to_be_beforehand() -> None:
    assert ScoreEstimate().score(0.0) == 1.0
    assert ScoreEstimate(prior=1.3).score(1e9) == 1.3
    assert ScoreEstimate(prior=1.3).confidence(0.0) == 0.0


def test_more_samples_count_more_against_what_is_believed_beforehand() -> None:
    known = after(ScoreEstimate(prior=1.0), 1.05)
    assert known.score(STEP_S) == pytest.approx(1 + 0.05 / (1 + PRIOR_SAMPLES))
    scores = [after(ScoreEstimate(prior=1.0), *([1.05] * count)).score(count * STEP_S) for count in range(1, 30)]
    assert scores == sorted(scores)
    assert scores[-1] == pytest.approx(1.05, abs=0.005)


# noise and transients


def test_the_first_samples_are_averaged_and_later_a_slow_drift_is_followed() -> None:
    known = after(ScoreEstimate(prior=1.0), 0.98, 1.02, 1.0, 1.0)
    assert known.value == pytest.approx(1.0)
    drifting = [1.0 + number * 0.002 for number in range(60)]
    assert after(known, *drifting, begins=240).value == pytest.approx(drifting[-1], abs=0.03)


@pytest.mark.parametrize("sample", [3.0, 1.5, 0.3])
def test_one_transient_sample_brands_nobody(sample: float) -> None:
    known = usual()
    once = after(known, sample, begins=known.at_s)
    now = once.at_s
    assert once.value == known.value
    assert once.score(now) == known.score(now)
    assert not once.quarantined(now + 1.0)
    again = after(once, 1.0, begins=known.at_s + STEP_S)
    assert again.odd == ()
    assert again.value == pytest.approx(1.0)


def test_transients_that_come_now_and_then_brand_nobody_either() -> None:
    known = after(usual(), *([3.0, *[1.0] * 5] * 20), begins=20 * STEP_S)
    assert known.value == pytest.approx(1.0)
    assert known.quarantines == 0


def test_samples_that_are_far_from_each_other_agree_on_nothing() -> None:
    known = after(usual(), 3.0, 1.5, 2.2, begins=20 * STEP_S)
    assert known.value == pytest.approx(1.0)
    assert known.odd == (1.5, 2.2)[-AGREEING:]


# changes


@pytest.mark.parametrize("slow", [1.2, 1.4, 0.8])
def test_a_gpu_of_another_speed_is_known_once_enough_samples_agree(slow: float) -> None:
    known = usual()
    changed = after(known, *([slow] * AGREEING), begins=known.at_s)
    assert changed.value == pytest.approx(slow)
    assert changed.samples == AGREEING
    assert not changed.quarantined(changed.at_s)
    assert changed.score(changed.at_s) == pytest.approx(1 + (slow - 1) * AGREEING / (AGREEING + PRIOR_SAMPLES))
    assert after(known, *([slow] * (AGREEING - 1)), begins=known.at_s).value == known.value


def test_a_gpu_far_from_what_is_believed_beforehand_is_believed_after_agreeing_samples_too() -> None:
    assert after(ScoreEstimate(prior=1.0), 1.3).score(STEP_S) == 1.0
    assert after(ScoreEstimate(prior=1.0), *([1.3] * AGREEING)).value == pytest.approx(1.3)


def test_a_change_is_followed_by_another() -> None:
    known = after(usual(), *([1.3] * 10), *([1.0] * 10), begins=20 * STEP_S)
    assert known.value == pytest.approx(1.0)


# quarantine


def quarantined(times: int = 1) -> ScoreEstimate:
    known = usual()
    for before in range(times):
        known = after(known, *([1.0] * (AGREEING + before)), *([SUDDEN * 1.1] * AGREEING), begins=known.at_s)
    return known


def test_a_gpu_that_turned_slow_all_at_once_is_quarantined_and_then_let_back_in() -> None:
    known = quarantined()
    until = known.at_s + QUARANTINE_S
    assert known.quarantined_until_s == until
    assert known.quarantined(until - 1)
    assert known.score(until - 1) == known.value == pytest.approx(SUDDEN * 1.1)
    assert not known.quarantined(until)
    assert known.score(until) < known.value
    assert known.score(until) > 1.0


def test_in_quarantine_it_counts_as_slow_as_it_was_however_few_samples_say_so() -> None:
    known = quarantined()
    assert known.samples == AGREEING
    assert known.score(known.at_s) == known.value


def test_one_that_is_measured_to_be_well_again_is_let_out_at_once() -> None:
    known = quarantined()
    well = after(known, *([1.0] * AGREEING), begins=known.at_s)
    assert not well.quarantined(well.at_s)
    assert well.score(well.at_s) == pytest.approx(1.0)
    assert well.quarantines == 1


@pytest.mark.parametrize("slow", [1.25, 1.4, 2.0])
def test_samples_that_agree_on_another_slow_value_do_not_let_it_out(slow: float) -> None:
    known = quarantined()
    still = after(known, *([slow] * AGREEING), begins=known.at_s)
    assert still.quarantined_until_s == known.quarantined_until_s
    assert still.score(still.at_s) == still.value == pytest.approx(slow)


def test_the_more_often_it_was_quarantined_the_more_samples_must_agree_that_it_is_well() -> None:
    for times in range(1, 20):
        known = quarantined(times)
        needed = min(AGREEING + times - 1, AGREEING_MAX)
        assert after(known, *([1.0] * (needed - 1)), begins=known.at_s).quarantined(known.at_s + needed * STEP_S)
        assert not after(known, *([1.0] * needed), begins=known.at_s).quarantined(known.at_s + needed * STEP_S)


def test_one_that_becomes_well_little_by_little_is_let_out_too() -> None:
    known = quarantined()
    for number in range(400):
        known = after(known, max(1.0, known.value * 0.97), begins=known.at_s)
        assert number < 399
        if known.value < 1 + FAR:
            break
    assert not known.quarantined(known.at_s)


# samples that are worth less, or more, and who told them


def weighed(known: ScoreEstimate, sample: float, *weights: float, witness: str = "") -> ScoreEstimate:
    for weight in weights:
        known = observed(known, sample, known.at_s + STEP_S, weight=weight, witness=witness)
    return known


def test_so_many_more_faint_samples_must_agree() -> None:
    assert weighed(usual(), 1.3, *([0.25] * 7)).value == pytest.approx(1.0)
    assert weighed(usual(), 1.3, *([0.25] * 8)).value == pytest.approx(1.3)
    assert weighed(usual(), 1.3, *([0.1] * 20)).value == pytest.approx(1.3)


def test_one_sample_that_is_worth_many_is_believed_at_once() -> None:
    known = weighed(usual(), 1.3, 6.0)
    assert known.value == pytest.approx(1.3)
    assert known.confidence(known.at_s) == pytest.approx(6 / (6 + PRIOR_SAMPLES))


def test_a_faint_sample_that_all_is_as_before_does_not_undo_a_strong_one_that_it_is_not() -> None:
    known = weighed(weighed(weighed(usual(), 1.3, 1.0), 1.3, 0.5), 1.0, 0.1)
    assert known.odd == (1.3,)
    assert weighed(known, 1.0, 1.0).odd == ()


def test_faint_samples_are_never_worth_more_than_they_may_be_however_many_there_are() -> None:
    known = ScoreEstimate()
    for number in range(200):
        known = observed(known, 1.3, number * STEP_S, weight=0.2, weight_most=2.0)
    assert known.value == pytest.approx(1.3)
    assert known.confidence(known.at_s) == pytest.approx(0.5)
    strong = observed(known, 1.3, known.at_s + 1, weight=1.0)
    assert observed(strong, 1.3, strong.at_s + 1, weight=0.2, weight_most=2.0).weight == strong.weight


def test_what_one_run_alone_says_is_forgotten_sooner_and_what_two_say_is_not() -> None:
    known = usual()
    alone = weighed(known, 2.0, 1.0, 1.0, 1.0, witness="j-1/1")
    assert alone.quarantined_until_s - alone.at_s < ONE_WITNESS_QUARANTINE_S
    later = alone.at_s + 2 * 3600
    assert not alone.quarantined(later)
    assert alone.score(later) < 1.1
    both = weighed(alone, 2.0, 1.0, witness="j-2/1")
    assert both.score(both.at_s + 2 * 3600) > 1.5


def test_one_that_is_said_to_be_well_again_is_so_for_long_whoever_says_it() -> None:
    well = weighed(weighed(usual(prior=1.0), 2.0, 1.0, 1.0, witness="j-1/1"), 1.0, 1.0, 1.0, witness="j-1/1")
    assert well.confirmed


@pytest.mark.parametrize("weight", [0.0, -1.0, nan, inf])
def test_a_weight_that_is_none_changes_nothing(weight: float) -> None:
    known = usual()
    assert observed(known, 1.0, known.at_s + 1, weight=weight) is known


def test_each_quarantine_is_twice_as_long_as_the_one_before_up_to_a_bound() -> None:
    lengths = [known.quarantined_until_s - known.at_s for known in (quarantined(times) for times in range(1, 9))]
    assert lengths[:3] == pytest.approx([QUARANTINE_S, 2 * QUARANTINE_S, 4 * QUARANTINE_S])
    assert lengths == sorted(lengths)
    assert lengths[-1] == QUARANTINE_S_MAX


def test_a_gpu_that_is_a_little_slower_or_turned_faster_is_not_quarantined() -> None:
    for value in (SUDDEN * 0.99, 0.5):
        changed = after(usual(), *([value] * AGREEING), begins=20 * STEP_S)
        assert changed.value == pytest.approx(value)
        assert changed.quarantines == 0


def test_samples_like_those_before_leave_a_quarantine_as_it_is() -> None:
    known = quarantined()
    again = after(known, known.value, known.value, begins=known.at_s)
    assert again.quarantined_until_s == known.quarantined_until_s
    assert again.quarantines == 1


# age


def test_what_is_not_measured_any_more_ages_towards_what_is_believed_beforehand() -> None:
    known = after(usual(prior=0.9), *([1.2] * 30), begins=20 * STEP_S)
    full = known.score(known.at_s) - 0.9
    assert known.score(known.at_s + HALF_LIFE_S) - 0.9 == pytest.approx(full / 2)
    assert known.score(known.at_s + 40 * HALF_LIFE_S) == pytest.approx(0.9)
    scores = [known.score(known.at_s + hours * 3600) for hours in range(100)]
    assert scores == sorted(scores, reverse=True)


# what is never believed


@pytest.mark.parametrize("sample", [nan, 0.0, -1.0, -inf, inf])
def test_what_is_no_time_changes_nothing(sample: float) -> None:
    known = usual()
    assert after(known, sample, sample, sample, begins=known.at_s) is known
    assert observed(ScoreEstimate(), sample, STEP_S) == ScoreEstimate()


def test_a_sample_older_than_the_last_changes_nothing() -> None:
    known = usual()
    assert observed(known, 1.05, known.at_s - 1) is known
    assert observed(known, 1.05, known.at_s) is not known


SAMPLES = st.one_of(st.floats(0.2, 5.0), st.floats(allow_nan=True, allow_infinity=True))


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(0.5, 3.0), st.lists(st.tuples(SAMPLES, st.floats(0, 1e5)), max_size=40), st.floats(0, 1e7))
def test_a_score_lies_between_what_was_believed_and_what_was_measured(
    prior: float, samples: list[tuple[float, float]], later: float
) -> None:
    known = ScoreEstimate(prior=prior)
    said = [prior]
    for sample, at in samples:
        known = observed(known, sample, at)
        if 0 < sample < inf:
            said.append(sample)
    score = known.score(known.at_s + later)
    assert min(said) * (1 - 1e-9) <= score <= max(said) * (1 + 1e-9)
    assert 0.0 <= known.confidence(known.at_s + later) <= 1.0


@settings(max_examples=examples(100), deadline=None)
@given(st.floats(0.5, 3.0), st.lists(st.floats(-0.03, 0.03), min_size=AGREEING, max_size=40))
def test_noise_never_hides_how_fast_a_gpu_is(true: float, noise: list[float]) -> None:
    known = after(usual(), *(true * (1 + one) for one in noise), begins=20 * STEP_S)
    near = FAR + 0.03 if abs(true - 1.0) < FAR + 0.05 else 0.03 + 1e-9
    assert known.value == pytest.approx(true, rel=near)
