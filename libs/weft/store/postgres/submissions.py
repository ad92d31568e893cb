"""Submissions on a real Postgres: those of several callers in one statement, each acknowledged when it is durable.
And the uploads that they name: contexts and images, in pieces.
"""

import asyncio
from collections.abc import Awaitable, Sequence

import asyncpg
import msgspec
from msgspec import Struct

from weft.domain.cluster import Drain
from weft.domain.labels import Marking
from weft.domain.lease import Lease
from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance, Use, full, too_large
from weft.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Update
from weft.messages.events import submission_data
from weft.store import ASKS_BYTES_MAX, LARGE_ASK_BYTES, KeyReusedError, LargeAskWaitsError, TenantFullError
from weft.store.asking import Asking, Row
from weft.store.contexts import ContextKept
from weft.store.postgres.batching import Batching
from weft.store.postgres.decoding import decoded
from weft.store.rows import as_json, ask_of, hash_of, use_of
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
    given: JobSpec  # as submitted; a repeated key must come with an equal one
    submitter: str


class PostgresSubmissions:
    """Implements `SubmissionStore`."""

    asking: Asking
    batching: Batching[Submission, Row]

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
        submission = Submission(
            spec=spec,
            text=msgspec.json.encode(spec).decode(),
            job_id=job_id,
            tenant=tenant,
            key=key,
            at=at,
            allowance=allowance,
            given=given or spec,
            submitter=submitter,
        )
        for batched in (len(submission.text) <= BATCHED_BYTES_MAX, False):
            if batched:
                row = await self.batching.one(submission)
            else:
                columns = await asyncio.to_thread(_columns_of, submission)  # it is hashed, which takes a while
                row = (await self.asking.rows("submit", *([column] for column in columns)))[0]
            if row["stored"]:
                return StoredSubmission(job_id=job_id, created=True)
            if key is not None:
                before = await self.submitted(submission.given, tenant=tenant, key=key)
                if before is not None:
                    return before
            if (reason := _why_full(row, submission)) is not None:
                raise TenantFullError(reason)
            # Earlier submissions of the batch may still be refused: alone, this one is counted exactly.
        raise AssertionError("a submission conflicts with one that is not there")

    def submit_together(self, submissions: Sequence[Submission]) -> Awaitable[Sequence[Row]]:
        """Store several submissions in one statement; the answer has a row for each."""
        columns = zip(*map(_columns_of, submissions), strict=True)
        return self.asking.rows("submit", *map(list, columns))

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
        columns = await asyncio.to_thread(_element_columns, elements, tenant, submitter)  # it takes long for many
        most = (None, None) if allowance is None else (allowance.jobs_open_max, allowance.spec_bytes_max)
        known = (tenant, key, given.pool, hash_of(given), at, array)
        row = await self.asking.row("submit_array", *columns, *known, *most, submitter)
        assert row is not None, "what is used is always told"
        if row["stored"]:
            return StoredSubmission(job_id=array, created=True)
        if key is not None and (before := await self.submitted(given, tenant=tenant, key=key)) is not None:
            return before
        assert allowance is not None, "an array conflicts with one that is not there"
        spec_bytes = sum(len(text.encode()) for text in columns[2])
        reason = full(use_of(row), allowance, spec_bytes=spec_bytes, jobs=len(elements))
        raise TenantFullError(reason or "it was full a moment ago")

    async def submitted(self, spec: JobSpec, *, tenant: str, key: str) -> StoredSubmission | None:
        row = await self.asking.row("submitted_before", tenant, key)
        if row is None:
            return None
        if row["spec_hash"] != hash_of(spec):
            raise KeyReusedError(f"this key was used for job {row['id']}, which has another specification")
        return StoredSubmission(job_id=row["id"], created=False)

    async def ask_requeue(
        self, *, job_id: str, pool: str, tenant: str, at: float, allowance: Allowance, who: str = ""
    ) -> None:
        most = allowance.jobs_open_max, allowance.spec_bytes_max
        row = await self.asking.row("ask_requeue", pool, job_id, tenant, at, *most, who)
        assert row is not None, "what is used is always told"
        if not row["asked"]:
            raise TenantFullError(full(use_of(row), allowance, spec_bytes=row["spec_bytes"]) or "it is full")


