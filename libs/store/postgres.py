"""The store on a real Postgres: one class for every role; what each may do is the database's to enforce.

Driver traps and their work-arounds are in docs/decisions/0003-postgres-is-truth.md.
"""

import asyncio
import hashlib
import logging
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from libs.domain.cluster import Capacity, Node
from libs.domain.job import FINAL, HOLDING, Cause, Job, JobState, Placement, Step
from libs.domain.spec import JobSpec
from libs.messages.asks import Ask, AskKind, Tune
from libs.messages.events import Event
from libs.messages.history import Record
from libs.messages.signals import Curve, CurvePoint, GpuScore, WorkloadClass
from libs.service.sockets import notice_death
from libs.store import (
    Access,
    DoubleAllocationError,
    Envelope,
    KeyReusedError,
    Lease,
    LeaseLostError,
    Moment,
    StoreUnavailableError,
    Submitted,
    TokenKept,
    UnlawfulError,
)
from libs.store.sql import QUERIES

CONNECT_SECONDS_MAX = 2.0
COMMAND_SECONDS_MAX = 5.0
ACQUIRE_SECONDS_MAX = 3.0
UNHEARD_SECONDS_MAX = 4  # bytes sent and not acknowledged for so long: the link is dead
NO_PLACE_SECONDS = 0.05
WAITING_MAX = 1024  # who waits for a connection; more are refused at once

# So that the server, too, gives up whoever has vanished: what he had locked is free about 10 s later.
SESSION: Mapping[str, str] = {
    "application_name": "weft",
    "timezone": "UTC",
    "lock_timeout": "2s",
    "statement_timeout": "4500ms",  # below our own bound, so that it is the server that ends it
    "idle_in_transaction_session_timeout": "10s",
    "tcp_keepalives_idle": "4",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

# A write that failed in one of these ways may or may not have happened.
UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.exceptions._base.InternalClientError,  # raised when the server dies in mid-answer
    asyncpg.OperatorInterventionError,  # it shuts down, starts up, or cancelled the query
    asyncpg.InsufficientResourcesError,  # connections, disk, memory
    asyncpg.PostgresSystemError,
    asyncpg.LockNotAvailableError,
    asyncpg.TransactionRollbackError,  # deadlocks among them
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidAuthorizationSpecificationError,  # a password that is being changed: the new one comes in its file
    asyncpg.ReadOnlySQLTransactionError,
)

_ZERO_BYTE = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")

_Row = asyncpg.Record


