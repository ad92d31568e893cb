"""Every secret of a cluster is changed while it works: nothing is restarted that needs not be, and no job is lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from msgspec import Struct

from tests.support.builders import spec
from tests.support.gateway import until
from tests.support.gateway_process import gateway_process
from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.client import Client, Refused
from weft.credentials import Credentials, provision
from weft.servers import Servers, reload_users, temporary
from weft.store.migrate import ROLES, migrate

SECONDS_MAX = 60.0


class World(Struct):
    home: Path
    credentials: Credentials
    servers: Servers

    async def migrate(self) -> None:
        passwords = {role: self.credentials.postgres_password(role) for role in ROLES}
        owner = self.credentials.postgres_password("owner")
        await migrate(self.servers.pg_dsn, user=None, password=owner, role_passwords=passwords)

    async def owner(self) -> asyncpg.Connection:
        return await asyncpg.connect(
            self.servers.pg_dsn, password=self.credentials.postgres_password("owner"), timeout=5, ssl=False
        )

    async def change(self, *files: Path) -> None:
        """As an operator does it: remove the secret, and have `weft setup` make what is missing."""
        for file in files:
            file.unlink()
        provision(self.credentials.folder, nodes=["node-1"])


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    credentials = provision(tmp_path / "credentials", nodes=["node-1"])
    async with temporary(tmp_path / "home", credentials=credentials) as servers:
        made = World(tmp_path / "home", credentials, servers)
        await made.migrate()
        yield made


async def test_passwords_of_nats_and_postgres_are_changed_under_a_gateway_that_goes_on(
    world: World, tmp_path: Path
) -> None:
    credentials, acknowledged, done = world.credentials, list[str](), asyncio.Event()
    running = gateway_process(
        tmp_path / "log", credentials, nats_url=world.servers.nats_url, pg_dsn=world.servers.pg_dsn
    )
    async with running as gateway, Client(gateway.url, credentials.admin_token(), retry_seconds=SECONDS_MAX) as client:

        async def submit_on() -> None:
            while not done.is_set():
                acknowledged.append((await client.submit(spec())).id)
                await asyncio.sleep(0.01)

        submitting = asyncio.create_task(submit_on())
        await until(lambda: len(acknowledged) > 5 or submitting.done())
        old_nats, old_postgres = credentials.nats_password("gateway"), credentials.postgres_password("gateway")

        await world.change(credentials.nats_password_file("gateway"), credentials.postgres_password_file("gateway"))
        await world.migrate()
        await reload_users(world.home)
        owner = await world.owner()
        await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'weft_gateway'")

        with pytest.raises(BusError, match=r"(?i)authorization violation"):
            async with NatsBus.connect(
                world.servers.nats_url, name="x", user="gateway", password=old_nats, connect_seconds_max=1
            ):
                pass
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(
                world.servers.pg_dsn, user="weft_gateway", password=old_postgres, timeout=5, ssl=False
            )
        await until(lambda: gateway.said("NATS is back") or submitting.done())
        enough = len(acknowledged) + 20
        await until(lambda: len(acknowledged) > enough or submitting.done())
        done.set()
        await submitting
        stored = {row["id"] for row in await owner.fetch("SELECT id FROM submissions")}
        await owner.close()
        assert stored == set(acknowledged)
        assert gateway.process.returncode is None
    log = (tmp_path / "log").read_text()
    assert log.count("is ready") == 1
    assert old_nats not in log
    assert old_postgres not in log


async def test_a_password_that_does_not_fit_yet_is_waited_for(world: World, tmp_path: Path) -> None:
    """Between the database's change and the file's, a gateway says 503, and neither dies nor says 500."""
    credentials = world.credentials
    running = gateway_process(
        tmp_path / "log", credentials, nats_url=world.servers.nats_url, pg_dsn=world.servers.pg_dsn
    )
    async with running as gateway, Client(gateway.url, credentials.admin_token(), retry_seconds=0) as client:
        await client.submit(spec())
        owner = await world.owner()
        await owner.execute("ALTER ROLE weft_gateway PASSWORD 'another'")
        await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'weft_gateway'")
        seen = set()
        for _ in range(5):
            with pytest.raises(Refused) as caught:
                await client.submit(spec())
            seen.add(caught.value.status)
        assert seen == {503}
        credentials.postgres_password_file("gateway").write_text("another\n")
        async with Client(gateway.url, credentials.admin_token(), retry_seconds=SECONDS_MAX) as patient:
            await patient.submit(spec())
        await owner.close()


async def test_the_administrators_token_is_changed_by_a_restart_and_the_old_one_revoked_by_its_label(
    world: World, tmp_path: Path
) -> None:
    credentials = world.credentials
    settings = {"nats_url": world.servers.nats_url, "pg_dsn": world.servers.pg_dsn}
    old = credentials.admin_token()
    async with (
        gateway_process(tmp_path / "log", credentials, **settings) as gateway,
        Client(gateway.url, old) as client,
    ):
        (before,) = (await client.tokens(tenant="admin")).tokens
    await world.change(credentials.admin_token_file)
    new = credentials.admin_token()
    assert new != old
    async with (
        gateway_process(tmp_path / "log", credentials, **settings) as gateway,
        Client(gateway.url, new) as client,
        Client(gateway.url, old) as former,
    ):
        await former.nodes()  # until it is revoked
        assert len((await client.tokens(tenant="admin")).tokens) == 2
        assert (await client.revoke("admin", before.label)).revoked == 1
        with pytest.raises(Refused) as caught:
            await former.nodes()
        assert caught.value.status == 401
        await client.nodes()
