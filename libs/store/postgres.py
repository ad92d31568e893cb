"""The store on a real Postgres: one class for every role; the database enforces what each role may do.

Driver traps and their work-arounds are in docs/decisions/0003-postgres-is-truth.md.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf

import msgspec
from msgspec import UNSET

from libs.domain.arrays import ARRAY_PREFIX
from libs.domain.cluster import Node
from libs.domain.dependencies import Ends
from libs.domain.job import FINAL, Job, JobChange, JobState
from libs.domain.lease import Lease, Pledge
from libs.domain.quotas import Quota
from libs.domain.selection import Selection
from libs.domain.spec import JobSpec
from libs.domain.tenants import NAMES, Allowance, AllowanceChange, full
from libs.messages.accounts import JobFacts
from libs.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Tune, Update
from libs.messages.events import Event
from libs.messages.history import Record
from libs.messages.series import GpuChanges
from libs.messages.signals import Curve, GpuScore, WorkloadClass
from libs.store import (
    FILE_LABEL,
    Access,
    ArrayKept,
    Envelope,
    JobsKept,
    LeaseLostError,
    Moment,
    OpenService,
    StoredSubmission,
    TenantFullError,
    TenantKept,
    TokenKept,
    Unsent,
)
from libs.store.asking import Asking, Row
from libs.store.rows import (
    array_of,
    as_json,
    as_micros,
    as_text,
    ask_of,
    chosen_of,
    columns_of,
    curve_of,
    ends_of,
    envelope_of,
    event_of,
    facts_of,
    job_of,
    lease_of,
    node_of,
    selection_columns,
    service_of,
    spec_of,
    steps_of,
    tenant_of,
    unsent_of,
    use_of,
)
from libs.store.submitting import Submission, Submitting
from libs.store.webhooks import PostgresWebhooks

FEW_JOBS = 20  # decoded at once; more are decoded in a thread, so that no other task waits
PAGE_JOBS, PAGE_BYTES = 500, 16 << 20  # of jobs read in one page: a specification may be a megabyte
TRIM_RECORDS, TRIM_BYTES = 2000, 32 << 20  # of a history, dropped in one statement
TRIM_PARTS = 100  # statements in one call: the next call drops the rest
ADMITTED_BYTES_MAX = 8 << 20  # of specifications, as they are stored


class PostgresStore(PostgresWebhooks):
    """Every store Protocol of `libs.store`; how Postgres is asked is `Asking`'s."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self._rows, self._row = asking.rows, asking.row
        self._submitting = Submitting(asking)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        dsn: str,
        *,
        user: str | None = None,
        password: str | Callable[[], str] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        connections: int = 8,
    ) -> AsyncIterator["PostgresStore"]:
        """Connect, or raise StoreUnavailableError. With `tls` a server that offers none is refused; without, the DSN's
        `sslmode` decides. A `tls` or `password` function is called for each connection, so that renewed ones count.
        """
        async with Asking.connect(dsn, user=user, password=password, tls=tls, connections=connections) as asking:
            yield cls(asking)

    # gateway

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
        return await self._submitting.submit(submission)

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
        return await self._submitting.submit_array(
            elements, given=given, array=array, tenant=tenant, key=key, at=at, allowance=allowance
        )

    async def submitted(self, spec: JobSpec, *, tenant: str, key: str) -> StoredSubmission | None:
        return await self._submitting.before(spec, tenant=tenant, key=key)

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
    ) -> None:
        what = [None if one is None else as_json(one) for one in (scale, share, update, entry)]
        await self._row("ask", kind, pool, subject_id, tenant, priority, at, *what)

    async def ask_requeue(self, *, job_id: str, pool: str, tenant: str, at: float, allowance: Allowance) -> None:
        most = allowance.jobs_open_max, allowance.spec_bytes_max
        row = await self._row("ask_requeue", pool, job_id, tenant, at, *most)
        assert row is not None, "what is used is always told"
        if not row["asked"]:
            raise TenantFullError(full(use_of(row), allowance, spec_bytes=row["spec_bytes"]) or "it is full")

    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        row = await self._row("access", token_hash, at)
        return None if row is None else Access(tenant=row["tenant"], admin=row["admin"], chosen=chosen_of(row))

    async def add_token(
        self,
        token_hash: bytes,
        *,
        tenant: str,
        admin: bool,
        label: str,
        at: float,
        expires_at: float | None = None,
        label_is_new: bool = False,
    ) -> bool:
        stored = await self._row("add_token", token_hash, tenant, admin, label, at, expires_at, label_is_new)
        return stored is not None

    async def token_used(self, token_hash: bytes, *, at: float, not_within: float) -> None:
        await self._row("token_used", token_hash, at, at - not_within)

    async def tokens(self, *, tenant: str | None = None, limit: int = 1000) -> list[TokenKept]:
        return [TokenKept(**row) for row in await self._rows("tokens", tenant, limit)]

    async def revoke_tokens(self, *, tenant: str, label: str, at: float) -> int:
        return len(await self._rows("revoke_tokens", tenant, label, at))

    async def forget_tokens(self, *, before: float) -> int:
        return await self._count("forget_tokens", before, f"{FILE_LABEL}%")

    async def tenants(self, *, tenant: str | None = None, limit: int = 1000) -> list[TenantKept]:
        return [tenant_of(row) for row in await self._rows("tenants", tenant, limit)]

    async def change_tenant(self, tenant: str, change: AllowanceChange) -> None:
        changes = [getattr(change, name) for name in NAMES]
        flags = [part for each in changes for part in ((False, None) if each is UNSET else (True, each))]
        await self._row("change_tenant", tenant, *flags)

    async def quotas(self, *, pool: str | None = None) -> list[Quota]:
        return [msgspec.json.decode(row["quota"], type=Quota) for row in await self._rows("quotas", pool)]

    async def decayed_use(self, *, pool: str, at: float, half_life: float) -> dict[str, float]:
        return {row["tenant"]: row["used"] for row in await self._rows("decayed_use", pool, at, half_life)}

    async def set_quota(self, quota: Quota) -> None:
        await self._row("set_quota", quota.pool, quota.name, msgspec.json.encode(quota).decode())

    async def delete_quota(self, name: str, *, pool: str) -> bool:
        return bool(await self._rows("delete_quota", pool, name))

    async def job(self, job_id: str) -> Job | None:
        row = await self._row("job", job_id)
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
    ) -> list[Job]:
        opened = bool(states) and not FINAL.intersection(states)
        query = ("jobs" if elements else "jobs_apart") + "_open" * opened
        rows = await self._rows(query, tenant, [str(s) for s in states], name, before or 2**62, limit)
        return [job_of(row) for row in rows]

    async def jobs_selected(
        self,
        selection: Selection,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        limit: int = 100,
        before: int = 0,
    ) -> list[Job]:
        opened = bool(states) and not FINAL.intersection(states)
        rows = await self._rows(
            "jobs_selected_open" if opened else "jobs_selected",
            tenant,
            [state.value for state in states or JobState],
            before or 2**62,
            limit,
            *selection_columns(selection),
        )
        return [job_of(row) for row in rows]

    async def ids_beginning(self, prefix: str, *, tenant: str | None, limit: int) -> list[str]:
        return [row["id"] for row in await self._rows("ids_beginning", tenant, prefix, limit)]

    async def array_jobs(
        self, array: str, *, states: Sequence[JobState] = (), limit: int = 100, after: int = 0
    ) -> list[Job]:
        return [job_of(row) for row in await self._rows("array_jobs", array, [str(s) for s in states], after, limit)]

    async def arrays(
        self, *, ids: Sequence[str] = (), tenant: str | None = None, opened: bool = False, limit: int = 100
    ) -> list[ArrayKept]:
        found = list(ids)
        if not ids:
            query = ("arrays_open", tenant, limit) if opened else ("arrays_newest", tenant, limit, "")
            found = [row["id"] for row in await self._rows(*query)]
        return [array_of(row) for row in await self._rows("arrays", found)] if found else []

    async def array_named(self, name: str, *, tenant: str | None) -> str | None:
        row = await self._row("arrays_newest", tenant, 1, name)
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
    ) -> int:
        most = (None, None) if allowance is None else (allowance.jobs_open_max, allowance.spec_bytes_max)
        states_text = [str(state) for state in states]
        row = await self._row("ask_elements", kind, array, states_text, list(job_ids), tenant, at, *most)
        assert row is not None, "what is used is always told"
        if allowance is not None and row["asked"] < row["wanted"]:
            reason = full(use_of(row), allowance, spec_bytes=row["spec_bytes"], jobs=row["wanted"])
            raise TenantFullError(reason or "it was full a moment ago")
        return int(row["asked"])

    async def ends_of(self, ids: Sequence[str]) -> list[Ends]:
        arrays = [one for one in ids if one.startswith(ARRAY_PREFIX)]
        jobs = [one for one in ids if not one.startswith(ARRAY_PREFIX)]
        rows = await self._rows("ends_of_jobs", jobs) if jobs else []
        more = await self._rows("ends_of_arrays", arrays) if arrays else []
        return [ends_of(row) for row in (*rows, *more)]

    async def story(self, job_id: str, *, after: int = 0) -> list[Event]:
        return [event_of(row) for row in await self._rows("story", job_id, after)]

    async def last_told(self, topic: str, subject_ids: Sequence[str], *, events: Sequence[str]) -> list[Event]:
        rows = await self._rows("last_told", topic, list(subject_ids), list(events)) if subject_ids else []
        return [event_of(row) for row in rows]

    async def events(
        self, *, after: str = "", tenant: str | None = None, newest: bool = False, limit: int = 1000
    ) -> list[Event]:
        xid, _, event_id = (after or "0-0").partition("-")
        way, place = "newest" if newest else "after", (int(xid), int(event_id), limit)
        if tenant is None:
            rows = await self._rows(f"events_{way}", *place)
        else:
            rows = await self._rows(f"events_of_tenant_{way}", *place, tenant)
        return [event_of(row) for row in rows]

    async def policy(self, *, pool: str) -> str:
        row = await self._row("policy", pool)
        return "" if row is None else str(row["policy"])

    async def nodes(self, *, pool: str | None = None) -> list[Node]:
        return [node_of(row) for row in await self._rows("nodes", pool)]

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        return await self._paged("holding_jobs", pool)

    async def queued_jobs(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        versions = {row["id"]: row["version"] for row in await self._rows("queued_versions", pool)}
        kept = {job_id: job for job_id, job in known.items() if versions.get(job_id) == job.version}
        missing = [job_id for job_id in versions if job_id not in kept]
        for begin in range(0, len(missing), PAGE_JOBS):
            read = await self.jobs_of(missing[begin : begin + PAGE_JOBS])
            kept |= {job.id: job for job in read if job.state is JobState.QUEUED}
        return [kept[job_id] for job_id in versions if job_id in kept]

    async def services(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        versions = {row["id"]: row["version"] for row in await self._rows("service_versions", pool)}
        kept = {job_id: job for job_id, job in known.items() if versions.get(job_id) == job.version}
        missing = [job_id for job_id in versions if job_id not in kept]
        for begin in range(0, len(missing), PAGE_JOBS):
            read = await self.jobs_of(missing[begin : begin + PAGE_JOBS])
            kept |= {job.id: job for job in read if job.state.holding}
        return [kept[job_id] for job_id in versions if job_id in kept]

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]:
        return await self._paged("jobs_of", list(job_ids), most=len(job_ids))

    async def ended_last(self, *, pool: str, since: float, limit: int) -> list[str]:
        return [row["id"] for row in await self._rows("ended_last", pool, since, limit)]

    async def specifications(self, job_ids: Sequence[str], *, bytes_max: int) -> dict[str, JobSpec]:
        rows = await self._rows("specifications", sorted(set(job_ids)), bytes_max)
        return {row["id"]: spec_of(row) for row in rows}

    async def jobs_kept(self) -> list[JobsKept]:
        return [JobsKept(**row) for row in await self._rows("jobs_kept")]

    async def jobs_between(self, begins: float, *, limit: int) -> list[str]:
        row = await self._row("jobs_between", begins, limit)
        return [] if row is None else list(row["ids"])

    async def gpu_changes(self, job_ids: Sequence[str], *, begins: float, ends: float) -> list[GpuChanges]:
        rows = await self._rows("gpu_changes", as_micros(begins), as_micros(ends), list(job_ids))
        return [
            GpuChanges(what=row["what"], tenant=row["tenant"], at=tuple(row["at"]), by=tuple(row["by"])) for row in rows
        ]

    async def gpus_there(self, *, begins: float, ends: float) -> GpuChanges:
        row = await self._row("gpus_there", as_micros(begins), as_micros(ends))
        assert row is not None, "an aggregate has one row"
        return GpuChanges(what="there", at=tuple(row["at"]), by=tuple(row["by"]))

    async def job_facts(self, job_ids: Sequence[str]) -> list[JobFacts]:
        return [facts_of(row) for row in await self._rows("job_facts", list(job_ids))]

    async def accounts(self, job_ids: Sequence[str], *, begins: float, ends: float) -> list[Event]:
        rows = await self._rows("accounts", as_micros(begins), as_micros(ends), list(job_ids))
        return [event_of(row) for row in rows]

    async def node_stories(self, *, begins: float, ends: float) -> list[Event]:
        return [event_of(row) for row in await self._rows("node_stories", as_micros(begins), as_micros(ends))]

    async def told_until(self, moment: Moment) -> list[Event]:
        about = moment.at
        if moment.cursor:
            row = await self._row("time_of", *moment.place)
            about = min(about, row["at"]) if row is not None else 0.0
        return [event_of(row) for row in await self._rows("told_until", moment.at, *moment.place, about)]

    async def history(
        self, *, pool: str, after: tuple[int, int] = (0, 0), limit: int = 100, bytes_max: int = 1 << 20
    ) -> list[Record]:
        return [Record(**row) for row in await self._rows("history", pool, *after, limit, bytes_max)]

    # scheduler

    async def lease(self, name: str) -> Lease | None:
        return lease_of(await self._row("lease", name))

    async def take_lease(self, name: str, *, holder: str, seen: Lease | None) -> Lease | None:
        epoch, seq = (seen.epoch, seen.seq) if seen else (0, 0)
        return lease_of(await self._row("take_lease", name, holder, epoch, seq))

    async def renew_lease(self, lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        pledged = (None, None, None) if pledge is None else (pledge.seconds, list(pledge.members), pledge.nats)
        return lease_of(await self._row("renew_lease", lease.name, lease.holder, lease.epoch, *pledged))

    async def release_lease(self, lease: Lease, *, pledge_ends: bool = False) -> None:
        await self._row("release_lease", lease.name, lease.holder, lease.epoch, pledge_ends)

    async def raise_lease(self, lease: Lease, *, above: int) -> Lease | None:
        return lease_of(await self._row("raise_lease", lease.name, lease.holder, lease.epoch, above))

    async def settle_lease(self, lease: Lease) -> Lease | None:
        return lease_of(await self._row("settle_lease", lease.name, lease.holder, lease.epoch))

    async def lead_by(self, lease: Lease, policy: str) -> int:
        row = await self._row("lead_by", lease.name, lease.holder, lease.epoch, policy)
        if row is None:
            raise LeaseLostError(f"lease {lease.name} is no longer held by {lease.holder} in epoch {lease.epoch}")
        return int(row["loads"])

    async def leaderships(self, name: str) -> list[Lease]:
        return [Lease(**row) for row in await self._rows("leaderships", name)]

    async def admit(self, lease: Lease, *, load: int, pool: str, limit: int) -> list[Job]:
        rows = await self._rows("admit", lease.name, lease.holder, lease.epoch, load, pool, limit, ADMITTED_BYTES_MAX)
        return await _decoded(rows)

    async def asks(self, *, pool: str, limit: int) -> list[Ask]:
        return [ask_of(row) for row in await self._rows("asks", pool, limit)]

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        await self._row("drop_asks", lease.name, lease.holder, lease.epoch, list(ask_ids))

    async def open_jobs(self, *, pool: str) -> list[Job]:
        return await self._jobs_in(pool, {state for state in JobState if not state.final})

    async def take(self, lease: Lease, changes: Sequence[JobChange], *, record: Record | None = None) -> list[bool]:
        if not changes:
            return []
        written = (lease.name, lease.holder, lease.epoch, *steps_of(changes))
        if record is None:
            rows = await self._rows("take", *written)
        else:
            rows = await self._rows("take_recorded", *written, *columns_of(record))
        taken = {row["ordinal"] for row in rows}
        return [ordinal in taken for ordinal in range(1, len(changes) + 1)]

    async def save_node(
        self,
        lease: Lease,
        node: Node,
        *,
        event: str,
        cause: str,
        at: float | None = None,
        ask: int = 0,
        load: int | None = None,
    ) -> None:
        await self._row(
            "save_node",
            lease.name,
            lease.holder,
            lease.epoch,
            node.id,
            node.pool,
            as_text(node.address),
            as_json(node.capacity),
            as_text(node.runtime),
            as_json(node.not_enforced),
            node.ready,
            node.drained,
            node.seen_at,
            event,
            as_text(cause),
            ask,
            node.seen_at if at is None else at,
            as_text(node.rack),
            load,
        )

    async def remove_node(self, lease: Lease, node_id: str, *, cause: str, at: float, load: int | None = None) -> None:
        await self._row("remove_node", lease.name, lease.holder, lease.epoch, node_id, as_text(cause), at, load)

    async def forget_jobs(self, lease: Lease, *, before: float, kept_seconds: float, limit: int) -> int:
        return await self._count("forget_jobs", lease.name, lease.holder, lease.epoch, before, kept_seconds, limit)

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        await self._row("touch_nodes", lease.name, lease.holder, lease.epoch, list(node_ids), at)

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]:
        return [GpuScore(**row) for row in await self._rows("scores", pool, since, list(nodes))]

    async def record(self, lease: Lease, record: Record) -> None:
        await self._row("record", lease.name, lease.holder, lease.epoch, *columns_of(record))

    async def trim_history(self, lease: Lease, *, before: float, bytes_max: int) -> int:
        cut = await self._row("history_cut", lease.name, before, bytes_max)
        if cut is None:
            return 0
        held, place, dropped = (lease.name, lease.holder, lease.epoch), (cut["epoch"], cut["number"]), 0
        for _ in range(TRIM_PARTS):
            part = await self._row("trim_history", *held, *place, TRIM_RECORDS, TRIM_BYTES)
            if part is None or not part["count"]:
                break
            dropped += part["count"]
        return dropped

    async def _jobs_in(self, pool: str, states: Collection[JobState]) -> list[Job]:
        return await self._paged("jobs_in", pool, sorted(map(str, states)))

    async def _paged(self, query: str, *arguments: object, most: float = inf) -> list[Job]:
        """Jobs in the order of their submission, read page by page; not more than `most` are there."""
        jobs: list[Job] = []
        while len(jobs) < most:
            page = await self._rows(query, *arguments, jobs[-1].seq if jobs else 0, PAGE_JOBS, PAGE_BYTES)
            jobs += await _decoded(page)
            if not page:
                break
        return jobs

    # relay

    async def unsent(self, *, limit: int) -> list[Unsent]:
        return [unsent_of(row) for row in await self._rows("unsent", limit)]

    async def unsent_count(self) -> int:
        return await self._count("unsent_count")

    async def sent(self, published: Sequence[Unsent]) -> None:
        await self._row("sent", [unsent.event.id for unsent in published], [unsent.entry for unsent in published])

    async def resend(self, *, since: float) -> int:
        return await self._count("resend", since)

    # scorer

    async def save_scores(self, scores: Sequence[GpuScore], *, at: float) -> None:
        await self._row(
            "save_scores",
            [score.node_id for score in scores],
            [score.gpu_index for score in scores],
            [score.job_class for score in scores],
            [score.score for score in scores],
            [score.confidence for score in scores],
            [score.source for score in scores],
            [score.measured_at for score in scores],
            [score.samples for score in scores],
            [score.quarantined_until for score in scores],
            at,
        )

    async def ended_jobs(self, *, tenants: Sequence[str], since: float, until: float, label: str) -> list[Job]:
        return [job_of(row) for row in await self._rows("ended_jobs", list(tenants), since, until, label)]

    async def save_classes(self, classes: Sequence[WorkloadClass], *, pool: str) -> None:
        await self._row(
            "save_classes",
            pool,
            [one.workload for one in classes],
            [one.job_class for one in classes],
            [one.compute for one in classes],
            [one.memory for one in classes],
            [one.samples for one in classes],
            [one.at for one in classes],
        )

    async def classes(self, *, pool: str, since: float = 0.0) -> list[WorkloadClass]:
        return [WorkloadClass(**row) for row in await self._rows("classes", pool, since)]

    async def forget_classes(self, *, pool: str, before: float) -> None:
        await self._row("forget_classes", pool, before)

    async def forget_curves(self, *, before: float) -> int:
        return await self._count("forget_curves", before)

    async def forget_scores(self, *, before: float) -> int:
        return await self._count("forget_scores", before)

    async def save_curves(self, curves: Sequence[Curve]) -> None:
        await self._row(
            "save_curves",
            [curve.pool for curve in curves],
            [curve.subject for curve in curves],
            [msgspec.json.encode(curve.points).decode() for curve in curves],
            [curve.at for curve in curves],
        )

    async def curves(self, *, pool: str, subjects: Sequence[str]) -> list[Curve]:
        return [curve_of(row) for row in await self._rows("curves", pool, list(subjects))]

    # router

    async def open_services(self, *, job_ids: Sequence[str] | None = None) -> list[OpenService]:
        return [
            service_of(row) for row in await self._rows("open_services", None if job_ids is None else list(job_ids))
        ]

    # reallocator

    async def envelopes(self, *, pool: str) -> list[Envelope]:
        return [envelope_of(row) for row in await self._rows("envelopes", pool)]

    async def save_envelope(self, envelope: Envelope, *, at: float) -> None:
        await self._row("save_envelope", envelope.job_id, envelope.pool, envelope.epoch, envelope.state.decode(), at)

    async def ask_tune(self, envelope: Envelope, tune: Tune, *, at: float) -> bool:
        what = msgspec.json.encode(tune).decode()
        row = await self._row(
            "ask_tune", envelope.job_id, envelope.pool, envelope.epoch, what, envelope.state.decode(), at
        )
        return row is not None and bool(row["asked"])

    async def ask_scale(self, envelope: Envelope, scale: Scale, *, at: float) -> bool:
        what = msgspec.json.encode(scale).decode()
        row = await self._row(
            "ask_scale", envelope.job_id, envelope.pool, envelope.epoch, what, envelope.state.decode(), at
        )
        return row is not None and bool(row["asked"])

    async def ask_sizes(self, sizes: Mapping[str, Scale], *, pool: str, at: float) -> list[str]:
        asked = [{"job": job_id, "scale": scale} for job_id, scale in sizes.items()]
        return [row["job_id"] for row in await self._rows("ask_sizes", pool, as_json(asked), at)]

    async def ask_shares(self, shares: Mapping[str, Reshare], *, pool: str, at: float) -> list[str]:
        asked = [{"job": job_id, "share": share} for job_id, share in shares.items()]
        return [row["job_id"] for row in await self._rows("ask_shares", pool, as_json(asked), at)]

    async def drop_envelopes(self, *, pool: str) -> int:
        return await self._count("drop_envelopes", pool)

    async def _count(self, query: str, *arguments: object) -> int:
        """The `count` that a statement returns."""
        row = await self._row(query, *arguments)
        return 0 if row is None else int(row["count"])


async def _decoded(rows: Sequence[Row]) -> list[Job]:
    return await asyncio.to_thread(_jobs_of, rows) if len(rows) > FEW_JOBS else _jobs_of(rows)


def _jobs_of(rows: Sequence[Row]) -> list[Job]:
    return [job_of(row) for row in rows]
