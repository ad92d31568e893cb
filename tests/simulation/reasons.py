"""Every waiting job has a code, a sentence, numbers where its room is full, and an estimate or why there is none.

Computed as the gateway does for `weft explain`, from what is stored at that moment. The reason that the scheduler
recorded is looked at once all is healed: before, there may be no leader that could record one.
"""

from collections.abc import Iterator
from math import inf

from tests.simulation.history import History
from tests.support.doubles.store import MemoryStore
from weft.domain.job import CauseCode, Job, JobState
from weft.planning.eta.starts import PoolToCome
from weft.planning.reasons import explain as explaining

LOOK_SECONDS = 5.0
ESTIMATED_SECONDS = 20.0  # an estimate lives through all that is to come, and costs more than all else of a life
NUMBERED = frozenset({CauseCode.NO_ROOM})
PLACE = frozenset({"ahead"})  # the number that every waiting job has


class Reasons:
    def __init__(self, store: MemoryStore, history: History, *, policy: str) -> None:
        self._store = store
        self._history = history
        self._policy = policy
        self._failed: set[tuple[str, int]] = set()
        self._estimated_at: dict[tuple[str, int], float] = {}

    def look(self, now: float) -> None:
        """Fail for each waiting job that nobody could give a reason now, once in each epoch."""
        jobs = list(self._store._jobs.values())
        queued = [job for job in jobs if job.state is JobState.QUEUED]
        if not queued:
            return
        nodes = [node for node, _ in self._store._nodes.values()]
        holding = [job for job in jobs if job.state.holding]
        to_come = PoolToCome(nodes, holding, queued, now=now, policy=self._policy)
        for job in queued:
            found = explaining.explain(job, nodes=nodes, holding=holding, queued=queued, now=now, policy=self._policy)
            self._history.counts["reasons"] += 1
            if not found.code or not found.sentence:
                self._fail(job, f"its code is {found.code!r}, its sentence {found.sentence!r}")
            elif found.code in NUMBERED and not found.numbers.keys() - PLACE:
                self._fail(job, f"{found.code} comes without a number")
            elif self._is_due(job, now) and not to_come.start_of(job).estimate.sentence:
                self._fail(job, "there is no estimate, and nothing says why")

    def unrecorded(self) -> Iterator[str]:
        """Waiting jobs of which the scheduler recorded no reason."""
        for job in self._store._jobs.values():
            cause = job.waiting_for
            if job.state is JobState.QUEUED and (cause is None or not cause.code or not cause.sentence):
                yield f"{job.id} waits in epoch {job.epoch}, and no reason is recorded"

    def _is_due(self, job: Job, now: float) -> bool:
        """True for the first estimate of an epoch, and again each 20 seconds."""
        due = now - self._estimated_at.get((job.id, job.epoch), -inf) >= ESTIMATED_SECONDS
        if due:
            self._estimated_at[job.id, job.epoch] = now
        return due

    def _fail(self, job: Job, why: str) -> None:
        if (job.id, job.epoch) not in self._failed:
            self._failed.add((job.id, job.epoch))
            self._history.fail(f"unexplained: {job.id} waits in epoch {job.epoch}: {why}")
