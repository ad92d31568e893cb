"""Arrays, in memory, made of the jobs that are their elements; how far the jobs and arrays are that others wait for."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from tests.support.doubles.store.jobs import MemoryJobs, bytes_of
from tests.support.doubles.store.times import micro
from weft.domain.arrays import ARRAY_PREFIX
from weft.domain.dependencies import Ends
from weft.domain.job import Job, JobState
from weft.domain.tenants import Allowance, full
from weft.messages.asks import AskKind
from weft.store import TenantFullError
from weft.store.arrays import ARRAYS_BYTES_MAX, ArrayKept


class MemoryArrays(MemoryJobs):
    async def array_jobs(
        self, array: str, *, states: Sequence[JobState] = (), limit: int = 100, after: int = 0
    ) -> list[Job]:
        page = [job for job in _elements_in(self._now(), array) if job.seq > after][:limit]
        return [job for job in page if not states or job.state in states]

    async def arrays(
        self,
        *,
        ids: Sequence[str] = (),
        tenant: str | None = None,
        opened: bool = False,
        limit: int = 100,
        bytes_max: int = ARRAYS_BYTES_MAX,
    ) -> list[ArrayKept]:
        by_array: dict[str, list[Job]] = {}
        for job in self._now():
            if job.spec.element is not None:
                by_array.setdefault(job.spec.element.array, []).append(job)
        if ids:
            return _within([_array_of(array, by_array[array]) for array in ids if array in by_array], bytes_max)
        found = [_array_of(array, jobs) for array, jobs in by_array.items()]
        found = [one for one in found if tenant in (None, one.tenant) and not (opened and one.over)]
        newest = sorted(found, key=lambda one: (one.submitted_at, one.id), reverse=True)[:limit]
        return _within(newest, bytes_max)

    async def array_named(self, name: str, *, tenant: str | None) -> str | None:
        found = await self.arrays(tenant=tenant, limit=len(self._submitted))
        return next((one.id for one in found if one.name == name), None)

    async def ask_elements(
        self,
        kind: AskKind,
        *,
        array: str,
        states: Sequence[JobState],
        job_ids: Sequence[str] = (),
        tenant: str,
        at: float,
        allowance: Allowance | None = None,
        who: str = "",
    ) -> int:
        known = {ask.subject_id for _, ask in self._asks.values() if ask.kind is kind}
        wanted = [
            job
            for job in _elements_in(self._now(), array)
            if job.state in states and (not job_ids or job.id in job_ids) and job.id not in known
        ]
        over = [job for job in wanted if job.state.final]
        size = sum(bytes_of(job.spec) for job in over)
        if allowance is not None and over:
            reason = full(self._use(tenant, asked=True), allowance, spec_bytes=size, jobs=len(over))
            if reason is not None:
                raise TenantFullError(reason)
        for job in wanted:
            self._add_ask(kind, subject_id=job.id, pool=job.pool, tenant=tenant, at=micro(at), who=who)
        return len(wanted)

    async def ends_of(self, ids: Sequence[str]) -> list[Ends]:
        jobs = list(self._now()) if any(one.startswith(ARRAY_PREFIX) for one in ids) else []
        found: list[Ends] = []
        for one in ids:
            job = self._jobs.get(one) or self._submitted.get(one)
            found.append(_ends_in(one, _elements_in(jobs, one) if job is None else [job]))
        return found


def _within(arrays: list[ArrayKept], bytes_max: int) -> list[ArrayKept]:
    """The first arrays, of which all but the last have fewer bytes together."""
    before = accumulate((bytes_of(one.spec) for one in arrays), initial=0)
    return [one for one, size in zip(arrays, before, strict=False) if size < bytes_max]


def _array_of(array: str, jobs: Sequence[Job]) -> ArrayKept:
    """The array with these elements, at least one."""
    first = min(jobs, key=lambda job: job.seq)
    assert first.spec.element is not None, "it is an element"
    waits = [job for job in jobs if job.state is JobState.QUEUED and job.waiting_for is not None]
    return ArrayKept(
        id=array,
        name=first.spec.element.name,
        tenant=first.tenant,
        pool=first.pool,
        seq=first.seq,
        submitted_at=first.submitted_at,
        submitter=first.submitter,
        spec=first.spec,
        states=dict(Counter(job.state for job in jobs)),
        started_at=min((job.started_at for job in jobs if job.started_at is not None), default=None),
        ended_at=max((job.ended_at for job in jobs if job.ended_at is not None), default=None),
        waiting_for=waits[0].waiting_for if waits else None,
    )


def _elements_in(jobs: Iterable[Job], array: str) -> list[Job]:
    """The elements of an array among the jobs."""
    return [job for job in jobs if job.spec.element is not None and job.spec.element.array == array]


def _ends_in(name: str, jobs: Sequence[Job]) -> Ends:
    """How far these jobs are together."""
    ended = [job for job in jobs if job.state.final]
    ok = sum(job.state is JobState.SUCCEEDED for job in ended)
    return Ends(
        id=name,
        total=len(jobs),
        ended=len(ended),
        ok=ok,
        bad=sum(job.state is not JobState.SUCCEEDED and job.started_at is not None for job in ended),
        began=sum(job.started_at is not None for job in jobs),
    )
