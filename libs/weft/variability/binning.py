"""Bins of GPUs that are about equally fast, as PAL makes them (SC '24): a placement treats the GPUs of a bin alike."""

from collections.abc import Sequence
from statistics import fmean, median, stdev

from weft.variability.kmeans import number_clusters, number_clusters_up_to, silhouette_1d

OUTLIER_DEVIATIONS = 3.0
GROUPS_MAX = 10


def bins(scores: Sequence[float], *, groups: int | None = None) -> tuple[float, ...]:
    """For each score the factor of its bin: the bin's mean, as a part of the median of all bins' means.

    Outliers, which are scores more than three standard deviations above the mean, add a bin each; the other scores
    give `groups` bins, or the number that separates them best. Then all scores together are put into that many bins.
    """
    if groups is not None and groups < 1:
        raise ValueError(f"groups must be at least 1: {groups}")
    if not scores or min(scores) == max(scores):
        return (1.0,) * len(scores)
    bound = fmean(scores) + OUTLIER_DEVIATIONS * stdev(scores)
    usual = [score for score in scores if score <= bound]
    outliers = len(scores) - len(usual)
    clusters = number_clusters(scores, (groups or best_groups(usual)) + outliers)
    middle = median(clusters.centroids)
    return tuple(clusters.centroids[label] / middle for label in clusters.labels)


def best_groups(scores: Sequence[float]) -> int:
    """The number of clusters with the highest silhouette; the smallest of these if several have it."""
    candidates = number_clusters_up_to(scores, GROUPS_MAX)[1:]
    if not candidates:
        return 1  # all scores are equal
    best = max(candidates, key=lambda clusters: silhouette_1d(scores, clusters.labels))
    return len(best.centroids)