def _element_columns(elements: Sequence[tuple[str, JobSpec]], tenant: str, submitter: str) -> tuple[list[str], ...]:
    """The ids, names, specifications and events of elements."""
    return (
        [job_id for job_id, _ in elements],
        [spec.name for _, spec in elements],
        [msgspec.json.encode(spec).decode() for _, spec in elements],
        [as_json(submission_data(job_id, tenant, spec, submitter=submitter)) for job_id, spec in elements],
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
        as_json(submission_data(submission.job_id, submission.tenant, spec, submitter=submission.submitter)),
        submission.submitter,
    )


def _why_full(row: Row, submission: Submission) -> str | None:
    """The limit that keeps the tenant from having this submission too; None where there is room."""
    if submission.allowance is None:
        return None
    return full(use_of(row), submission.allowance, spec_bytes=len(submission.text.encode()))


class PostgresAsks:
    asking: Asking

    async def ask(
        self,
        kind: AskKind,
        *,
        subject_id: str,
        pool: str,
        tenant: str,
        at: float,
        priority: int = 0,
        scale: Scale | None = None,
        share: Reshare | None = None,
        update: Update | None = None,
        entry: Entrance | None = None,
        gpu: int | None = None,
        drain: Drain | None = None,
        marking: Marking | None = None,
        who: str = "",
        adds_bytes: int = 0,
        allowance: Allowance | None = None,
    ) -> None:
        parts = (scale, share, update, entry)
        what, size = await asyncio.to_thread(_encoded, parts) if adds_bytes > LARGE_ASK_BYTES else _encoded(parts)
        size = max(adds_bytes, size)
        most = None if allowance is None else allowance.spec_bytes_max
        bounded = (size, most, ASKS_BYTES_MAX if size > LARGE_ASK_BYTES else None)
        out = None if drain is None else as_json(drain)
        marked = None if marking is None else as_json(marking)
        of_node = (gpu, who, out, marked)
        row = await self.asking.row("ask", kind, pool, subject_id, tenant, priority, at, *what, *bounded, *of_node)
        assert row is not None, "what is used is always told"
        if allowance is not None and not row["asked"]:
            used = Use(spec_bytes=row["bytes"])
            if (reason := too_large(used, allowance, asked_bytes=size)) is not None:
                raise TenantFullError(reason)
            raise LargeAskWaitsError(row["waiting"])

    async def asks(self, *, pool: str, limit: int, bytes_max: int = ASKS_BYTES_MAX) -> list[Ask]:
        return await decoded(await self.asking.rows("asks", pool, limit, bytes_max), ask_of)

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        await self.asking.row("drop_asks", lease.name, lease.holder, lease.epoch, list(ask_ids))


def _encoded(parts: Sequence[object]) -> tuple[list[str | None], int]:
    """The parts as JSON, and their bytes together."""
    what = [None if part is None else as_json(part) for part in parts]
    return what, sum(len(text.encode()) for text in what if text is not None)


class PostgresUploads:
    """Implements `UploadStore` on Postgres."""

    asking: Asking

    async def begin_upload(self, upload: str, *, owner: str, digest: str, size: int, at: float, most: int) -> bool:
        return await self.asking.row("begin_context", upload, owner, digest, size, at, most) is not None

    async def add_piece(self, upload: str, number: int, data: bytes, *, at: float) -> bool:
        return await self.asking.row("add_context_piece", upload, number, data, at) is not None

    async def finish_upload(self, upload: str, *, at: float) -> None:
        try:
            await self.asking.rows("finish_context", upload, at)
        except asyncpg.UniqueViolationError:  # The same files were stored meanwhile.
            await self.drop_upload(upload)

    async def drop_upload(self, upload: str) -> None:
        await self.asking.rows("drop_context", upload)

    async def forget_uploads(
        self,
        *,
        whole_before: float,
        begun_before: float,
        owner: str | None = None,
        most: int | None = None,
    ) -> int:
        return len(await self.asking.rows("forget_contexts", whole_before, begun_before, owner, most))


class PostgresContexts:
    """Implements `ContextStore` on Postgres."""

    asking: Asking

    async def use_context(self, tenant: str, digest: str, *, at: float) -> ContextKept | None:
        row = await self.asking.row("use_context", tenant, digest, at)
        return None if row is None else ContextKept(**dict(row))

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        row = await self.asking.row("context_piece", tenant, digest, number)
        return None if row is None else (row["data"], row["bytes"])
