"""Dependencies of waiting jobs on others, and the progress of those.

Jobs of the own pool are followed as they change. A job not known here, because it is over already, or of another
pool, or an array, is `wanted`: the scheduler loop looks it up in the store.
"""

from collections.abc import Iterable, Mapping

from weft.domain.arrays import ARRAY_PREFIX
from weft.domain.dependencies import After, DependencyState, Ends, never_words, verdict, wanted_words
from weft.domain.job import Cause, CauseCode, Job, JobState

LOOK_AGAIN_SECONDS = 1.0  # between two looks at what is not over, in the store
JOBS_MAX, ARRAYS_MAX = 500, 20  # looked up in one cycle


class Dependents:
    def __init__(self) -> None:
        self._after: dict[str, tuple[After, ...]] = {}  # by waiting job
        self._of: dict[str, dict[str, None]] = {}  # by job or array, those that wait for it, in order
        self._ends: dict[str, Ends] = {}
        self._looked_at: dict[str, float] = {}  # by what is to be looked up, when that was done last; 0: never
        self.changed: dict[str, None] = {}  # waiting jobs of which a dependency may have another verdict

    def see(self, job: Job, jobs: Mapping[str, Job]) -> None:
        """Take in a job as it is now. `jobs`: all that are open in this pool."""
        if job.id in self._of:
            self._learn(_ends_of(job))
            self._looked_at.pop(job.id, None)
        if job.state is JobState.QUEUED and job.spec.after:
            self._wait(job, jobs)
        else:
            self._leave(job.id)

    def _wait(self, job: Job, jobs: Mapping[str, Job]) -> None:
        if job.id in self._after:
            return
        self._after[job.id] = job.spec.after
        self.changed[job.id] = None
        for after in job.spec.after:
            self._of.setdefault(after.job, {})[job.id] = None
            if after.job in self._ends or after.job in self._looked_at:
                continue
            if (known := jobs.get(after.job)) is not None:
                self._ends[after.job] = _ends_of(known)
            else:
                self._looked_at[after.job] = 0.0

    def _leave(self, job_id: str) -> None:
        self.changed.pop(job_id, None)
        for after in self._after.pop(job_id, ()):
            waiting = self._of.get(after.job)
            if waiting is None:
                continue  # named twice
            waiting.pop(job_id, None)
            if not waiting:
                del self._of[after.job]
                self._ends.pop(after.job, None)
                self._looked_at.pop(after.job, None)

    def _learn(self, ends: Ends) -> None:
        if self._ends.get(ends.id) != ends:
            self._ends[ends.id] = ends
            self.changed.update(self._of[ends.id])

    def wanted(self, now: float) -> list[str]:
        """The jobs and arrays to look up in the store now; those that waited for longest first."""
        due = sorted((at, one) for one, at in self._looked_at.items() if at + LOOK_AGAIN_SECONDS <= now)
        arrays = [one for _, one in due if one.startswith(ARRAY_PREFIX)]
        return arrays[:ARRAYS_MAX] + [one for _, one in due if not one.startswith(ARRAY_PREFIX)][:JOBS_MAX]

    def tell(self, found: Iterable[Ends], now: float) -> None:
        """Take in what the store says. What is over is not looked up again; an array is, as its elements may be
        requeued."""
        for ends in found:
            if ends.id not in self._looked_at:
                continue
            self._learn(ends)
            if ends.settled and not ends.id.startswith(ARRAY_PREFIX):
                del self._looked_at[ends.id]
            else:
                self._looked_at[ends.id] = now

    def cause(self, job_id: str) -> tuple[DependencyState, Cause | None]:
        """The state of a job's dependencies: satisfied, the jobs that it waits for, or why they can never be
        satisfied."""
        waits: list[After] = []
        for after in self._after.get(job_id, ()):
            ends = self._ends.get(after.job)
            found = DependencyState.OPEN if ends is None else verdict(after.when, ends)
            if found is DependencyState.NEVER:
                assert ends is not None
                sentence = f"waited until {_wanted(after)}, which can no longer happen: {never_words(after, ends)}"
                return found, Cause(code=CauseCode.DEPENDENCY_FAILED, sentence=sentence, by=after.job)
            if found is DependencyState.OPEN:
                waits.append(after)
        if not waits:
            return DependencyState.MET, None
        more = f", and for {len(waits) - 1} more" if len(waits) > 1 else ""
        sentence = f"waits until {_wanted(waits[0])}{more}"
        cause = Cause(
            code=CauseCode.DEPENDENCY, sentence=sentence, by=waits[0].job, numbers={"dependencies": float(len(waits))}
        )
        return DependencyState.OPEN, cause


def _wanted(after: After) -> str:
    many = after.job.startswith(ARRAY_PREFIX)
    return ("all of " if many else "") + wanted_words(after, many=many)


def _ends_of(job: Job) -> Ends:
    began, over = job.started_at is not None, job.state.final
    ok = job.state is JobState.SUCCEEDED
    return Ends(id=job.id, total=1, ended=int(over), ok=int(ok), bad=int(over and began and not ok), began=int(began))