class PostgresStore:
    """Every store Protocol of `libs.store`, over one pool of connections. Every wait is bounded.

    While Postgres does not answer only as many ask as there are connections; all others are told so at once.
    """

    def __init__(self, pool: "asyncpg.Pool[_Row]", *, connections: int) -> None:
        self._pool = pool
        self._connections = connections
        self._asking = 0
        self._failing = False

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

        async def connect(*arguments: Any, **named: Any) -> "asyncpg.Connection[_Row]":
            if tls is not None:
                named["ssl"] = tls()
            made: asyncpg.Connection[_Row] = await asyncpg.connect(*arguments, **named)
            notice_death(getattr(made, "_transport", None), seconds=UNHEARD_SECONDS_MAX)
            return made

        logging.getLogger("asyncpg").setLevel(logging.CRITICAL)  # it prints tracebacks while the server restarts
        try:
            pool = await asyncpg.create_pool(
                dsn,
                user=user,
                password=password,
                min_size=1,
                max_size=connections,
                connect=connect,
                timeout=CONNECT_SECONDS_MAX,
                command_timeout=COMMAND_SECONDS_MAX,
                reset=_no_reset,
                server_settings=dict(SESSION),
            )
        except (*UNREACHABLE, asyncpg.InvalidCatalogNameError) as error:
            raise StoreUnavailableError(f"connecting to Postgres: {error}") from error
        try:
            yield cls(pool, connections=connections)
        finally:
            pool.terminate()

    # gateway

    async def submit(self, spec: JobSpec, *, job_id: str, tenant: str, key: str | None, at: float) -> Submitted:
        encoded = msgspec.json.encode(spec).decode()
        row = await self._row("submit", job_id, tenant, key, spec.pool, spec.name, encoded, _hash(spec), at)
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
        if before["spec_hash"] != _hash(spec):
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
        return None if row is None else _job(row)

    async def jobs(
        self, *, tenant: str | None, states: Sequence[JobState] = (), name: str = "", limit: int = 100, before: int = 0
    ) -> list[Job]:
        opened = bool(states) and not FINAL.intersection(states)
        rows = await self._rows(
            "jobs_open" if opened else "jobs", tenant, [str(s) for s in states], name, before or 2**62, limit
        )
        return [_job(row) for row in rows]

    async def story(self, job_id: str, *, after: int = 0) -> list[Event]:
        return [_event(row) for row in await self._rows("story", job_id, after)]

    async def events(
        self, *, after: str = "", tenant: str | None = None, newest: bool = False, limit: int = 1000
    ) -> list[Event]:
        xid, _, event_id = (after or "0-0").partition("-")
        rows = await self._rows("events_newest" if newest else "events_after", int(xid), int(event_id), tenant, limit)
        return [_event(row) for row in rows]

    async def policy(self, *, pool: str) -> str:
        row = await self._row("policy", pool)
        return "" if row is None else str(row["policy"])

    async def nodes(self, *, pool: str | None = None) -> list[Node]:
        return [_node(row) for row in await self._rows("nodes", pool)]

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        return [_job(row) for row in await self._rows("jobs_in", pool, [str(s) for s in HOLDING])]

    async def queued_jobs(self, *, pool: str) -> list[Job]:
        return [_job(row) for row in await self._rows("jobs_in", pool, [JobState.QUEUED.value])]

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]:
        return [_job(row) for row in await self._rows("jobs_of", list(job_ids))]

    async def told_until(self, moment: Moment) -> list[Event]:
        return [_event(row) for row in await self._rows("told_until", moment.at, *moment.place)]

    async def history(
        self, *, pool: str, after: tuple[int, int] = (0, 0), limit: int = 100, bytes_max: int = 1 << 20
    ) -> list[Record]:
        return [Record(**row) for row in await self._rows("history", pool, *after, limit, bytes_max)]

    # scheduler

    async def lease(self, name: str) -> Lease | None:
        row = await self._row("lease", name)
        return None if row is None else Lease(**row)

    async def take_lease(self, name: str, *, holder: str, seen: Lease | None) -> Lease | None:
        epoch, seq = (seen.epoch, seen.seq) if seen else (0, 0)
        row = await self._row("take_lease", name, holder, epoch, seq)
        return None if row is None else Lease(**row)

    async def renew_lease(self, lease: Lease) -> Lease | None:
        row = await self._row("renew_lease", lease.name, lease.holder, lease.epoch)
        return None if row is None else Lease(**row)

    async def release_lease(self, lease: Lease) -> None:
        await self._row("release_lease", lease.name, lease.holder, lease.epoch)

    async def raise_lease(self, lease: Lease, *, above: int) -> Lease | None:
        row = await self._row("raise_lease", lease.name, lease.holder, lease.epoch, above)
        return None if row is None else Lease(**row)

    async def settle_lease(self, lease: Lease) -> Lease | None:
        row = await self._row("settle_lease", lease.name, lease.holder, lease.epoch)
        return None if row is None else Lease(**row)

    async def lead_by(self, lease: Lease, policy: str) -> None:
        await self._row("lead_by", lease.name, lease.holder, lease.epoch, policy)

    async def leaderships(self, name: str) -> list[Lease]:
        return [Lease(**row) for row in await self._rows("leaderships", name)]

    async def admit(self, lease: Lease, *, pool: str, limit: int) -> list[Job]:
        rows = await self._rows("admit", lease.name, lease.holder, lease.epoch, pool, limit)
        if not rows:
            return []
        born = await self._rows("jobs_of", [row["id"] for row in rows])
        return sorted((_job(row) for row in born), key=lambda job: job.seq)

    async def asks(self, *, pool: str, limit: int) -> list[Ask]:
        return [_ask(row) for row in await self._rows("asks", pool, limit)]

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        await self._row("drop_asks", lease.name, lease.holder, lease.epoch, list(ask_ids))

    async def open_jobs(self, *, pool: str) -> list[Job]:
        states = [str(state) for state in JobState if not state.final]
        return [_job(row) for row in await self._rows("jobs_in", pool, states)]

    async def take(self, lease: Lease, steps: Sequence[Step], *, record: Record | None = None) -> list[bool]:
        if not steps:
            return []
        held = (lease.name, lease.holder, lease.epoch)
        if record is None:
            rows = await self._rows("take", *held, _json(steps))
        else:
            rows = await self._rows("take_recorded", *held, _json(steps), *_columns(record))
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
            _text(node.address),
            _json(node.capacity),
            _text(node.runtime),
            _json(node.not_enforced),
            node.ready,
            node.drained,
            node.seen_at,
            event,
            _text(cause),
            ask,
            node.seen_at if at is None else at,
        )

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        await self._row("touch_nodes", lease.name, lease.holder, lease.epoch, list(node_ids), at)

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]:
        return [GpuScore(**row) for row in await self._rows("scores", pool, since, list(nodes))]

    async def record(self, lease: Lease, record: Record) -> None:
        await self._row("record", lease.name, lease.holder, lease.epoch, *_columns(record))

    async def trim_history(self, lease: Lease, *, before: float, bytes_max: int) -> int:
        row = await self._row("trim_history", lease.name, lease.holder, lease.epoch, before, bytes_max)
        return int(row["count"]) if row is not None else 0

    # relay

    async def unsent(self, *, limit: int) -> list[Event]:
        return [_event(row) for row in await self._rows("unsent", limit)]

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
        return [_job(row) for row in await self._rows("ended_jobs", list(tenants), since, limit)]

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

    async def save_curves(self, curves: Sequence[Curve]) -> None:
        await self._row(
            "save_curves",
            [curve.pool for curve in curves],
            [curve.subject for curve in curves],
            [msgspec.json.encode(curve.points).decode() for curve in curves],
            [curve.at for curve in curves],
        )

    async def curves(self, *, pool: str, subjects: Sequence[str]) -> list[Curve]:
        rows = await self._rows("curves", pool, list(subjects))
        return [
            Curve(pool=row["pool"], subject=row["subject"], points=_POINTS.decode(row["points"]), at=row["at"])
            for row in rows
        ]

    # reallocator

    async def envelopes(self, *, pool: str) -> list[Envelope]:
        rows = await self._rows("envelopes", pool)
        return [
            Envelope(job_id=row["job_id"], pool=row["pool"], epoch=row["epoch"], state=row["state"].encode())
            for row in rows
        ]

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

    # how it asks

    async def _rows(self, query: str, *arguments: Any) -> list[_Row]:
        if self._asking >= self._connections + (0 if self._failing else WAITING_MAX):
            reason = "Postgres does not answer" if self._failing else "too many wait for Postgres"
            raise StoreUnavailableError(f"{query}: {reason}")
        self._asking += 1
        try:
            rows = await self._ask(query, *arguments)
        except StoreUnavailableError:
            self._failing = True
            raise
        finally:
            self._asking -= 1
        self._failing = False
        return rows

    async def _ask(self, query: str, *arguments: Any) -> list[_Row]:
        try:
            async with self._acquired() as connection:
                try:
                    return await connection.fetch(QUERIES[query], *arguments)
                except (asyncpg.DataError, TimeoutError):
                    # Where an argument fits no column it stays between two steps, with locks; where there was no answer
                    # it would be waited for again.
                    connection.terminate()
                    raise
        except asyncpg.UniqueViolationError as error:
            if error.table_name == "gpu_slots":
                raise DoubleAllocationError(str(error)) from error
            raise
        except (asyncpg.CheckViolationError, asyncpg.DataError) as error:
            raise UnlawfulError(f"{query}: {error}") from error
        except asyncpg.PostgresError as error:
            if error.sqlstate == "WL001":
                raise LeaseLostError(str(error)) from error
            if isinstance(error, UNREACHABLE):
                await self._forget(error)
                raise StoreUnavailableError(f"{query}: {error}") from error
            raise
        except UNREACHABLE as error:
            raise StoreUnavailableError(f"{query}: {type(error).__name__} {error}") from error

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator["asyncpg.pool.PoolConnectionProxy[_Row]"]:
        connection = await self._acquire()
        try:
            yield connection
        finally:
            await self._pool.release(connection, timeout=ACQUIRE_SECONDS_MAX)

    async def _acquire(self) -> "asyncpg.pool.PoolConnectionProxy[_Row]":
        """A connection. Where Postgres has no place for one more, it is one of those that we have."""
        now = asyncio.get_running_loop().time
        until = now() + ACQUIRE_SECONDS_MAX
        while True:
            try:
                return await self._pool.acquire(timeout=until - now())
            except asyncpg.TooManyConnectionsError:
                if not self._pool.get_size() or now() + NO_PLACE_SECONDS > until:
                    raise
                await asyncio.sleep(NO_PLACE_SECONDS)

    async def _row(self, query: str, *arguments: Any) -> _Row | None:
        rows = await self._rows(query, *arguments)
        return rows[0] if rows else None

    async def _forget(self, error: BaseException) -> None:
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            await self._pool.expire_connections()  # it was demoted: none of these connections can write again


