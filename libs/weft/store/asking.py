"""Queries to Postgres: a pool of connections, bounds on every wait, and its errors as errors of the store."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from weft.sockets import notice_death
from weft.store import (
    DoubleAllocationError,
    LeaseLostError,
    LoadedSinceError,
    RecordsLostError,
    StoreUnavailableError,
    UnlawfulError,
)
from weft.store.hosts import Hosts, Open
from weft.store.sql import QUERIES

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 2.0
COMMAND_SECONDS_MAX = 5.0
ACQUIRE_SECONDS_MAX = 3.0
UNHEARD_SECONDS_MAX = 4  # bytes sent and not acknowledged for so long: the link is dead
NO_PLACE_SECONDS = 1.0
LOOK_SECONDS = 10.0  # between two looks at the servers that are not written to, where the DSN names several
WAITING_MAX = 1024  # callers that wait for a connection; more are refused at once

# So that the server, too, drops a client that has vanished: its locks are free about 10 s later.
SESSION: Mapping[str, str] = {
    "application_name": "weft",
    "timezone": "UTC",
    "lock_timeout": "2s",
    "statement_timeout": "4500ms",  # below COMMAND_SECONDS_MAX, so that the server ends it first
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

Row = asyncpg.Record


class Asking:
    """Statements of `sql/queries.sql`, by name. Every wait is bounded.

    While Postgres does not answer, only as many calls wait as there are connections; all others fail at once.
    """

    def __init__(self, pool: "asyncpg.Pool[Row]", *, connections: int) -> None:
        self.pool = pool
        self._connections = connections
        self._turns = asyncio.Semaphore(connections)
        self._waiting = 0
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
        connections: int,
    ) -> AsyncIterator["Asking"]:
        """As `PostgresStore.connect`."""
        hosts = Hosts(dsn)
        as_the_pool: dict[str, Any] = {}  # arguments with which it connects

        async def open_one(dsn: str) -> "asyncpg.Connection[Row]":
            named = as_the_pool if tls is None else {**as_the_pool, "ssl": tls()}
            made: asyncpg.Connection[Row] = await asyncpg.connect(dsn, **named)
            notice_death(getattr(made, "_transport", None), seconds=UNHEARD_SECONDS_MAX)
            return made

        async def connect(*_: Any, **named: Any) -> "asyncpg.Connection[Row]":
            as_the_pool.update(named)
            return await hosts.connect(open_one)

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
        looking = asyncio.create_task(_look(hosts, open_one, pool), name="hosts") if hosts.several else None
        try:
            yield cls(pool, connections=connections)
        finally:
            if looking is not None:
                looking.cancel()
            pool.terminate()

    async def rows(self, query: str, *arguments: Any) -> list[Row]:
        async with self._counted(query), self._acquired() as connection:
            try:
                return await connection.fetch(QUERIES[query], *arguments)
            except (asyncpg.DataError, TimeoutError):
                # After an argument that fits no column, the connection stays between two steps, with locks; without an
                # answer, it would be waited for again.
                connection.terminate()
                raise

    @asynccontextmanager
    async def _counted(self, query: str) -> AsyncIterator[None]:
        """Count one query, and raise the driver's errors as errors of the store."""
        if self._waiting >= self._connections + (0 if self._failing else WAITING_MAX):
            reason = "Postgres does not answer" if self._failing else "too many wait for Postgres"
            raise StoreUnavailableError(f"{query}: {reason}")
        self._waiting += 1
        try:
            yield
            self._failing = False
        except StoreUnavailableError:
            self._failing = True
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
            if error.sqlstate == "WL002":
                raise LoadedSinceError(str(error)) from error
            if error.sqlstate == "WL003":
                raise RecordsLostError(str(error)) from error
            if isinstance(error, UNREACHABLE):
                self._failing = True
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    await self.pool.expire_connections()  # it was demoted: none of these connections can write again
                raise StoreUnavailableError(f"{query}: {error}") from error
            raise
        except UNREACHABLE as error:
            self._failing = True
            raise StoreUnavailableError(f"{query}: {type(error).__name__} {error}") from error
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def _acquired(self) -> AsyncIterator["asyncpg.pool.PoolConnectionProxy[Row]"]:
        connection = await self._acquire()
        try:
            yield connection
        finally:
            try:
                await self.pool.release(connection, timeout=ACQUIRE_SECONDS_MAX)
            finally:
                self._turns.release()

    async def _acquire(self) -> "asyncpg.pool.PoolConnectionProxy[Row]":
        """A connection, in its turn. If Postgres refuses one more, go behind those that wait for one of the pool's own.

        The refused turn rests for a while: Postgres is not asked again for each caller that waits.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + ACQUIRE_SECONDS_MAX
        while True:
            async with asyncio.timeout_at(until):
                await self._turns.acquire()
            try:
                return await self._taken(until)
            except asyncpg.TooManyConnectionsError:
                if not self.pool.get_size() or loop.time() > until:
                    self._turns.release()
                    raise
                loop.call_later(NO_PLACE_SECONDS, self._turns.release)
            except BaseException:
                self._turns.release()
                raise

    async def _taken(self, until: float) -> "asyncpg.pool.PoolConnectionProxy[Row]":
        now = asyncio.get_running_loop().time
        try:
            return await self.pool.acquire(timeout=until - now())
        except asyncpg.TooManyConnectionsError:
            if not self.pool.get_idle_size():
                raise
        # The pool hands out what it got back last, and that was a place without a connection: ask for those as well.
        places = self.pool.get_max_size() - self.pool.get_size() + 1
        tried = await asyncio.gather(
            *(self.pool.acquire(timeout=until - now()) for _ in range(places)), return_exceptions=True
        )
        got = [each for each in tried if not isinstance(each, BaseException)]
        for spare in got[1:]:
            await self.pool.release(spare, timeout=ACQUIRE_SECONDS_MAX)
        if not got:
            raise next(each for each in tried if isinstance(each, BaseException))
        return got[0]

    async def row(self, query: str, *arguments: Any) -> Row | None:
        rows = await self.rows(query, *arguments)
        return rows[0] if rows else None

    async def count(self, query: str, *arguments: Any) -> int:
        """The `count` that a statement returns."""
        row = await self.row(query, *arguments)
        return 0 if row is None else int(row["count"])


async def _look(hosts: Hosts, open_one: Open, pool: "asyncpg.Pool[Row]") -> None:
    """Leave a primary beside which another server was promoted: it may live on, and take writes that nobody sees."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if await hosts.look(open_one):
            logger.warning("another server of Postgres was promoted: no connection to the old one is used any more")
            await pool.expire_connections()


async def _no_reset(connection: object) -> None:
    """Connections carry no session state here, so nothing needs a round trip to be reset."""
