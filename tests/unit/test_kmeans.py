"""Clusters against what trying everything finds."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product
from math import dist
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.variability.kmeans import (
    CELLS_MAX,
    nearest_to,
    number_clusters,
    number_clusters_up_to,
    point_clusters,
    silhouette_1d,
)

# Eighths are exact, so equal sums are equal whichever way they were summed up.
numbers = st.integers(-40, 40).map(lambda eighths: eighths / 8)


def spread(values: Sequence[float]) -> float:
    middle = fmean(values)
    return sum((value - middle) ** 2 for value in values)


def ranges(values: Sequence[float], count: int) -> Iterator[list[Sequence[float]]]:
    """Every way to cut sorted values into `count` pieces."""
    ordered = sorted(values)
    for cuts in combinations(range(1, len(ordered)), count - 1):
        yield [ordered[begin:end] for begin, end in pairwise((0, *cuts, len(ordered)))]


def cost(values: Sequence[float], labels: Sequence[int]) -> float:
    members: dict[int, list[float]] = {}
    for value, label in zip(values, labels, strict=True):
        members.setdefault(label, []).append(value)
    return sum(spread(cluster) for cluster in members.values())


# numbers


@given(st.lists(numbers, min_size=1, max_size=9), st.integers(1, 5))
def test_no_other_clusters_of_numbers_are_closer(values: list[float], count: int) -> None:
    found = number_clusters(values, count)
    assert len(found.centroids) == min(count, len(set(values)))
    best = min(sum(map(spread, pieces)) for pieces in ranges(values, len(found.centroids)))
    assert cost(values, found.labels) == pytest.approx(best, abs=1e-9)


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(1, 3))
def test_clusters_that_are_no_ranges_are_not_closer_either(values: list[float], count: int) -> None:
    best = min(cost(values, labels) for labels in product(range(count), repeat=len(values)))
    assert cost(values, number_clusters(values, count).labels) == pytest.approx(best, abs=1e-9)


@given(st.lists(numbers, min_size=1, max_size=12), st.integers(1, 6))
def test_centroids_ascend_and_are_the_means_of_their_numbers(values: list[float], count: int) -> None:
    found = number_clusters(values, count)
    assert list(found.centroids) == sorted(set(found.centroids))
    for place, centroid in enumerate(found.centroids):
        members = [value for value, label in zip(values, found.labels, strict=True) if label == place]
        assert centroid == pytest.approx(fmean(members), abs=1e-12)


@given(st.lists(numbers, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_numbers_does_not_matter(values: list[float], dice: Random) -> None:
    shuffled = dice.sample(values, len(values))
    label_of, other = (dict(zip(order, number_clusters(order, 3).labels, strict=True)) for order in (values, shuffled))
    assert label_of == other


@given(st.lists(numbers, min_size=1, max_size=12))
def test_one_cluster_after_another_is_what_each_is_alone(values: list[float]) -> None:
    together = number_clusters_up_to(values, 5)
    assert list(together) == [number_clusters(values, count) for count in range(1, len(together) + 1)]


def test_large_numbers_keep_their_small_differences() -> None:
    values = [1e9, 1e9 + 1, 1e9 + 10, 1e9 + 11]
    assert number_clusters(values, 2).labels == (0, 0, 1, 1)


def test_more_numbers_than_are_told_apart_still_fall_where_they_lie_together() -> None:
    dice = Random(1)
    middles = [dice.randrange(3) for _ in range(4 * CELLS_MAX)]
    values = [1 + middle + dice.gauss(0, 0.05) for middle in middles]
    found = number_clusters(values, 3)
    assert found.labels == tuple(middles)
    assert found.centroids == pytest.approx([1, 2, 3], abs=0.01)


def test_taking_close_numbers_for_one_costs_next_to_nothing() -> None:
    dice = Random(2)
    values = sorted(dice.gauss(1, 0.03) for _ in range(2 * CELLS_MAX))
    labels = number_clusters(values, 6).labels
    least = min(sum(map(spread, pieces)) for pieces in _neighbours(values, labels))
    assert cost(values, labels) <= least * (1 + 1e-4)


def _neighbours(ordered: list[float], labels: Sequence[int]) -> Iterator[list[list[float]]]:
    """Clusters with one border moved by some numbers."""
    sizes = [labels.count(label) for label in range(max(labels) + 1)]
    borders = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    for place, step in product(range(1, len(borders) - 1), (-20, -5, -1, 1, 5, 20)):
        moved = [*borders[:place], borders[place] + step, *borders[place + 1 :]]
        yield [ordered[begin:end] for begin, end in pairwise(moved)]


@pytest.mark.parametrize(("values", "count"), [([], 1), ([1.0], 0), ([1.0, float("nan")], 1)])
def test_what_cannot_be_clustered_is_refused(values: list[float], count: int) -> None:
    with pytest.raises(ValueError, match="there are no"):
        number_clusters(values, count)


# silhouettes


def slow_silhouette(values: Sequence[float], labels: Sequence[int]) -> float:
    """By its definition."""
    clusters = {label: [v for v, its in zip(values, labels, strict=True) if its == label] for label in set(labels)}
    if len(clusters) < 2:
        return 0.0
    each: list[float] = []
    for value, label in zip(values, labels, strict=True):
        if len(clusters[label]) == 1:
            each.append(0.0)
            continue
        inside = sum(abs(value - other) for other in clusters[label]) / (len(clusters[label]) - 1)
        outside = min(fmean(abs(value - other) for other in clusters[key]) for key in clusters if key != label)
        each.append((outside - inside) / max(inside, outside) if max(inside, outside) else 0.0)
    return fmean(each)


@given(st.lists(st.tuples(numbers, st.integers(0, 3)), min_size=1, max_size=20))
def test_a_silhouette_is_what_its_definition_says(labelled: list[tuple[float, int]]) -> None:
    values, labels = [value for value, _ in labelled], [label for _, label in labelled]
    assert silhouette_1d(values, labels) == pytest.approx(slow_silhouette(values, labels), abs=1e-12)


def test_numbers_far_apart_have_a_silhouette_near_one() -> None:
    assert silhouette_1d([0, 1, 100, 101], [0, 0, 1, 1]) == pytest.approx(0.99, abs=0.001)


# points


points = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20)


@given(points, st.integers(1, 4))
def test_every_point_is_in_the_cluster_whose_middle_is_nearest(
    given_points: list[tuple[float, float]], count: int
) -> None:
    found = point_clusters(given_points, count)
    assert len(found.centroids) == min(count, len(set(given_points)))
    assert found.labels == tuple(nearest_to(point, found.centroids) for point in given_points)


@given(points, st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(given_points: list[tuple[float, float]], count: int, dice: Random) -> None:
    shuffled = dice.sample(given_points, len(given_points))
    assert point_clusters(shuffled, count).centroids == point_clusters(given_points, count).centroids


def test_heaps_of_points_are_found() -> None:
    dice = Random(3)
    middles = [(0.9, 0.2), (0.5, 0.5), (0.1, 0.9)]
    heap = [tuple(axis + dice.gauss(0, 0.02) for axis in middle) for middle in middles for _ in range(50)]
    found = point_clusters(heap, 3)
    for middle in middles:
        assert min(dist(middle, centroid) for centroid in found.centroids) < 0.02


def test_no_points_have_no_clusters() -> None:
    with pytest.raises(ValueError, match="there are no"):
        point_clusters([], 2)