async def _no_reset(connection: object) -> None:
    """Connections carry no session state here, so nothing needs a round trip to be reset."""


def _json(value: object) -> str:
    """As JSON that Postgres takes: what a node says may hold a zero byte, which no text there can."""
    return _ZERO_BYTE.sub(r"\1\\ufffd", msgspec.json.encode(value).decode())


def _text(value: str) -> str:
    return value.replace("\0", "\ufffd")


def _columns(record: Record) -> tuple[Any, ...]:
    return (
        record.epoch,
        record.number,
        record.format,
        record.begins,
        record.at,
        record.until,
        record.turns,
        record.steps,
        record.body,
    )


def _hash(spec: JobSpec) -> bytes:
    return hashlib.sha256(msgspec.json.encode(spec, order="deterministic")).digest()


def _ask(row: _Row) -> Ask:
    return Ask(**{**row, "kind": AskKind(row["kind"]), "tune": row["tune"] and _TUNE.decode(row["tune"])})


def _job(row: _Row) -> Job:
    return Job(
        id=row["id"],
        tenant=row["tenant"],
        spec=_SPEC.decode(row["spec"]),
        seq=row["seq"],
        submitted_at=row["submitted_at"],
        state=JobState(row["state"]),
        epoch=row["epoch"],
        version=row["version"],
        priority=row["priority"],
        attempts=row["attempts"],
        not_before=row["not_before"] or 0.0,
        since=row["since"],
        stopping_for=row["stopping_for"] and _CAUSE.decode(row["stopping_for"]),
        waiting_for=row["waiting_for"] and _CAUSE.decode(row["waiting_for"]),
        placement=row["placement"] and _PLACEMENT.decode(row["placement"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        exit_code=row["exit_code"],
        progress=_PROGRESS.decode(row["progress"]) if row["progress"] else {},
        placed_at=row["placed_at"],
        attained_seconds=row["attained_seconds"],
    )


def _node(row: _Row) -> Node:
    return Node(
        id=row["id"],
        pool=row["pool"],
        address=row["address"],
        capacity=msgspec.json.decode(row["capacity"], type=Capacity),
        runtime=row["runtime"],
        not_enforced=tuple(msgspec.json.decode(row["not_enforced"], type=list[str])),
        ready=row["ready"],
        drained=row["drained"],
        seen_at=row["seen_at"],
    )


def _event(row: _Row) -> Event:
    fields = dict(row)
    return Event(**{**fields, "data": msgspec.Raw(fields["data"].encode())})


_SPEC = msgspec.json.Decoder(JobSpec)
_CAUSE = msgspec.json.Decoder(Cause)
_TUNE = msgspec.json.Decoder(Tune)
_POINTS = msgspec.json.Decoder(tuple[CurvePoint, ...])
_PLACEMENT = msgspec.json.Decoder(Placement)
_PROGRESS = msgspec.json.Decoder(dict[str, float])
