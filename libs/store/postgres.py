"""The store on a real Postgres: one class for every role; what each may do is the database's to enforce.

Driver traps and their work-arounds are in docs/decisions/0003-postgres-is-truth.md.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from libs.domain.cluster import Node
from libs.domain.job import FINAL, HOLDING, Job, JobState, Step
from libs.domain.spec import JobSpec
from libs.messages.asks import Ask, AskKind, Tune
from libs.messages.events import Event
from libs.messages.history import Record
from libs.messages.signals import Curve, GpuScore, WorkloadClass
from libs.store import (
    Access,
    Envelope,
    KeyReusedError,
    Lease,
    Moment,
    Pledge,
    Submitted,
    TokenKept,
)
from libs.store.asking import Asking
from libs.store.rows import (
    as_json,
    as_text,
    ask_of,
    columns_of,
    curve_of,
    envelope_of,
    event_of,
    hash_of,
    job_of,
    lease_of,
    node_of,
)


class PostgresStore:
    """Every store Protocol of `libs.store`; how Postgres is asked is `Asking`'s."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self._rows, self._row = asking.rows, asking.row

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
        `sslmode` says. It and a `password` that is a function are asked for each connection: what was renewed counts.
        """
        async with Asking.connect(dsn, user=user, password=password, tls=tls, connections=connections) as asking:
            yield cls(asking)

    # gateway

    async def submit(self, spec: JobSpec, *, job_id: str, tenant: str, key: str | None, at: float) -> Submitted:
        encoded = msgspec.json.encode(spec).decode()
        row = await self._row("submit", job_id, tenant, key, spec.pool, spec.name, encoded, hash_of(spec), at)
        if row is not None:
            return Submitted(job_id=job_id, created=True)
        assert key is not None, "only a key conflicts"
        before = await self.submitted(spec, tenant=tenant, key=key)
        assert before is not None, "a submission conflicts with one that is not there"
        return before

    async def submitted(self, spec: JobSpec, *, tenant: str, key: str) -> Submitted | None:
        before = await self._row("submitted_before", tenant, key)
        if before is None:
            return None
        if before["spec_hash"] != hash_of(spec):
            raise KeyReusedError(f"this key was used for job {before['id']}, which has another specification")
        return Submitted(job_id=before["id"], created=False)

    async def ask(
        self, kind: AskKind, *, subject_id: str, pool: str, tenant: str, at: float, priority: int = 0
    ) -> None:
        await self._row("ask", kind, pool, subject_id, tenant, priority, at)

    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        row = await self._row("access", token_hash, at)
        return None if row is None else Access(tenant=row["tenant"], admin=row["admin"])

    async def add_token(
        self, token_hash: bytes, *, tenant: str, admin: bool, label: str, at: float, expires_at: float | None = None
    ) -> None:
        await self._row("add_token", token_hash, tenant, admin, label, at, expires_at)

    async def token_used(self, token_hash: bytes, *, at: float, not_within: float) -> None:
        await self._row("token_used", token_hash, at, at - not_within)

    async def tokens(self, *, tenant: str | None = None, limit: int = 1000) -> list[TokenKept]:
        return [TokenKept(**row) for row in await self._rows("tokens", tenant, limit)]

    async def revoke_tokens(self, *, tenant: str, label: str, at: float) -> int:
        return len(await self._rows("revoke_tokens", tenant, label, at))

    async def job(self, job_id: str) -> Job | None:
        row = await self._row("job", job_id)
        return None if row is None else job_of(row)

    async def jobs(
        self, *, tenant: str | None, states: Sequence[JobState] = (), name: str = "", limit: int = 100, before: int = 0
    ) -> list[Job]:
        opened = bool(states) and not FINAL.intersection(states)
        rows = await self._rows(
            "jobs_open" if opened else "jobs", tenant, [str(s) for s in states], name, before or 2**62, limit
        )
        return [job_of(row) for row in rows]

    async def story(self, job_id: str, *, after: int = 0) -> list[Event]:
        return [event_of(row) for row in await self._rows("story", job_id, after)]

    async def events(
        self, *, after: str = "", tenant: str | None = None, newest: bool = False, limit: int = 1000
    ) -> list[Event]:
        xid, _, event_id = (after or "0-0").partition("-")
        rows = await self._rows("events_newest" if newest else "events_after", int(xid), int(event_id), tenant, limit)
        return [event_of(row) for row in rows]

    async def policy(self, *, pool: str) -> str:
        row = await self._row("policy", pool)
        return "" if row is None else str(row["policy"])

    async def nodes(self, *, pool: str | None = None) -> list[Node]:
        return [node_of(row) for row in await self._rows("nodes", pool)]

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        return [job_of(row) for row in await self._rows("jobs_in", pool, [str(s) for s in HOLDING])]

    async def queued_jobs(self, *, pool: str) -> list[Job]:
        return [job_of(row) for row in await self._rows("jobs_in", pool, [JobState.QUEUED.value])]

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]:
        return [job_of(row) for row in await self._rows("jobs_of", list(job_ids))]

    async def told_until(self, moment: Moment) -> list[Event]:
        return [event_of(row) for row in await self._rows("told_until", moment.at, *moment.place)]

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

    async def lead_by(self, lease: Lease, policy: str) -> None:
        await self._row("lead_by", lease.name, lease.holder, lease.epoch, policy)

    async def leaderships(self, name: str) -> list[Lease]:
        return [Lease(**row) for row in await self._rows("leaderships", name)]

    async def admit(self, lease: Lease, *, pool: str, limit: int) -> list[Job]:
        rows = await self._rows("admit", lease.name, lease.holder, lease.epoch, pool, limit)
        if not rows:
            return []
        born = await self._rows("jobs_of", [row["id"] for row in rows])
        return sorted((job_of(row) for row in born), key=lambda job: job.seq)

    async def asks(self, *, pool: str, limit: int) -> list[Ask]:
        return [ask_of(row) for row in await self._rows("asks", pool, limit)]

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        await self._row("drop_asks", lease.name, lease.holder, lease.epoch, list(ask_ids))

    async def open_jobs(self, *, pool: str) -> list[Job]:
        states = [str(state) for state in JobState if not state.final]
        return [job_of(row) for row in await self._rows("jobs_in", pool, states)]

    async def take(self, lease: Lease, steps: Sequence[Step], *, record: Record | None = None) -> list[bool]:
        if not steps:
            return []
        held = (lease.name, lease.holder, lease.epoch)
        if record is None:
            rows = await self._rows("take", *held, as_json(steps))
        else:
            rows = await self._rows("take_recorded", *held, as_json(steps), *columns_of(record))
        taken = {row["ordinal"] for row in rows}
        return [ordinal in taken for ordinal in range(1, len(steps) + 1)]

    async def save_node(
        self, lease: Lease, node: Node, *, event: str, cause: str, at: float | None = None, ask: int = 0
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
        )

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        await self._row("touch_nodes", lease.name, lease.holder, lease.epoch, list(node_ids), at)

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]:
        return [GpuScore(**row) for row in await self._rows("scores", pool, since, list(nodes))]

    async def record(self, lease: Lease, record: Record) -> None:
        await self._row("record", lease.name, lease.holder, lease.epoch, *columns_of(record))

    async def trim_history(self, lease: Lease, *, before: float, bytes_max: int) -> int:
        row = await self._row("trim_history", lease.name, lease.holder, lease.epoch, before, bytes_max)
        return int(row["count"]) if row is not None else 0

    # relay

    async def unsent(self, *, limit: int) -> list[Event]:
        return [event_of(row) for row in await self._rows("unsent", limit)]

    async def unsent_count(self) -> int:
        row = await self._row("unsent_count")
        return int(row["count"]) if row is not None else 0

    async def sent(self, event_ids: Sequence[int]) -> None:
        await self._row("sent", list(event_ids))

    async def resend(self, *, since: float) -> int:
        row = await self._row("resend", since)
        return int(row["count"]) if row is not None else 0

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

    async def ended_jobs(self, *, tenants: Sequence[str], since: float, limit: int = 1000) -> list[Job]:
        return [job_of(row) for row in await self._rows("ended_jobs", list(tenants), since, limit)]

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

    async def drop_envelopes(self, *, pool: str) -> int:
        row = await self._row("drop_envelopes", pool)
        return int(row["count"]) if row is not None else 0
