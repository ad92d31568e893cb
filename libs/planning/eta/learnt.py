"""How long jobs held their GPUs until they were over, by what makes them alike."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Sequence

from libs.domain.classes import workload_of
from libs.domain.job import Job
from libs.planning.eta.spread import ENOUGH, TimeSpread, outlasting, remaining
from libs.planning.shape import gpus_of, shape_of_job

KEPT_MAX = 400  # of each kind of jobs, those that ended last
KINDS_MAX = 5_000

Kinds = Sequence[Hashable]
"""What a job is, the narrowest kind first: its workload, then its tenant's jobs of its size, …, then any job."""


class Lasted:
    """Lasted of ended jobs. `add` them in the order in which they ended."""

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

    def left(self, kinds: Kinds, age: float) -> tuple[TimeSpread, int] | None:
        """How much longer a job of this age lasts, and from how many ended jobs that is known: those of the narrowest
        kind of which enough lasted as long. None: nothing like it has ended."""
        widest: tuple[TimeSpread, int] | None = None
        for kind in kinds:
            lasted = self._in_order.get(kind)
            if not lasted or (len(lasted) < ENOUGH and widest is not None):
                continue
            if len(outlasting(lasted, age)) >= ENOUGH:
                return remaining(lasted, age), len(lasted)
            if widest is None or widest[1] < ENOUGH:
                widest = remaining(lasted, age), len(lasted)
        return widest


def kinds_of(job: Job) -> Kinds:
    """The kinds of a stored job."""
    gpus = gpus_of(shape_of_job(job))
    return (
        ("workload", workload_of(job.spec), gpus),
        ("workload", workload_of(job.spec)),
        ("tenant", job.tenant, str(job.spec.kind), gpus),
        ("gpus", str(job.spec.kind), gpus),
        ("kind", str(job.spec.kind)),
    )


def learn(durations: Lasted, ended: Sequence[Job]) -> None:
    """Add jobs that are over, in the order in which they ended; those that never held GPUs or nodes tell nothing."""
    for job in sorted(ended, key=lambda job: (job.ended_at or 0.0, job.seq)):
        if job.attained_seconds > 0 and not job.spec.is_service:
            durations.add(kinds_of(job), job.attained_seconds)
