"""The store in one process: the guarantees of the real one, without a server. Its state ends with the process.

It has no clock and no randomness: the same calls in the same order leave the same state, event for event.
"""

from collections.abc import Sequence
from itertools import compress

from tests.support.doubles.store.accounts import MemoryAccounts
from tests.support.doubles.store.arrays import MemoryArrays
from tests.support.doubles.store.asks import in_turn
from tests.support.doubles.store.history import MemoryHistory
from tests.support.doubles.store.learnt import MemoryLearnt
from tests.support.doubles.store.quotas import MemoryQuotas
from tests.support.doubles.store.retention import MemoryRetention
from tests.support.doubles.store.serving import MemoryServing
from tests.support.doubles.store.slots import Slots, slots_after
from tests.support.doubles.store.tenants import MemoryTenants
from tests.support.doubles.store.times import micro
from weft.domain.job import Job, JobChange, after
from weft.domain.lease import Lease
from weft.messages.asks import AskKind
from weft.messages.events import step_data
from weft.messages.history import Record
from weft.store import UnlawfulError


class MemoryStore(
    MemoryAccounts,
    MemoryArrays,
    MemoryHistory,
    MemoryLearnt,
    MemoryQuotas,
    MemoryRetention,
    MemoryServing,
    MemoryTenants,
):
    """Every store Protocol of `weft.store` but those that only a gateway uses: secrets, webhooks and contexts.

    A call runs to its end before the next begins, so each is atomic.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots: Slots = {}

    async def admit(self, lease: Lease, *, load: int, pool: str, limit: int) -> list[Job]:
        self._must_hold(lease)
        self._must_have_loaded_last(lease, load)
        found = [ask for of_pool, ask in self._asks.values() if of_pool == pool and ask.kind is AskKind.SUBMIT]
        waiting = in_turn(found)
        born = [self._submitted[ask.subject_id] for ask in waiting[:limit]]
        for ask in waiting[:limit]:
            del self._asks[ask.id]
        self._jobs.update({job.id: job for job in born})
        return sorted(born, key=lambda job: job.seq)

    async def take(self, lease: Lease, changes: Sequence[JobChange], *, record: Record | None = None) -> list[bool]:
        if not changes:
            return []
        self._must_hold(lease)
        if record is not None:
            self._must_follow(lease, record)
        # All steps are checked first: if one is refused, nothing changes.
        moved: dict[str, Job] = {}
        left_out: set[str] = set()
        taken: list[bool] = []
        for change in changes:
            before = moved.get(change.before.id) or self._jobs.get(change.before.id)
            current = before is not None and before.version == change.step.version
            taken.append(current and change.before.id not in left_out)
            if not taken[-1]:
                left_out.add(change.before.id)
            else:
                assert before == change.before, f"the caller's picture of {change.before.id} is wrong"
                moved[change.before.id] = _lawful(change)
        were = [self._jobs[job_id] for job_id in moved]
        self._slots = slots_after(self._slots, were, moved.values(), self._gpu_memory())
        self._jobs.update(moved)
        if record is not None:
            await self.record(lease, record)
        self._xid += 1
        for change in compress(changes, taken):
            step, job = change.step, change.after
            self._asks.pop(step.ask, None)
            at, data = micro(step.at), step_data(change)
            self._tell("jobs", step.event, job.id, job.version, at, data, tenant=job.tenant, alone=False)
        return taken


def _lawful(change: JobChange) -> Job:
    """The job after the step. Raises UnlawfulError for a step that the rules forbid."""
    try:
        job = after(change.before, change.step)
    except AssertionError as error:
        raise UnlawfulError(str(error)) from error
    assert job == change.after, f"{job.id} after {change.step.event} is not as the law says"
    return job
