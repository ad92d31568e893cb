"""Classes of jobs by how much they feel a slow GPU: the more they compute rather than wait for memory, the more.

As PAL has it (SC '24): the use of the floating-point units and of the memory's bandwidth, measured over a run, is
clustered in two dimensions. The class whose jobs compute most is the most sensitive, the one bound by memory the least;
an unknown job counts as most sensitive, because that risks nothing. Of a few jobs, or of
many that are all alike, no clusters are made: fixed thresholds give their classes.
"""

from collections.abc import Sequence
from itertools import combinations
from math import dist, inf

from msgspec import Struct

from weft.variability.kmeans import Point, nearest_to, point_clusters

NAMES = ("A", "B", "C")
FEW = 6  # jobs, or workloads: no clusters are made of fewer
IDLE = 0.15  # a job that uses less of both does not show what would hold it back
APART = 0.15  # the least distance between the middles of two clusters
MEMORY_HIGH = 0.55  # of its bandwidth: from here on memory may hold a job back
MEMORY_TO_COMPUTE = 0.7  # and does, if it is used at least this much as the arithmetic units
COMPUTE_HIGH = 0.5
MEMORY_LOW = 0.6  # of the arithmetic units' use: below, computing holds the job back


class Features(Struct, frozen=True, kw_only=True):
    """How busy a job keeps a GPU's floating-point units and its memory: parts of their maximum, from 0 to 1."""

    compute: float
    memory: float

    @property
    def sound(self) -> bool:
        return 0 <= self.compute <= 1 and 0 <= self.memory <= 1

    @property
    def point(self) -> Point:
        return (self.compute, self.memory)

    @property
    def idle(self) -> bool:
        return max(self.point) < IDLE


class Classes(Struct, frozen=True, kw_only=True):
    """`names`, most sensitive first, and for each the middle of its jobs. There may be fewer of these than names."""

    names: tuple[str, ...]
    centroids: tuple[Point, ...]

    def of(self, features: Features | None) -> str:
        if features is None or not features.sound:
            return self.names[0]
        if features.idle:
            return self.names[min(1, len(self.names) - 1)]
        return self.names[nearest_to(features.point, self.centroids)]


class Thresholds(Struct, frozen=True, kw_only=True):
    """Three names, most sensitive first, chosen by what a job uses most."""

    names: tuple[str, ...] = NAMES

    def of(self, features: Features | None) -> str:
        if features is None or not features.sound:
            return self.names[0]
        compute, memory = features.point
        if memory >= MEMORY_HIGH and memory >= MEMORY_TO_COMPUTE * compute:
            return self.names[2]
        return self.names[0] if compute >= COMPUTE_HIGH and memory <= MEMORY_LOW * compute else self.names[1]


def told_apart(features: Sequence[Features], names: tuple[str, ...] = NAMES) -> Classes | Thresholds:
    """The rule for the class of each: clusters, if there are enough jobs and the clusters are far enough apart."""
    busy = [measured for measured in features if not measured.idle]
    if len(busy) < FEW:
        return Thresholds(names=names)
    classes = learn(busy, names)
    near = any(dist(one, other) < APART for one, other in combinations(classes.centroids, 2))
    return Thresholds(names=names) if near or len(classes.centroids) < len(names) else classes


def learn(features: Sequence[Features], names: Sequence[str] = NAMES) -> Classes:
    """The classes of these jobs. Raises ValueError for none, and for a use that is not between 0 and 1."""
    unsound = [measured for measured in features if not measured.sound]
    if unsound:
        raise ValueError(f"use must be between 0 and 1: {unsound[0]}")
    if not features or not names:
        raise ValueError(f"there are no {len(names)} classes of {len(features)} jobs")
    found = point_clusters([measured.point for measured in features], len(names))
    return Classes(names=tuple(names), centroids=tuple(sorted(found.centroids, key=_compute_to_memory, reverse=True)))


def _compute_to_memory(point: Point) -> float:
    compute, memory = point
    return compute / memory if memory else inf
