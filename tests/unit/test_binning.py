"""Bins of scores, and that they are those which PAL's published code finds."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.policies.rounds import ARTIFACT_GROUPS
from tests.support.data import measured
from weft.planning.scores import best_groups, bins
from weft.profiles import read_profile, scores_for

PUBLISHED = {
    "A": {0.913: 51, 1.0: 12, 2.595: 1},
    "B": {0.985: 44, 1.015: 20},
    "C": {0.988: 31, 1.012: 33},
    "D": {0.985: 7, 1.015: 57},
}


def sizes(factors: tuple[float, ...]) -> dict[float, int]:
    return dict(Counter(round(factor, 3) for factor in factors))


def artifact_scores() -> dict[str, tuple[float, ...]]:
    return scores_for(read_profile(measured("variability/perfvar_256gpu_seed42.csv")), 16, 4)


@pytest.mark.data
@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
def test_the_64_published_gpus_fall_into_the_published_bins(name: str) -> None:
    assert sizes(bins(artifact_scores()[name], groups=ARTIFACT_GROUPS)) == PUBLISHED[name]


@pytest.mark.data
def test_the_outlier_of_the_64_published_gpus_has_a_bin_of_its_own() -> None:
    factors = bins(artifact_scores()["A"], groups=ARTIFACT_GROUPS)
    assert [gpu for gpu, factor in enumerate(factors) if factor > 2] == [35]


@pytest.mark.data
def test_the_best_number_of_groups_is_more_than_the_artifacts_where_that_tells_more_apart() -> None:
    counts = {name: len(set(bins(scores))) for name, scores in artifact_scores().items()}
    assert counts == {"A": 3, "B": 4, "C": 3, "D": 2}


def test_equal_scores_are_one_bin() -> None:
    assert bins([1.07] * 5) == (1.0,) * 5
    assert bins([1.2]) == (1.0,)
    assert bins([]) == ()


def test_two_kinds_of_gpus_are_two_bins_around_one() -> None:
    factors = bins([0.9] * 6 + [1.1] * 3)
    assert factors == pytest.approx([0.9] * 6 + [1.1] * 3)


def test_groups_are_as_many_as_there_are_heaps() -> None:
    scores = [base + step / 1000 for base in (0.9, 1.0, 1.2) for step in range(5)]
    assert best_groups(scores) == 3
    assert len(set(bins(scores))) == 3


def test_gpus_that_are_all_alike_but_for_outliers_are_one_bin_and_the_outliers() -> None:
    factors = bins([1.0] * 30 + [3.0])
    assert factors == pytest.approx([0.5] * 30 + [1.5])


def test_fewer_different_scores_than_bins_are_a_bin_each() -> None:
    assert len(set(bins([1.0, 1.1], groups=5))) == 2


def test_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="groups must be at least 1"):
        bins([1.0, 1.1], groups=0)


@given(st.lists(st.floats(0.5, 4), min_size=1, max_size=40))
def test_a_slower_gpu_is_never_in_a_faster_bin(scores: list[float]) -> None:
    by_score = sorted(zip(scores, bins(scores), strict=True))
    factors = [factor for _, factor in by_score]
    assert factors == sorted(factors)
    assert all(factor > 0 for factor in factors)
