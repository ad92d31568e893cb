"""Submissions, in memory."""

from collections.abc import Sequence

from tests.support.doubles.store.jobs import MemoryJobs, bytes_of, bytes_of_revisions
from tests.support.doubles.store.times import micro
from weft.domain.job import Job, JobEvent
from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance, full
from weft.messages.asks import AskKind
from weft.messages.events import submission_data
from weft.store import KeyReusedError, TenantFullError
from weft.store.rows import hash_of
from weft.store.submissions import StoredSubmission


class MemorySubmissions(MemoryJobs):
    """What `SubmissionStore` promises."""

    def __init__(self) -> None:
        super().__init__()
        self._seq = 0
        self._keys: dict[tuple[str, str], tuple[str, bytes]] = {}

    async def submit(
        self,
        spec: JobSpec,
        *,
        job_id: str,
        tenant: str,
        key: str | None,
        at: float,
        allowance: Allowance | None = None,
        given: JobSpec | None = None,
        submitter: str = "",
    ) -> StoredSubmission:
        spec_hash = hash_of(given or spec)
        before = None if key is None else self._keys.get((tenant, key))
        if before is not None:
            return _the_same(before, spec_hash)
        if allowance is not None and (reason := full(self._use(tenant), allowance, spec_bytes=bytes_of(spec))):
            raise TenantFullError(reason)
        self._add_job(spec, job_id=job_id, tenant=tenant, at=micro(at), submitter=submitter)
        if key is not None:
            self._keys[tenant, key] = (job_id, spec_hash)
        return StoredSubmission(job_id=job_id, created=True)

    async def submit_array(
        self,
        elements: Sequence[tuple[str, JobSpec]],
        *,
        given: JobSpec,
        array: str,
        tenant: str,
        key: str | None,
        at: float,
        allowance: Allowance | None = None,
        submitter: str = "",
    ) -> StoredSubmission:
        before = None if key is None else self._keys.get((tenant, key))
        if before is not None:
            return _the_same(before, hash_of(given))
        size = sum(bytes_of(spec) for _, spec in elements)
        if allowance is not None and (
            reason := full(self._use(tenant), allowance, spec_bytes=size, jobs=len(elements))
        ):
            raise TenantFullError(reason)
        for job_id, spec in elements:
            self._add_job(spec, job_id=job_id, tenant=tenant, at=micro(at), submitter=submitter)
        if key is not None:
            self._keys[tenant, key] = (array, hash_of(given))
        return StoredSubmission(job_id=array, created=True)

    async def submitted(self, spec: JobSpec, *, tenant: str, key: str) -> StoredSubmission | None:
        before = self._keys.get((tenant, key))
        if before is None:
            return None
        return _the_same(before, hash_of(spec))

    async def ask_requeue(
        self, *, job_id: str, pool: str, tenant: str, at: float, allowance: Allowance, who: str = ""
    ) -> None:
        job = self._jobs.get(job_id) or self._submitted[job_id]
        size = bytes_of(job.spec) + bytes_of_revisions(job)
        reason = full(self._use(tenant, asked=True), allowance, spec_bytes=size)
        if reason is not None:
            raise TenantFullError(reason)
        self._add_ask(AskKind.REQUEUE, subject_id=job_id, pool=pool, tenant=tenant, at=micro(at), who=who)

    def _add_job(self, spec: JobSpec, *, job_id: str, tenant: str, at: float, submitter: str) -> None:
        assert job_id not in self._submitted, f"two jobs with the id {job_id}"
        self._seq += 1
        job = Job(
            id=job_id,
            tenant=tenant,
            spec=spec,
            seq=self._seq,
            submitted_at=at,
            since=at,
            priority=spec.priority,
            submitter=submitter,
        )
        self._submitted[job_id] = job
        self._add_ask(AskKind.SUBMIT, subject_id=job_id, pool=spec.pool, tenant=tenant, at=at)
        data = submission_data(job_id, tenant, spec, submitter=submitter)
        self._tell("jobs", JobEvent.SUBMITTED, job_id, 1, at, data, tenant=tenant)


def _the_same(before: tuple[str, bytes], spec_hash: bytes) -> StoredSubmission:
    job_id, known_hash = before
    if known_hash != spec_hash:
        raise KeyReusedError(f"this key was used for job {job_id}, which has another specification")
    return StoredSubmission(job_id=job_id, created=False)
