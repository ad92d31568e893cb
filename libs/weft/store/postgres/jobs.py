"""Jobs on a real Postgres, read one by one, in lists, and page by page."""

from collections.abc import Mapping, Sequence
from math import inf
from operator import attrgetter

from weft.domain.job import FINAL, Job, JobState
from weft.domain.selection import Selection
from weft.domain.spec import JobSpec
from weft.messages.asks import AskKind
from weft.store import LISTED_BYTES_MAX, OpenService
from weft.store.asking import Asking
from weft.store.postgres.decoding import decoded
from weft.store.rows import job_of, selection_columns, service_of, spec_of

PAGE_JOBS, PAGE_BYTES = 500, 16 << 20  # of jobs read in one page: a specification may be a megabyte


class PostgresJobs:
    asking: Asking

    async def job(self, job_id: str) -> Job | None:
        row = await self.asking.row("job", job_id)
        return None if row is None else job_of(row)

    async def jobs(
        self,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        name: str = "",
        limit: int = 100,
        before: int = 0,
        elements: bool = True,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> list[Job]:
        opened = bool(states) and not FINAL.intersection(states)
        query = ("jobs" if elements else "jobs_apart") + "_open" * opened
        named = [str(state) for state in states]
        rows = await self.asking.rows(query, tenant, named, name, before or 2**62, limit, bytes_max)
        return await decoded(rows, job_of)

    async def jobs_selected(
        self,
        selection: Selection,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        limit: int = 100,
        before: int = 0,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> list[Job]:
        opened = bool(states) and not FINAL.intersection(states)
        rows = await self.asking.rows(
            "jobs_selected_open" if opened else "jobs_selected",
            tenant,
            [state.value for state in states or JobState],
            before or 2**62,
            limit,
            *selection_columns(selection),
            bytes_max,
        )
        return await decoded(rows, job_of)

    async def ask_selected(
        self,
        kind: AskKind,
        selection: Selection,
        *,
        of: str | None,
        states: Sequence[JobState],
        limit: int,
        tenant: str,
        at: float,
        who: str = "",
    ) -> dict[str, int]:
        rows = await self.asking.rows(
            "ask_selected",
            of,
            [state.value for state in states],
            2**62,
            limit,
            *selection_columns(selection),
            kind,
            tenant,
            at,
            who,
        )
        return {row["pool"]: row["jobs"] for row in rows}

    async def ids_beginning(self, prefix: str, *, tenant: str | None, limit: int) -> list[str]:
        return [row["id"] for row in await self.asking.rows("ids_beginning", tenant, prefix, limit)]

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]:
        return await self._paged("jobs_of", list(job_ids), most=len(job_ids))

    async def ended_last(self, *, pool: str, since: float, limit: int) -> list[str]:
        return [row["id"] for row in await self.asking.rows("ended_last", pool, since, limit)]

    async def ended_jobs(self, *, tenants: Sequence[str], since: float, until: float, label: str) -> list[Job]:
        return [job_of(row) for row in await self.asking.rows("ended_jobs", list(tenants), since, until, label)]

    async def specifications(self, job_ids: Sequence[str], *, bytes_max: int) -> dict[str, JobSpec]:
        rows = await self.asking.rows("specifications", sorted(set(job_ids)), bytes_max)
        return {row["id"]: spec_of(row) for row in rows}

    async def open_jobs(self, *, pool: str) -> list[Job]:
        return await self._paged("jobs_in", pool, sorted(str(state) for state in JobState if not state.final))

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        return await self._paged("holding_jobs", pool)

    async def queued_jobs(self, *, pool: str, known: Mapping[str, Job] = {}, limit: int | None = None) -> list[Job]:
        if limit is None:
            row = await self.asking.row("queued_versions", pool)
        else:
            row = await self.asking.row("first_queued_versions", pool, limit)
        words = (row["versions"] or "").split() if row is not None else []
        queued: list[Job] = []
        missing: list[str] = []
        for job_id, version in zip(words[::2], words[1::2], strict=True):
            job = known.get(job_id)
            if job is not None and job.version == int(version):
                queued.append(job)
            else:
                missing.append(job_id)
        for begin in range(0, len(missing), PAGE_JOBS):
            read = await self.jobs_of(missing[begin : begin + PAGE_JOBS])
            queued += [job for job in read if job.state is JobState.QUEUED]
        return sorted(queued, key=attrgetter("seq"))

    async def _paged(self, query: str, *arguments: object, most: float = inf) -> list[Job]:
        """Jobs in the order of their submission, read page by page; not more than `most` are there."""
        jobs: list[Job] = []
        while len(jobs) < most:
            page = await self.asking.rows(query, *arguments, jobs[-1].seq if jobs else 0, PAGE_JOBS, PAGE_BYTES)
            jobs += await decoded(page, job_of)
            if not page:
                break
        return jobs


class PostgresServing(PostgresJobs):
    async def services(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        versions = {row["id"]: row["version"] for row in await self.asking.rows("service_versions", pool)}
        kept = {job_id: job for job_id, job in known.items() if versions.get(job_id) == job.version}
        missing = [job_id for job_id in versions if job_id not in kept]
        for begin in range(0, len(missing), PAGE_JOBS):
            read = await self.jobs_of(missing[begin : begin + PAGE_JOBS])
            kept |= {job.id: job for job in read if job.state.holding}
        return [kept[job_id] for job_id in versions if job_id in kept]

    async def open_services(self, *, job_ids: Sequence[str] | None = None) -> list[OpenService]:
        return [
            service_of(row)
            for row in await self.asking.rows("open_services", None if job_ids is None else list(job_ids))
        ]
