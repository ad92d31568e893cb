"""Why a waiting job is kept out of the queue: other jobs must come first, even if capacity is free.

Such a job is held: it blocks no other job, counts for no share, and gets no reservation.
"""

from collections.abc import Iterable, Mapping

from weft.domain.dependencies import DependencyState, Ends
from weft.domain.job import Cause, Job
from weftd.scheduler.thinking.state.array_throttle import ArrayThrottle, SingletonThrottle
from weftd.scheduler.thinking.state.dependents import Dependents


class HoldReasons:
    def __init__(self) -> None:
        self._dependents = Dependents()
        self._arrays = ArrayThrottle()
        self._singletons = SingletonThrottle()

    def see(self, job: Job, jobs: Mapping[str, Job]) -> None:
        """Take in a job as it is now. `jobs`: all that are open in the pool, this one among them unless it is over."""
        self._dependents.see(job, jobs)
        self._dependents.changed.update(dict.fromkeys(self._arrays.see(job)))
        self._dependents.changed.update(dict.fromkeys(self._singletons.see(job)))

    def why(self, job: Job) -> Cause | None:
        """Why a waiting job is held; None: it is not, and an element of an array has its turn from now on."""
        _, cause = self._dependents.cause(job.id)
        return cause or self._singletons.cause(job) or self._arrays.take(job)

    def never(self, job: Job) -> Cause | None:
        """Why a waiting job can never start, whatever else happens."""
        found, cause = self._dependents.cause(job.id)
        return cause if found is DependencyState.NEVER else None

    def take_changed(self) -> str | None:
        """The next waiting job for which the answer of `why` or `never` may be another."""
        changed = self._dependents.changed
        if not changed:
            return None
        job_id = next(iter(changed))
        del changed[job_id]
        return job_id

    def wanted(self, now: float) -> list[str]:
        """The jobs and arrays to look up in the store now."""
        return self._dependents.wanted(now)

    def tell(self, found: Iterable[Ends], now: float) -> None:
        """Take in what the store says of them."""
        self._dependents.tell(found, now)
