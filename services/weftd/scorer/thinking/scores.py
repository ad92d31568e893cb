"""The score of each GPU for each class of jobs, and which scores have changed enough to be stored and published.

Benchmarks and the steps of jobs add to one estimate, each source by its confidence; a profile is the prior.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from msgspec import Struct

from weft.domain.classes import JOB_CLASSES
from weft.messages.signals import GpuScore
from weft.planning.scores import TYPICAL, GpuKey
from weft.variability.estimate import NEAR, PRIOR_SAMPLES, ScoreEstimate, observed

PROFILED, ASSUMED = 0.9, 0.1  # confidence of a score from a profile, and of one without any source
QUARANTINED = 0.9  # confidence in quarantine: samples agreed on a sudden slowdown, however few they were
SURE_MOST = 0.95  # the highest confidence
SCORE_NOTABLE, CONFIDENCE_NOTABLE = 0.01, 0.1
REFRESH_SECONDS = 300.0
UNTIL_NOTABLE_SECONDS = 1.0
FAINT_MOST = 2.0  # the worth of all faint samples together: half of the confidence
BENCHMARK = "benchmark"
STRONG = 0.5  # the weight from which on a sample's source becomes the score's

ByClass = Mapping[str, float]
Place = tuple[GpuKey, str]
"""A GPU, and a class of jobs."""


class MeasuredGpus(Struct, frozen=True, kw_only=True):
    """The scores in a profile. `measured_at`: the latest possible time."""

    by_uuid: Mapping[str, ByClass] = {}
    by_place: Mapping[GpuKey, ByClass] = {}
    measured_at: float | None = None

    def of(self, place: GpuKey, uuid: str) -> ByClass | None:
        return self.by_uuid.get(uuid) or self.by_place.get(place)


class _Standing(Struct):
    """The state of one GPU and class. `strong_at`: when a sample of a job's steps last counted."""

    estimate: ScoreEstimate
    profiled: bool
    source: str = ""
    strong_at: float = -inf
    benched: tuple[float, float] = (-inf, 0.0)  # the time and the ratio of the latest benchmark that counted
    stored: GpuScore | None = None
    stored_at: float = -inf


class Standings:
    def __init__(self, profile: MeasuredGpus) -> None:
        self._profile = profile
        self._uuids: dict[GpuKey, str] = {}
        self._by_gpu: dict[GpuKey, dict[str, _Standing]] = {}
        self._touched: set[GpuKey] = set()

    @property
    def gpus(self) -> int:
        return len(self._by_gpu)

    @property
    def stored(self) -> int:
        """The GPUs with stored scores."""
        return sum(all(one.stored is not None for one in classes.values()) for classes in self._by_gpu.values())

    # samples

    def appear(self, place: GpuKey, uuid: str) -> None:
        """Note a GPU. Another one in the same place is scored anew."""
        if self._uuids.get(place) == uuid:
            return
        self._uuids[place] = uuid
        known = self._profile.of(place, uuid)
        self._by_gpu[place] = {
            name: _Standing(ScoreEstimate(prior=known[name] if known else TYPICAL), bool(known)) for name in JOB_CLASSES
        }
        self._touched.add(place)

    def forget(self, node_ids: Iterable[str]) -> None:
        gone = set(node_ids)
        for place in [place for place in self._by_gpu if place[0] in gone]:
            del self._by_gpu[place], self._uuids[place]
            self._touched.discard(place)

    def recall(self, scores: Iterable[GpuScore], now: float) -> None:
        """Take over stored scores, measured before a restart or by the scorer that had these GPUs before."""
        for score in scores:
            standing = self._of((score.node_id, score.gpu_index), score.job_class)
            if standing is None or standing.stored is not None or not _sound(score):
                continue
            standing.stored, standing.stored_at = score, now
            if score.source not in ("profile", "assumed", "") and not standing.estimate.samples:
                standing.source = score.source
                if score.source == BENCHMARK:
                    standing.benched = (score.measured_at or now, score.score)
                standing.estimate = _recalled(standing.estimate, score, now)
            self._touched.add((score.node_id, score.gpu_index))

    def measured(
        self,
        place: GpuKey,
        job_class: str,
        ratio: float,
        now: float,
        *,
        weight: float,
        source: str,
        witness: str = "",
        faint: bool = False,
    ) -> None:
        """Take in one sample: how many times slower than the typical GPU. Samples of unknown GPUs are dropped.

        `faint`: it may have another cause than this GPU, however often it is repeated.
        """
        standing = self._of(place, job_class)
        if standing is None:
            return
        standing.estimate = observed(
            standing.estimate, ratio, now, weight=weight, weight_most=FAINT_MOST if faint else inf, witness=witness
        )
        if weight >= STRONG:
            standing.strong_at = now
        if weight >= STRONG or not standing.source:
            standing.source = source
        self._touched.add(place)

    def benchmarked(self, place: GpuKey, job_class: str, ratio: float, at: float, *, weight: float) -> None:
        """Take in a benchmark's result. The same result counts once, unless the GPUs it compares with changed."""
        standing = self._of(place, job_class)
        if standing is None:
            return
        before, known = standing.benched
        if at < before or (at == before and abs(ratio / known - 1.0) <= NEAR):
            return
        standing.benched = (at, ratio)
        self.measured(place, job_class, ratio, at, weight=weight, source=BENCHMARK)

    def strong_within(self, place: GpuKey, job_class: str, since: float) -> bool:
        standing = self._of(place, job_class)
        return standing is not None and standing.strong_at >= since

    # scores

    def believed(self, place: GpuKey, job_class: str, now: float) -> float:
        standing = self._of(place, job_class)
        if standing is None or not (standing.estimate.samples or standing.profiled):
            return TYPICAL
        score, confidence = _merged(standing, now)
        return 1.0 + (score - 1.0) * min(confidence, SURE_MOST)

    def score(self, place: GpuKey, job_class: str, now: float) -> GpuScore | None:
        standing = self._of(place, job_class)
        return None if standing is None else self._score(place, job_class, standing, now)

    def due(self, now: float, *, all_of_them: bool) -> list[GpuScore]:
        """The scores that have changed enough to be stored and published; call `store` once they are."""
        places = self._by_gpu if all_of_them else self._touched
        found: list[GpuScore] = []
        for place in sorted(places):
            for job_class, standing in self._by_gpu[place].items():
                score = self._score(place, job_class, standing, now)
                if _notable(standing, score, now):
                    found.append(score)
        self._touched.clear()
        return found

    def store(self, scores: Iterable[GpuScore], now: float) -> None:
        for score in scores:
            standing = self._of((score.node_id, score.gpu_index), score.job_class)
            if standing is not None:
                standing.stored, standing.stored_at = score, now

    def stored_scores(self) -> Iterator[tuple[str, GpuScore]]:
        """The stored scores, by the GPU's uuid."""
        for place, classes in sorted(self._by_gpu.items()):
            for standing in classes.values():
                if standing.stored is not None:
                    yield self._uuids[place], standing.stored

    def _of(self, place: GpuKey, job_class: str) -> _Standing | None:
        return self._by_gpu.get(place, {}).get(job_class)

    def _score(self, place: GpuKey, job_class: str, standing: _Standing, now: float) -> GpuScore:
        estimate = standing.estimate
        if not estimate.samples:
            return GpuScore(
                node_id=place[0],
                gpu_index=place[1],
                job_class=job_class,
                score=estimate.prior,
                confidence=PROFILED if standing.profiled else ASSUMED,
                source="profile" if standing.profiled else "assumed",
                measured_at=self._profile.measured_at if standing.profiled else None,
            )
        score, confidence = _merged(standing, now)
        return GpuScore(
            node_id=place[0],
            gpu_index=place[1],
            job_class=job_class,
            score=score,
            confidence=confidence,
            source=standing.source,
            measured_at=estimate.at_s,
            samples=estimate.samples,
            quarantined_until=estimate.quarantined_until_s if estimate.quarantined(now) else None,
        )


