"""The class of each workload, by how busy its jobs keep the arithmetic units and the memory of their GPUs."""

from collections import deque
from collections.abc import Iterable
from heapq import nlargest
from statistics import median

from msgspec import Struct

from weft.domain.classes import CLASS_LABEL, JOB_CLASSES
from weft.domain.spec import JobSpec
from weft.messages.signals import WorkloadClass
from weft.variability.classes import Features, told_apart

WINDOWS_REMEMBERED = 31  # of all GPUs that run it
WINDOWS_LEAST = 3
REVIEWS_AGREEING = 3  # before a workload changes its class, so that none flaps
REVIEW_SECONDS = 30.0
FORGOTTEN_SECONDS = 3600.0
WORKLOADS_MOST = 20_000
CLUSTERED_MOST = 2_000  # the latest: more would block the event loop, and add little
REMEMBERED_SECONDS = 90 * 86400.0  # a class without a job for this long is forgotten
RENEWED_SECONDS = 86400.0  # the time of an unchanged class is stored this often at most
MOVED_NOTABLE = 0.1
Named = tuple[str, str]
"""A pool, and a workload in it."""


class _Seen(Struct):
    windows: deque[tuple[float, float]]
    count: int = 0
    at: float = 0.0
    reviewed: int = 0  # `count` then
    candidate: str = ""
    reviews: int = 0  # in a row that found the candidate

    @property
    def features(self) -> Features:
        return Features(
            compute=median(compute for compute, _ in self.windows), memory=median(memory for _, memory in self.windows)
        )


class Workloads:
    def __init__(self) -> None:
        self._seen: dict[Named, _Seen] = {}
        self._known: dict[Named, WorkloadClass] = {}
        self._reviewed_at = 0.0

    def recall(self, pool: str, classes: Iterable[WorkloadClass]) -> None:
        """Take in all stored classes; no others are known."""
        self._known = {name: one for name, one in self._known.items() if name[0] != pool}
        self.learnt(pool, classes)

    def learnt(self, pool: str, classes: Iterable[WorkloadClass]) -> None:
        """Take in classes that this or another scorer has stored."""
        for one in classes:
            if one.job_class in JOB_CLASSES:
                self._known[pool, one.workload] = one

    def used(self, pool: str, workload: str, compute: float, memory: float, now: float) -> None:
        """Take in one window of one GPU."""
        if not (0.0 <= compute <= 1.0 and 0.0 <= memory <= 1.0):
            return
        seen = self._seen.get((pool, workload))
        if seen is None:
            if len(self._seen) >= WORKLOADS_MOST:
                return
            seen = self._seen[pool, workload] = _Seen(deque(maxlen=WINDOWS_REMEMBERED))
        seen.windows.append((compute, memory))
        seen.count += 1
        seen.at = now

    def class_of(self, spec: JobSpec, workload: str) -> str:
        """The class of the job's label, else the learnt one; an unknown job is most sensitive."""
        said = spec.labels.get(CLASS_LABEL, "")
        if said in JOB_CLASSES:
            return said
        known = self._known.get((spec.pool, workload))
        return JOB_CLASSES[0] if known is None else known.job_class

    def review(self, now: float, *, names: Iterable[Named]) -> dict[str, list[WorkloadClass]]:
        """By pool, the new classes of the workloads of these `names`; call `learnt` once they are stored."""
        self._seen = {name: seen for name, seen in self._seen.items() if now - seen.at < FORGOTTEN_SECONDS}
        features = {
            name: Features(compute=known.compute, memory=known.memory) for name, known in self._known.items()
        } | {name: seen.features for name, seen in self._seen.items() if seen.count >= WINDOWS_LEAST}
        sound = {name: one for name, one in features.items() if one.sound}
        tells = told_apart([sound[name] for name in self._latest(sound)], JOB_CLASSES)
        found: dict[str, list[WorkloadClass]] = {}
        for name in names:
            seen = self._seen.get(name)
            if seen is None or name not in sound or seen.count == seen.reviewed:
                continue
            seen.reviewed = seen.count
            new = self._new(name, seen, sound[name], tells.of(sound[name]), now)
            if new is not None:
                found.setdefault(name[0], []).append(new)
        return found

    def _latest(self, names: Iterable[Named]) -> list[Named]:
        """The workloads with the latest jobs, as many as can be clustered at once; in order of their names."""

        def at(name: Named) -> tuple[float, Named]:
            seen, known = self._seen.get(name), self._known.get(name)
            return max(seen.at if seen else 0.0, known.at if known else 0.0), name

        return sorted(nlargest(CLUSTERED_MOST, names, key=at))

    @property
    def names(self) -> list[Named]:
        return list(self._seen)

    def _new(self, name: Named, seen: _Seen, features: Features, job_class: str, now: float) -> WorkloadClass | None:
        known = self._known.get(name)
        seen.reviews = seen.reviews + 1 if job_class == seen.candidate else 1
        seen.candidate = job_class
        if known is not None:
            if job_class != known.job_class and seen.reviews < REVIEWS_AGREEING:
                job_class = known.job_class
            moved = max(abs(features.compute - known.compute), abs(features.memory - known.memory))
            if job_class == known.job_class and moved < MOVED_NOTABLE and now - known.at < RENEWED_SECONDS:
                return None
        return WorkloadClass(
            workload=name[1],
            job_class=job_class,
            compute=features.compute,
            memory=features.memory,
            samples=seen.count,
            at=now,
        )
