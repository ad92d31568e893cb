"""A Postgres of the tests' own, with the real roles: embedded, or in a container that testcontainers starts."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
from msgspec import Struct

from libs.credentials import provision
from libs.servers import erase, up
from libs.store.migrate import ROLES, migrate
from libs.store.postgres import PostgresStore
from tests.support.engine import need_container, need_engine

START_SECONDS_MAX = 60
KEPT = {"job_steps", "migrations", "event_offset"}  # what a migration filled

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
        rows = await self.owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = {row["tablename"] for row in rows} - KEPT
        await self.owner.execute(f"TRUNCATE {', '.join(sorted(tables))} RESTART IDENTITY")


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
    postgres = None
    try:
        postgres = DockerContainer(os.environ.get("POSTGRES_IMAGE", "postgres:18")).with_exposed_ports(5432)
        for name, value in (("USER", "weft_owner"), ("PASSWORD", "secret"), ("DB", "weft")):
            postgres.with_env(f"POSTGRES_{name}", value)
        postgres.start()
        host, port = postgres.get_container_host_ip(), postgres.get_exposed_port(5432)
        server = Server(
            dsn=f"postgresql://weft_owner@{host}:{port}/weft",
            passwords={"owner": "secret", **{role: f"secret-{role}" for role in ROLES}},
        )
        await _until_it_answers(server)
    except Exception as error:
        if postgres is not None:
            postgres.stop()
        need_container("Postgres", error)
    try:
        yield server
    finally:
        postgres.stop()


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
