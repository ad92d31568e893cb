"""Submissions on a real Postgres: those of several callers in one statement, each acknowledged when it is durable."""

import asyncio
from collections.abc import Sequence

import asyncpg
import msgspec
from msgspec import Struct

from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance, full
from weft.messages.events import submission_data
from weft.store import KeyReusedError, TenantFullError, UnlawfulError
from weft.store.asking import Asking, Row
from weft.store.postgres.batching import Batching
from weft.store.rows import as_json, hash_of, use_of
from weft.store.submissions import StoredSubmission

BATCHED_BYTES_MAX = 16 << 10  # a larger specification goes alone, so that small ones do not wait for it


class Submission(Struct, frozen=True, kw_only=True):
    """A row to be inserted, its specification encoded."""

    spec: JobSpec
    text: str
    job_id: str
    tenant: str
    key: str | None
    at: float
    allowance: Allowance | None
    given: JobSpec  # as its user gave it: the same key comes with the same


class PostgresSubmissions:
    """What `SubmissionStore` promises."""

    asking: Asking
    submitting: "Submitting"

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
    ) -> StoredSubmission:
        submission = Submission(
            spec=spec,
            text=msgspec.json.encode(spec).decode(),
            job_id=job_id,
            tenant=tenant,
            key=key,
            at=at,
            allowance=allowance,
            given=given or spec,
        )
        return await self.submitting.submit(submission)

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
    ) -> StoredSubmission:
        return await self.submitting.submit_array(
            elements, given=given, array=array, tenant=tenant, key=key, at=at, allowance=allowance
        )

    async def submitted(self, spec: JobSpec, *, tenant: str, key: str) -> StoredSubmission | None:
        return await self.submitting.before(spec, tenant=tenant, key=key)

    async def ask_requeue(self, *, job_id: str, pool: str, tenant: str, at: float, allowance: Allowance) -> None:
        most = allowance.jobs_open_max, allowance.spec_bytes_max
        row = await self.asking.row("ask_requeue", pool, job_id, tenant, at, *most)
        assert row is not None, "what is used is always told"
        if not row["asked"]:
            raise TenantFullError(full(use_of(row), allowance, spec_bytes=row["spec_bytes"]) or "it is full")


class Submitting:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._batching = Batching(self._store, alone_on=(UnlawfulError, asyncpg.UniqueViolationError))

    async def submit(self, submission: Submission) -> StoredSubmission:
        """Returns once the submission is stored. Raises KeyReusedError, TenantFullError, StoreUnavailableError."""
        for store in (self._together, self._alone):
            row = await store(submission)
            if row["stored"]:
                return StoredSubmission(job_id=submission.job_id, created=True)
            if submission.key is not None:
                before = await self.before(submission.given, tenant=submission.tenant, key=submission.key)
                if before is not None:
                    return before
            if (reason := _why_full(row, submission)) is not None:
                raise TenantFullError(reason)
            # Earlier submissions of the batch may still be refused: alone, this one is counted exactly.
        raise AssertionError("a submission conflicts with one that is not there")

    async def submit_array(
        self,
        elements: Sequence[tuple[str, JobSpec]],
        *,
        given: JobSpec,
        array: str,
        tenant: str,
        key: str | None,
        at: float,
        allowance: Allowance | None,
    ) -> StoredSubmission:
        """As `submit`, for all elements of an array or none."""
        columns = await asyncio.to_thread(_element_columns, elements, tenant)  # it takes long for many
        most = (None, None) if allowance is None else (allowance.jobs_open_max, allowance.spec_bytes_max)
        row = await self._asking.row(
            "submit_array", *columns, tenant, key, given.pool, hash_of(given), at, array, *most
        )
        assert row is not None, "what is used is always told"
        if row["stored"]:
            return StoredSubmission(job_id=array, created=True)
        if key is not None and (before := await self.before(given, tenant=tenant, key=key)) is not None:
            return before
        assert allowance is not None, "an array conflicts with one that is not there"
        spec_bytes = sum(len(text.encode()) for text in columns[2])
        reason = full(use_of(row), allowance, spec_bytes=spec_bytes, jobs=len(elements))
        raise TenantFullError(reason or "it was full a moment ago")

    async def before(self, spec: JobSpec, *, tenant: str, key: str) -> StoredSubmission | None:
        """The job that this key submitted. Raises KeyReusedError if that has another specification."""
        row = await self._asking.row("submitted_before", tenant, key)
        if row is None:
            return None
        if row["spec_hash"] != hash_of(spec):
            raise KeyReusedError(f"this key was used for job {row['id']}, which has another specification")
        return StoredSubmission(job_id=row["id"], created=False)

    async def _together(self, submission: Submission) -> Row:
        small = len(submission.text) <= BATCHED_BYTES_MAX
        return await (self._batching.one(submission) if small else self._alone(submission))

    async def _alone(self, submission: Submission) -> Row:
        if len(submission.text) <= BATCHED_BYTES_MAX:
            return (await self._store([submission]))[0]
        columns = await asyncio.to_thread(_columns_of, submission)  # it is hashed, which takes a while
        return (await self._asking.rows("submit", *([column] for column in columns)))[0]

    async def _store(self, submissions: Sequence[Submission]) -> list[Row]:
        columns = zip(*map(_columns_of, submissions), strict=True)
        return await self._asking.rows("submit", *map(list, columns))


def _element_columns(elements: Sequence[tuple[str, JobSpec]], tenant: str) -> tuple[list[str], ...]:
    """The ids, names, specifications and events of elements."""
    return (
        [job_id for job_id, _ in elements],
        [spec.name for _, spec in elements],
        [msgspec.json.encode(spec).decode() for _, spec in elements],
        [as_json(submission_data(job_id, tenant, spec)) for job_id, spec in elements],
    )


def _columns_of(submission: Submission) -> tuple[object, ...]:
    spec, allowance = submission.spec, submission.allowance
    most = (None, None) if allowance is None else (allowance.jobs_open_max, allowance.spec_bytes_max)
    return (
        submission.job_id,
        submission.tenant,
        submission.key,
        spec.pool,
        spec.name,
        submission.text,
        hash_of(submission.given),
        submission.at,
        *most,
        as_json(submission_data(submission.job_id, submission.tenant, spec)),
    )


def _why_full(row: Row, submission: Submission) -> str | None:
    """The limit that keeps the tenant from having this submission too; None where there is room."""
    if submission.allowance is None:
        return None
    return full(use_of(row), submission.allowance, spec_bytes=len(submission.text.encode()))
