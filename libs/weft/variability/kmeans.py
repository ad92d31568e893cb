"""Deterministic clusters: the best ones of numbers, good ones of points."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import dist, fsum, inf, isfinite
from typing import Generic, TypeVar

from msgspec import Struct

CELLS_MAX = 2048  # different numbers: of more than this, close ones go into one cell
GRAIN = 1e-4  # what counts as close, as a part of the numbers' mean size; more if that is not enough
ROUNDS_MAX = 100

Point = tuple[float, ...]
Centroid = TypeVar("Centroid", float, Point)


class Clusters(Struct, Generic[Centroid], frozen=True):
    """`labels`: for each value its cluster, an index into `centroids`."""

    labels: tuple[int, ...]
    centroids: tuple[Centroid, ...]


# numbers


def number_clusters(values: Sequence[float], count: int) -> Clusters[float]:
    """The `count` clusters, in ascending order, with the least sum of squared distances to their means.

    They are fewer if there are fewer different values.
    """
    return number_clusters_up_to(values, count)[-1]


def number_clusters_up_to(values: Sequence[float], count_max: int) -> tuple[Clusters[float], ...]:
    """The best single cluster, the best two, …: all of them cost no more than the last alone."""
    if not values or count_max < 1:
        raise ValueError(f"there are no {count_max} clusters of {len(values)} values")
    if not all(map(isfinite, values)):
        raise ValueError("there are no clusters of what is not finite")
    cells = Cells(values)
    cell_of = {value: cells.cell_of(value) for value in set(values)}
    found: list[Clusters[float]] = []
    for borders in cells.borders_up_to(min(count_max, len(cells))):
        cluster_of = {value: bisect_right(borders, cell) - 1 for value, cell in cell_of.items()}
        centroids = tuple(cells.mean(*ends) for ends in zip(borders, [*borders[1:], len(cells)], strict=True))
        found.append(Clusters(tuple(cluster_of[value] for value in values), centroids))
    return tuple(found)


class Cells:
    """Different numbers in ascending order, each with its count: a cluster is a range of cells.

    Sums are of differences to the mean of all, which are small: the squares of large numbers would lose precision.
    """

    def __init__(self, values: Sequence[float]) -> None:
        counts = Counter(values)
        distinct = sorted(counts)
        self._centre = fsum(values) / len(values)
        starts = _starts(distinct)
        self._first = [distinct[start] for start in starts]
        ends = [*starts, len(distinct)]
        weights = [0, *accumulate(counts[value] for value in distinct)]
        sums = [0.0, *accumulate(counts[value] * (value - self._centre) for value in distinct)]
        squares = [0.0, *accumulate(counts[value] * (value - self._centre) ** 2 for value in distinct)]
        self._weights = [weights[end] for end in ends]  # sums over all cells before this one; likewise below
        self._sums = [sums[end] for end in ends]
        self._squares = [squares[end] for end in ends]

    def __len__(self) -> int:
        return len(self._first)

    def cell_of(self, value: float) -> int:
        return bisect_right(self._first, value) - 1

    def mean(self, begin: int, end: int) -> float:
        return self._centre + (self._sums[end] - self._sums[begin]) / (self._weights[end] - self._weights[begin])

    def borders_up_to(self, count_max: int) -> list[list[int]]:
        """The first cells of the best clusters: of one cluster, of two, …"""
        size = len(self)
        least = [0.0] + [self._cost(end) for end in range(1, size + 1)]
        begins = [[0] * (size + 1)]  # by number of clusters: where the last one of the first so many cells begins
        found = [[0]]
        for count in range(2, count_max + 1):
            least, begin = self._with_one_more(least, count)
            begins.append(begin)
            borders = [size]
            for last in reversed(begins):
                borders.append(last[borders[-1]])
            found.append(borders[:0:-1])
        return found

    def _cost(self, end: int) -> float:
        return self._squares[end] - self._sums[end] ** 2 / self._weights[end]

    def _with_one_more(self, before: list[float], count: int) -> tuple[list[float], list[int]]:
        """The least cost of the first cells in `count` clusters, and the first cell of the last cluster.

        That cell never goes back as cells are added, so the answer for the middle bounds the search on both sides.
        """
        weights, sums, squares = self._weights, self._sums, self._squares
        size = len(self)
        least, begins = [inf] * (size + 1), [0] * (size + 1)
        ranges = [(count, size, count - 1, size - 1)]
        while ranges:
            low, high, begin_low, begin_high = ranges.pop()
            if low > high:
                continue
            end = (low + high) // 2
            best, best_begin = inf, begin_low
            weight, total = weights[end], sums[end]
            for begin in range(begin_low, min(end - 1, begin_high) + 1):
                cost = before[begin] - squares[begin] - (total - sums[begin]) ** 2 / (weight - weights[begin])
                if cost < best:
                    best, best_begin = cost, begin
            least[end], begins[end] = best + squares[end], best_begin
            ranges.append((low, end - 1, begin_low, best_begin))
            ranges.append((end + 1, high, best_begin, begin_high))
        return least, begins


def _starts(distinct: list[float]) -> list[int]:
    """The start of each cell: every number, unless there are too many."""
    starts = list(range(len(distinct)))
    grain = GRAIN * fsum(map(abs, distinct)) / len(distinct)
    while len(starts) > CELLS_MAX:
        starts, place = [], 0
        while place < len(distinct):
            starts.append(place)
            place = bisect_right(distinct, distinct[place] + grain, lo=place + 1)
        grain *= 2
    return starts


# how well numbers are clustered


def silhouette_1d(values: Sequence[float], labels: Sequence[int]) -> float:
    """The mean silhouette: near 1 if numbers are much closer to their own cluster than to the next, else less.

    A number alone in its cluster counts 0, and so does every number if there are fewer than two clusters.
    """
    members: defaultdict[int, list[float]] = defaultdict(list)
    for value, label in zip(values, labels, strict=True):
        members[label].append(value)
    if len(members) < 2:
        return 0.0
    clusters = {label: ClusterMembers(values_there) for label, values_there in members.items()}
    alike = Counter(zip(values, labels, strict=True))
    return sum(count * _silhouette(value, label, clusters) for (value, label), count in alike.items()) / len(values)


def _silhouette(value: float, label: int, clusters: dict[int, "ClusterMembers"]) -> float:
    own = clusters[label]
    if own.count == 1:
        return 0.0
    inside = own.distances(value) / (own.count - 1)
    outside = min(other.distances(value) / other.count for key, other in clusters.items() if key != label)
    farther = max(inside, outside)
    return (outside - inside) / farther if farther > 0 else 0.0


class ClusterMembers:
    """The numbers of one cluster."""

    def __init__(self, values: list[float]) -> None:
        self._values = sorted(values)
        self._sums = [0.0, *accumulate(self._values)]
        self._least, self._most, self._sum = self._values[0], self._values[-1], self._sums[-1]
        self.count = len(values)

    def distances(self, value: float) -> float:
        """The sum of their distances to `value`."""
        if value <= self._least:
            return self._sum - self.count * value
        if value >= self._most:
            return self.count * value - self._sum
        below = bisect_left(self._values, value)
        return self._sum - 2 * self._sums[below] + value * (2 * below - self.count)


# points


def point_clusters(points: Sequence[Point], count: int) -> Clusters[Point]:
    """`count` clusters, fewer if there are fewer different points: Lloyd's rounds from points far apart."""
    if not points or count < 1:
        raise ValueError(f"there are no {count} clusters of {len(points)} points")
    centroids = _far_apart(points, count)
    labels: list[int] = []
    for _ in range(ROUNDS_MAX):
        nearest = [nearest_to(point, centroids) for point in points]
        if nearest == labels:
            break
        labels = nearest
        centroids = [_mean_of(points, labels, label, centroid) for label, centroid in enumerate(centroids)]
    return Clusters(tuple(labels), tuple(centroids))


def nearest_to(point: Point, centroids: Sequence[Point]) -> int:
    return min(range(len(centroids)), key=lambda label: dist(point, centroids[label]))


def _far_apart(points: Sequence[Point], count: int) -> list[Point]:
    """The point nearest the mean, then always the one farthest from those chosen; independent of the points' order."""
    distinct = sorted(set(points))
    centre = _mean(points)
    chosen = [min(distinct, key=lambda point: dist(point, centre))]
    distances = {point: dist(point, chosen[0]) for point in distinct}
    while len(chosen) < min(count, len(distinct)):
        chosen.append(max(distinct, key=lambda point: distances[point]))
        distances = {point: min(known, dist(point, chosen[-1])) for point, known in distances.items()}
    return chosen


def _mean_of(points: Sequence[Point], labels: Sequence[int], label: int, otherwise: Point) -> Point:
    members = [point for point, its_label in zip(points, labels, strict=True) if its_label == label]
    return _mean(members) if members else otherwise


def _mean(points: Sequence[Point]) -> Point:
    return tuple(fsum(axis) / len(points) for axis in zip(*points, strict=True))
