"""Submissions, and ended jobs that shall run again: what opens jobs, within the allowance of a tenant."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance


class StoredSubmission(Struct, frozen=True, kw_only=True):
    job_id: str
    created: bool  # False: this key was submitted before, and `job` is that job


class SubmissionStore(Protocol):
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
        """Store one submission, its event, and the ask to admit it, in one statement. `given`: the specification as its
        user gave it, if it is stored otherwise: the key is kept with it. `submitter`: the name of the person who
        submits; empty: a token is used.

        Raises KeyReusedError, and TenantFullError where the tenant would have more open than its `allowance`, None
        being without bounds. Submissions that are stored at the same moment do not see each other.
        """

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
        """As `submit`, for all elements of an array or none of them: each with its id, from the lowest index. The
        answer has the id of the array."""

    async def submitted(self, spec: JobSpec, *, tenant: str, key: str) -> StoredSubmission | None:
        """What `key` submitted before, if anything. Raises KeyReusedError if that was another specification."""

    async def ask_requeue(
        self, *, job_id: str, pool: str, tenant: str, at: float, allowance: Allowance, who: str = ""
    ) -> None:
        """Ask the scheduler to run an ended job again. `who`: the name of the person; empty: a token is used. Raises
        TenantFullError."""
