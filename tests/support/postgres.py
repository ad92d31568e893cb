"""A Postgres of the tests' own, with the real roles: embedded, or in a container that testcontainers starts."""

import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec import Struct

from tests.support.engine import need_container, need_engine
from weft.credentials import provision
from weft.servers import account, erase, postgres, up
from weft.store.migrate import ROLES, migrate
from weft.store.postgres import PostgresStore

START_SECONDS_MAX = 60
KEPT = {"job_steps", "migrations", "event_offset"}  # what a migration filled

# A server that is killed keeps what it committed also with these; only a machine that loses power does not.
QUICK = {"fsync": "off", "full_page_writes": "off"}
MEMORY_DISK = Path("/dev/shm")
MEMORY_DISK_BYTES_MIN = 8 << 30  # 45 MiB for each server, and up to 512 MiB of its log
FOLDER_OF_USERS = account.MACHINE_FOLDER

Connection = asyncpg.Connection


class Server(Struct, frozen=True, kw_only=True):
    """A running server that has nothing of ours yet. `passwords` of its owner and of each role."""

    dsn: str
    passwords: dict[str, str]

    async def connect(self, role: str = "owner") -> Connection:
        user = urlsplit(self.dsn).username if role == "owner" else f"weft_{role}"
        return await asyncpg.connect(self.dsn, user=user, password=self.passwords[role], timeout=5, command_timeout=20)

    async def migrate(self) -> list[str]:
        roles = {role: self.passwords[role] for role in ROLES}
        return await migrate(self.dsn, user=None, password=self.passwords["owner"], role_passwords=roles)

    def other(self, database: str) -> "Server":
        """The same server's other database."""
        return Server(dsn=urlsplit(self.dsn)._replace(path=f"/{database}").geturl(), passwords=self.passwords)

    async def make(self, database: str, *, template: str = "template1") -> "Server":
        connection = await self.connect()
        await connection.execute(f"CREATE DATABASE {database} TEMPLATE {template}")
        await connection.close()
        return self.other(database)


class Stores(Struct, frozen=True, kw_only=True):
    """A store for each role, each with that role's rights and no others."""

    server: Server
    owner: Connection
    gateway: PostgresStore
    scheduler: PostgresStore
    scorer: PostgresStore
    reallocator: PostgresStore
    router: PostgresStore

    async def clear(self) -> None:
        """Empty the tables that have rows: to truncate all of them takes a fifth of a second."""
        rows = await self.owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = sorted({row["tablename"] for row in rows} - KEPT)
        looks = " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT FROM {name})" for name in tables)
        filled = [row[0] for row in await self.owner.fetch(looks)]
        if filled:
            await self.owner.execute(f"TRUNCATE {', '.join(filled)} CASCADE")
        used = await self.owner.fetch("SELECT sequencename FROM pg_sequences WHERE last_value IS NOT NULL")
        for row in used:
            await self.owner.execute(f"ALTER SEQUENCE {row['sequencename']} RESTART")


@contextmanager
def quick() -> Iterator[None]:
    """Servers that this process starts do not wait for the disk; where there is room their data lie in memory."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK.items():
            patch.setitem(postgres.SETTINGS, name, value)
        if MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > MEMORY_DISK_BYTES_MIN:
            patch.setattr(account, "MACHINE_FOLDER", MEMORY_DISK / "weft-tests")
        yield


@contextmanager
def durable() -> Iterator[None]:
    """Servers that this process starts write as those of a user do: for tests that prove durability."""
    with pytest.MonkeyPatch.context() as patch:
        for name in QUICK:
            patch.setitem(postgres.SETTINGS, name, "on")
        patch.setattr(account, "MACHINE_FOLDER", FOLDER_OF_USERS)
        yield


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[Server]:
    credentials = provision(folder / "credentials", nodes=[])
    home = folder / "home"
    try:
        servers = await up(home, credentials=credentials, nats_url="nats://not-wanted")
        passwords = {role: credentials.postgres_password(role) for role in ("owner", *ROLES)}
        yield Server(dsn=servers.pg_dsn, passwords=passwords)
    finally:
        await erase(home)


@asynccontextmanager
async def container() -> AsyncIterator[Server]:
    """Skips the test where there is no engine, except in CI."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    need_engine()
    testcontainers_config.ryuk_disabled = True  # We remove what we start; its helper would be one more image.
    running = None
    try:
        running = DockerContainer(os.environ.get("POSTGRES_IMAGE", "postgres:18")).with_exposed_ports(5432)
        running.with_command(["postgres", *(f"--{name}={value}" for name, value in QUICK.items())])
        for name, value in (("USER", "weft_owner"), ("PASSWORD", "secret"), ("DB", "weft")):
            running.with_env(f"POSTGRES_{name}", value)
        running.start()
        host, port = running.get_container_host_ip(), running.get_exposed_port(5432)
        server = Server(
            dsn=f"postgresql://weft_owner@{host}:{port}/weft",
            passwords={"owner": "secret", **{role: f"secret-{role}" for role in ROLES}},
        )
        await _until_it_answers(server)
    except Exception as error:
        if running is not None:
            running.stop()
        need_container("Postgres", error)
    try:
        yield server
    finally:
        running.stop()


async def _until_it_answers(server: Server) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            await (await server.connect()).close()
            return
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)  # noqa: ASYNC251 - nothing else is waiting for this loop


@asynccontextmanager
async def stores(server: Server, *, connections: int = 8) -> AsyncIterator[Stores]:
    """Stores over the server's database, which is migrated first where it was not."""
    await server.migrate()
    async with AsyncExitStack() as stack:
        owner = await server.connect()
        stack.push_async_callback(owner.close)
        by_role = {
            role: await stack.enter_async_context(
                PostgresStore.connect(
                    server.dsn, user=f"weft_{role}", password=server.passwords[role], connections=connections
                )
            )
            for role in ROLES
        }
        yield Stores(server=server, owner=owner, **by_role)
