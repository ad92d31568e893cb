"""The store on a real Postgres: one class for every role; the database enforces what each role may do.

Driver traps and their work-arounds are in docs/decisions/0003-postgres-through-asyncpg.md.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg

from weft.domain.job import Job, JobChange
from weft.domain.lease import Lease
from weft.messages.history import Record
from weft.store import UnlawfulError
from weft.store.asking import Asking
from weft.store.postgres.arrays import PostgresArrays
from weft.store.postgres.batching import Batching
from weft.store.postgres.decoding import decoded
from weft.store.postgres.events import PostgresAccounts, PostgresEvents
from weft.store.postgres.jobs import PostgresServing
from weft.store.postgres.leases import PostgresHistory, PostgresLeases, PostgresRetention
from weft.store.postgres.nodes import PostgresJoinTokens, PostgresLearnt, PostgresNodes
from weft.store.postgres.people import PostgresAudit, PostgresPeople
from weft.store.postgres.schedules import PostgresSchedules
from weft.store.postgres.sign_ins import PostgresSignIns
from weft.store.postgres.submissions import PostgresAsks, PostgresContexts, PostgresSubmissions, PostgresUploads
from weft.store.postgres.tenants import PostgresQuotas, PostgresSecrets, PostgresTenants, PostgresWebhooks
from weft.store.postgres.tuning import PostgresTuning
from weft.store.rows import columns_of, job_of, steps_of

ADMITTED_BYTES_MAX = 2 << 20  # bytes of specifications that are admitted at once, but for the last


class PostgresStore(
    PostgresAccounts,
    PostgresArrays,
    PostgresAsks,
    PostgresAudit,
    PostgresEvents,
    PostgresHistory,
    PostgresJoinTokens,
    PostgresLeases,
    PostgresLearnt,
    PostgresNodes,
    PostgresPeople,
    PostgresQuotas,
    PostgresRetention,
    PostgresSchedules,
    PostgresServing,
    PostgresSignIns,
    PostgresSubmissions,
    PostgresTenants,
    PostgresTuning,
    PostgresWebhooks,
    PostgresSecrets,
    PostgresContexts,
    PostgresUploads,
):
    """Every store Protocol of `weft.store`; how Postgres is asked is `Asking`'s."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.batching = Batching(self.submit_together, alone_on=(UnlawfulError, asyncpg.UniqueViolationError))

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

    async def admit(self, lease: Lease, *, load: int, pool: str, limit: int) -> list[Job]:
        rows = await self.asking.rows(
            "admit", lease.name, lease.holder, lease.epoch, load, pool, limit, ADMITTED_BYTES_MAX
        )
        return await decoded(rows, job_of)

    async def take(self, lease: Lease, changes: Sequence[JobChange], *, record: Record | None = None) -> list[bool]:
        if not changes:
            return []
        written = (lease.name, lease.holder, lease.epoch, *steps_of(changes))
        if record is None:
            rows = await self.asking.rows("take", *written)
        else:
            rows = await self.asking.rows("take_recorded", *written, *columns_of(record))
        taken = {row["ordinal"] for row in rows}
        return [ordinal in taken for ordinal in range(1, len(changes) + 1)]
