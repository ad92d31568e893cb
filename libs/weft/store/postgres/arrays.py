"""Arrays on a real Postgres, and how far the jobs and arrays are that others wait for."""

from collections.abc import Sequence

from weft.domain.arrays import ARRAY_PREFIX
from weft.domain.dependencies import Ends
from weft.domain.job import Job, JobState
from weft.domain.tenants import Allowance, full
from weft.messages.asks import AskKind
from weft.store import TenantFullError
from weft.store.arrays import ARRAYS_BYTES_MAX, ArrayKept
from weft.store.asking import Asking
from weft.store.rows import array_of, ends_of, job_of, use_of


class PostgresArrays:
    asking: Asking

    async def array_jobs(
        self, array: str, *, states: Sequence[JobState] = (), limit: int = 100, after: int = 0
    ) -> list[Job]:
        return [
            job_of(row) for row in await self.asking.rows("array_jobs", array, [str(s) for s in states], after, limit)
        ]

    async def arrays(
        self,
        *,
        ids: Sequence[str] = (),
        tenant: str | None = None,
        opened: bool = False,
        limit: int = 100,
        bytes_max: int = ARRAYS_BYTES_MAX,
    ) -> list[ArrayKept]:
        found = list(ids)
        if not ids:
            query = ("arrays_open", tenant, limit) if opened else ("arrays_newest", tenant, limit, "")
            found = [row["id"] for row in await self.asking.rows(*query)]
        return [array_of(row) for row in await self.asking.rows("arrays", found, bytes_max)] if found else []

    async def array_named(self, name: str, *, tenant: str | None) -> str | None:
        row = await self.asking.row("arrays_newest", tenant, 1, name)
        return None if row is None else str(row["id"])

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
        most = (None, None) if allowance is None else (allowance.jobs_open_max, allowance.spec_bytes_max)
        states_text = [str(state) for state in states]
        row = await self.asking.row("ask_elements", kind, array, states_text, list(job_ids), tenant, at, *most, who)
        assert row is not None, "what is used is always told"
        if allowance is not None and row["asked"] < row["wanted"]:
            reason = full(use_of(row), allowance, spec_bytes=row["spec_bytes"], jobs=row["wanted"])
            raise TenantFullError(reason or "it was full a moment ago")
        return int(row["asked"])

    async def ends_of(self, ids: Sequence[str]) -> list[Ends]:
        arrays = [one for one in ids if one.startswith(ARRAY_PREFIX)]
        jobs = [one for one in ids if not one.startswith(ARRAY_PREFIX)]
        rows = await self.asking.rows("ends_of_jobs", jobs) if jobs else []
        more = await self.asking.rows("ends_of_arrays", arrays) if arrays else []
        return [ends_of(row) for row in (*rows, *more)]
