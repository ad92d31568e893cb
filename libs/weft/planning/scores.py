"""The speed of each GPU for each class of job, for placement.

A score is a time: 1.0 is the typical GPU, 1.2 is a fifth slower (PAL, SC'24). A GPU without a score counts as typical.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev

from weft.domain.classes import JOB_CLASSES
from weft.variability.kmeans import number_clusters, number_clusters_up_to, silhouette_1d

GpuKey = tuple[str, int]
"""A node's id, and the index of a GPU there."""
TYPICAL = 1.0
Slowdowns = Mapping[tuple[str, str], float]
"""By the class of a job and that of another on its GPU, each in its share: the GPU's time for a step, 1.0 if alone."""
OUTLIER_DEVIATIONS = 3.0
GROUPS_MAX = 10


class Scores:
    """By class, the most sensitive first: a job of a class that is not there counts as of that one."""

    def __init__(
        self, by_class: Mapping[str, Mapping[GpuKey, float]] | None = None, *, groups: int | None = None
    ) -> None:
        self._by_class = {name: dict(scores) for name, scores in (by_class or {}).items()}
        self._order = {name: place for place, name in enumerate(self._by_class)}
        self._groups = groups  # how many bins, outliers aside; None: the number that separates scores best
        self._bins: dict[str, dict[GpuKey, float]] = {}
        self._worst: dict[str, dict[int, float]] | None = None
        self.slowdowns: Slowdowns = {}
        self.changes = 0

    @property
    def worst(self) -> Mapping[str, Mapping[int, float]]:
        """By node and index, each GPU's score for the class that it suits worst."""
        if self._worst is None:
            self._worst = {}
            for scores in self._by_class.values():
                for (node_id, gpu), score in scores.items():
                    of_node = self._worst.setdefault(node_id, {})
                    of_node[gpu] = max(score, of_node.get(gpu, 0.0))
        return self._worst

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self._by_class)

    def known(self, job_class: str) -> str:
        """The class whose scores count for jobs of `job_class`; empty where there are no scores at all."""
        return job_class if job_class in self._by_class else next(iter(self._by_class), "")

    def sensitivity(self, job_class: str) -> int:
        """0 for the most sensitive class."""
        return self._order.get(job_class, 0)

    def of(self, job_class: str) -> Mapping[GpuKey, float]:
        return self._by_class.get(self.known(job_class), {})

    def get(self, job_class: str, gpu: GpuKey) -> float:
        return self.of(job_class).get(gpu, TYPICAL)

    def binned(self, job_class: str, among: Iterable[GpuKey]) -> Mapping[GpuKey, float]:
        """Each GPU's score rounded to that of its bin, over `among` (asked for only when scores or GPUs changed)."""
        name = self.known(job_class)
        if name not in self._bins:
            scores = self._by_class.get(name, {})
            gpus = list(among)
            self._bins[name] = dict(
                zip(gpus, bins([scores.get(gpu, TYPICAL) for gpu in gpus], groups=self._groups), strict=True)
            )
        return self._bins[name]

    def update(self, job_class: str, changed: Mapping[GpuKey, float]) -> None:
        if job_class not in self._by_class:
            self._order[job_class] = len(self._by_class)
        self._by_class.setdefault(job_class, {}).update(changed)
        self.forget_bins()

    def slow(self, slowdowns: Slowdowns) -> None:
        """Adopt new estimated mutual slowdowns of shares."""
        self.slowdowns = dict(slowdowns)
        self.changes += 1

    def beside(self, job_class: str, company: int) -> tuple[float, float]:
        """What a job takes for a step beside jobs of the classes in `company` (a bit for each), and what they take
        beside it: the worst pair of each, 1.0 if alone."""
        name = job_class if job_class in JOB_CLASSES else JOB_CLASSES[0]
        there = [one for place, one in enumerate(JOB_CLASSES) if company >> place & 1]
        own = max((self.slowdowns.get((name, one), TYPICAL) for one in there), default=TYPICAL)
        theirs = max((self.slowdowns.get((one, name), TYPICAL) for one in there), default=TYPICAL)
        return max(TYPICAL, own), max(TYPICAL, theirs)

    def forget_bins(self) -> None:
        """Forget the bins after GPUs or their scores changed."""
        self._bins.clear()
        self._worst = None
        self.changes += 1


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
