"""Durations for which ended jobs held their GPUs, by kinds of similar jobs."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Iterable, Sequence

from msgspec import Struct

from weft.domain.classes import is_benchmark, workload_of
from weft.domain.job import Job, JobState
from weft.planning.eta.spread import ENOUGH, DurationCurve, TimeSpread, course_of
from weft.planning.resource_request import gpus_of, resource_request_of_job

KEPT_MAX = 400  # latest ended jobs of each kind
KINDS_MAX = 5_000

Kinds = Sequence[Hashable]
"""Kinds of a job, the narrowest first: its workload, then its tenant's jobs of its size, …, then any job."""


class Lasted:
    """Seconds for which ended jobs held their GPUs, by kind. `add` them in the order in which they ended."""

    def __init__(self) -> None:
        self._in_order: dict[Hashable, list[float]] = {}
        self._last: dict[Hashable, deque[float]] = {}
        self.count = 0

    def add(self, kinds: Kinds, seconds: float) -> None:
        self.count += 1
        for kind in kinds:
            if kind not in self._last:
                if len(self._last) >= KINDS_MAX:
                    continue
                self._last[kind], self._in_order[kind] = deque(), []
            last, in_order = self._last[kind], self._in_order[kind]
            last.append(seconds)
            insort(in_order, seconds)
            if len(last) > KEPT_MAX:
                del in_order[bisect_left(in_order, last.popleft())]

    def beside(self, running: Iterable["RunsSoLong"]) -> "Lasting":
        """The learned durations combined with the running jobs."""
        return Lasting(self, running)

    def of(self, kind: Hashable) -> list[float]:
        """Durations of ended jobs of this kind, in ascending order."""
        return list(self._in_order.get(kind, ()))


class RunsSoLong(Struct, frozen=True):
    """A running job: its present duration, and its total one if its progress shows it."""

    kinds: Kinds
    age: float
    in_all: float | None = None


class Lasting:
    """Durations of jobs, from those that ended and those that run at one moment."""

    def __init__(self, durations: Lasted, running: Iterable[RunsSoLong] = ()) -> None:
        self._durations = durations
        self._running: dict[Hashable, list[RunsSoLong]] = {}
        for one in running:
            for kind in one.kinds:
                self._running.setdefault(kind, []).append(one)
        self._courses: dict[Hashable, DurationCurve | None] = {}
        self._left: dict[tuple[Kinds, float], TimeSpread | None] = {}  # thousands of similar jobs may wait

    def left(self, kinds: Kinds, age: float) -> TimeSpread | None:
        """Remaining duration of a job of this age, from the narrowest kind with enough jobs that lasted as long. None
        if no similar job has ended."""
        if (kinds, age) not in self._left:
            self._left[kinds, age] = self._by_narrowest(kinds, age)
        return self._left[kinds, age]

    def _by_narrowest(self, kinds: Kinds, age: float) -> TimeSpread | None:
        widest: DurationCurve | None = None
        for kind in kinds:
            course = self._course(kind)
            if course is None:
                continue
            if course.ended >= ENOUGH and course.outlasting(age) >= ENOUGH:
                return course.left(age)
            if widest is None or widest.ended < ENOUGH:
                widest = course
        return None if widest is None else widest.left(age)

    def _course(self, kind: Hashable) -> DurationCurve | None:
        if kind not in self._courses:
            ended, running = self._durations.of(kind), self._running.get(kind, ())
            foretold = [one.in_all for one in running if one.in_all is not None]
            ended = sorted([*ended, *foretold]) if foretold else ended
            ages = sorted(one.age for one in running if one.in_all is None)
            self._courses[kind] = course_of(ended, ages) if ended else None
        return self._courses[kind]


def kinds_of(job: Job) -> Kinds:
    """The kinds of a stored job."""
    gpus = gpus_of(resource_request_of_job(job))
    return (
        ("workload", workload_of(job.spec), gpus),
        ("workload", workload_of(job.spec)),
        ("tenant", job.tenant, str(job.spec.kind), gpus),
        ("gpus", str(job.spec.kind), gpus),
        ("kind", str(job.spec.kind)),
    )


def learn(durations: Lasted, ended: Sequence[Job]) -> None:
    """Add jobs that are over, in the order in which they ended. Only jobs that did all their work count: failures,
    cancellations, services and benchmarks are left out."""
    for job in sorted(ended, key=lambda job: (job.ended_at or 0.0, job.seq)):
        whole = job.state is JobState.SUCCEEDED and job.attained_seconds > 0
        if whole and not job.spec.is_service and not is_benchmark(job.spec):
            durations.add(kinds_of(job), job.attained_seconds)
