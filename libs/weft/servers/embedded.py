"""The NATS and Postgres servers of one home folder: started or attached to, kept between runs, stopped."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import msgspec

from weft.credentials import Credentials
from weft.servers import home as at
from weft.servers.errors import ServerFailedError
from weft.servers.postgres import DATABASE, OWNER
from weft.servers.state import ServersState, read_state

CONNECT_SECONDS_MAX = 10


class Servers(msgspec.Struct, frozen=True, kw_only=True):
    """Where the servers are. A server given by its address has no pid here: it is not ours to stop."""

    nats_url: str
    pg_dsn: str  # the owner's, with a password only if it was given with one
    nats_pid: int | None = None
    pg_pid: int | None = None
    started: bool = False  # False: all servers ran already


async def up(
    home: Path,
    *,
    credentials: Credentials,
    nats_url: str | None = None,
    pg_dsn: str | None = None,
    nats_port: int = 0,
    pg_port: int = 0,
    sync_interval: str = "2m",
) -> Servers:
    """Have both servers running: attach to those of this home or start them; one given by address is left alone."""
    with _naming(home):
        home = await asyncio.to_thread(at.make_home, home)
        servers = Servers(nats_url=nats_url or "", pg_dsn=pg_dsn or "")
        if nats_url is None:
            servers = await _with_nats(servers, home, credentials, nats_port, sync_interval)
        if pg_dsn is None:
            servers = await _with_postgres(servers, home, credentials, pg_port)
    return servers


@asynccontextmanager
async def only_postgres(home: Path, *, credentials: Credentials) -> AsyncIterator[str]:
    """The owner's DSN of this home's Postgres, which runs while the block lasts, and goes on if it ran before."""
    servers = await up(home, credentials=credentials, nats_url="none")
    try:
        yield servers.pg_dsn
    finally:
        if servers.started:
            await down(home)


async def down(home: Path) -> None:
    """Stop the servers of this home and keep their data."""
    with _naming(home):
        await asyncio.to_thread(at.stop_all, home)


async def status(home: Path) -> ServersState:
    """The recorded state of the servers of this home; one that does not run has no pid."""
    with _naming(home):
        return await asyncio.to_thread(at.what_runs, home)


def postgres_folder(home: Path) -> Path | None:
    """Where the data of this home's Postgres are: outside the home if Postgres' account may not enter it."""
    known = read_state(home).postgres
    return known.folder if known is not None else None


async def reload_users(home: Path) -> None:
    """Have NATS reload its users: nodes may have got credentials since it started."""
    with _naming(home):
        await asyncio.to_thread(at.reload_nats, home)


async def erase(home: Path) -> None:
    """Stop the servers of this home and remove their data, wherever they are kept."""
    with _naming(home):
        await asyncio.to_thread(at.erase_all, home)


@asynccontextmanager
async def temporary(home: Path, *, credentials: Credentials) -> AsyncIterator[Servers]:
    """Servers for as long as the block lasts; no process and no data remain."""
    try:
        yield await up(home, credentials=credentials)
    finally:
        await erase(home)


async def _with_nats(servers: Servers, home: Path, credentials: Credentials, port: int, sync_interval: str) -> Servers:
    found = await asyncio.to_thread(
        at.ensure_nats, home, users=credentials.nats_users_file, port=port, sync_interval=sync_interval
    )
    return msgspec.structs.replace(
        servers,
        nats_url=f"nats://127.0.0.1:{found.server.port}",
        nats_pid=found.server.pid,
        started=servers.started or found.started,
    )


async def _with_postgres(servers: Servers, home: Path, credentials: Credentials, port: int) -> Servers:
    password = credentials.postgres_password("owner")
    found = await asyncio.to_thread(at.ensure_postgres, home, password=password, port=port)
    await _check_owner(found.server.port, password, found.server.folder)
    return msgspec.structs.replace(
        servers,
        pg_dsn=f"postgresql://{OWNER}@127.0.0.1:{found.server.port}/{DATABASE}",
        pg_pid=found.server.pid,
        started=servers.started or found.started,
    )


async def _check_owner(port: int, password: str, folder: Path) -> None:
    """Refuse data made with other credentials here, in one sentence, instead of in every service at once."""
    try:
        connection = await asyncpg.connect(
            host="127.0.0.1",
            port=port,
            user=OWNER,
            password=password,
            database=DATABASE,
            timeout=CONNECT_SECONDS_MAX,
            ssl=False,
        )
    except asyncpg.InvalidPasswordError as error:
        raise ServerFailedError(f"the data in {folder} were made with other credentials than these") from error
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ServerFailedError(f"Postgres runs on port {port} but lets nobody in: {error}") from error
    await connection.close(timeout=CONNECT_SECONDS_MAX)


@contextmanager
def _naming(home: Path) -> Iterator[None]:
    """Turns an error of the system into a ServerFailedError that names the server."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerFailedError(f"the servers of {home}: {error}") from error