def _merged(standing: _Standing, now: float) -> tuple[float, float]:
    """Score and confidence of measurements and profile together, each weighted by its confidence."""
    estimate = standing.estimate
    if estimate.quarantined(now):
        return estimate.value, max(QUARANTINED, estimate.confidence(now))
    sure = estimate.confidence(now)
    before = PROFILED * (1.0 - sure) if standing.profiled else 0.0
    if sure + before <= 0.0:
        return estimate.prior, ASSUMED
    score = (estimate.value * sure + estimate.prior * before) / (sure + before)
    return score, min(1.0, sure + before)


def _notable(standing: _Standing, score: GpuScore, now: float) -> bool:
    known = standing.stored
    if known is None:
        return True
    if abs(score.score / known.score - 1.0) > SCORE_NOTABLE:
        return True
    if abs(score.confidence - known.confidence) > CONFIDENCE_NOTABLE:
        return True
    if abs((score.quarantined_until or 0.0) - (known.quarantined_until or 0.0)) > UNTIL_NOTABLE_SECONDS:
        return True
    return score.samples != known.samples and now - standing.stored_at >= REFRESH_SECONDS


def _recalled(estimate: ScoreEstimate, score: GpuScore, now: float) -> ScoreEstimate:
    """The estimate behind a stored score. Its age counts from the last sample: a little too much, never too little."""
    sure = min(score.confidence, SURE_MOST)
    until = score.quarantined_until or 0.0
    return ScoreEstimate(
        value=score.score,
        samples=max(1, score.samples),
        weight=PRIOR_SAMPLES * sure / (1.0 - sure),
        at_s=min(now, score.measured_at or now),
        prior=estimate.prior,
        quarantines=int(until > now),
        quarantined_until_s=until,
        witness="",
        confirmed=until <= now,
    )


def weight_of(score: GpuScore) -> float:
    """The number of samples of a job's steps that weigh as much as a benchmark with that confidence."""
    sure = min(score.confidence, SURE_MOST)
    return PRIOR_SAMPLES * sure / (1.0 - sure)


def _sound(score: GpuScore) -> bool:
    return 0.0 < score.score < inf and 0.0 <= score.confidence <= 1.0
