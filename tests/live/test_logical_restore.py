"""Events stay in order, and cursors keep their meaning, when the database goes into a new cluster by a logical dump."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support import postgres
from tests.support.builders import spec
from tests.support.postgres import Server, Stores
from tests.support.stores import AT
from weft.servers.find import find_postgres

TRANSACTIONS = 3000  # that the old cluster has counted and the new one has not


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[Server]:
    async with postgres.embedded(tmp_path / "old") as server:
        yield server


@pytest.fixture
async def new(tmp_path: Path) -> AsyncIterator[Server]:
    async with postgres.embedded(tmp_path / "new") as server:
        yield server


def run(program: str, server: Server, *arguments: str, text: str = "") -> str:
    """One of Postgres's own programs, against a server of the tests."""
    where = urlsplit(server.dsn)
    environment = {
        "PGPASSWORD": server.passwords["owner"],
        "PGUSER": unquote(where.username or ""),
        "PGHOST": unquote(where.hostname or ""),
        "PGPORT": str(where.port),
        "PGDATABASE": where.path.removeprefix("/"),
    }
    done = subprocess.run(
        [find_postgres().path / program, *arguments], env=environment, input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def dumped(server: Server, *, submitted: int) -> tuple[str, list[str]]:
    """A dump of a cluster that has counted many transactions, and the cursors of its events."""
    async with postgres.stores(server) as stores:
        await submit(stores, "old", submitted)
        cursors = [event.cursor for event in await stores.gateway.events()]
    return run("pg_dump", server), cursors


async def submit(stores: Stores, name: str, count: int) -> None:
    for number in range(count):
        await stores.gateway.submit(spec(), job_id=f"{name}-{number}", tenant="alice", key=None, at=AT)


async def count_transactions(server: Server, count: int) -> None:
    owner = await server.connect()
    for _ in range(count):
        await owner.execute("SELECT pg_current_xact_id()")
    await owner.close()


async def subjects(stores: Stores, *, after: str = "", tenant: str | None = None) -> list[str]:
    return [event.subject_id for event in await stores.gateway.events(after=after, tenant=tenant)]


async def test_readers_of_events_go_on_after_a_dump_was_restored_into_a_new_cluster(old: Server, new: Server) -> None:
    await old.migrate()
    await count_transactions(old, TRANSACTIONS)
    dump, cursors = await dumped(old, submitted=5)
    await new.migrate()  # makes the roles, which no dump of one database has
    run(
        "psql", new, "--quiet", "--set=ON_ERROR_STOP=1", "--command", "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
    )
    run("psql", new, "--quiet", text=dump)
    async with postgres.stores(new) as stores:  # which migrates, as the start of a cluster does
        before = [f"old-{number}" for number in range(5)]
        assert await subjects(stores) == before
        assert await subjects(stores, after=cursors[2]) == before[3:]
        assert await subjects(stores, after=cursors[-1]) == []
        await submit(stores, "new", 3)
        after = [f"new-{number}" for number in range(3)]
        assert await subjects(stores, after=cursors[-1]) == after
        assert await subjects(stores, after=cursors[2], tenant="alice") == [*before[3:], *after]
        places = [(event.xid, event.id) for event in await stores.gateway.events()]
        assert places == sorted(set(places))
        assert await new.migrate() == []
        await submit(stores, "later", 1)
        assert await subjects(stores, after=cursors[-1]) == [*after, "later-0"]


async def test_what_is_not_committed_is_not_overtaken_in_a_restored_database(old: Server, new: Server) -> None:
    await old.migrate()
    await count_transactions(old, TRANSACTIONS)
    dump, cursors = await dumped(old, submitted=1)
    await new.migrate()
    run(
        "psql", new, "--quiet", "--set=ON_ERROR_STOP=1", "--command", "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
    )
    run("psql", new, "--quiet", text=dump)
    async with postgres.stores(new) as stores:
        slow = await new.connect("gateway")
        try:
            async with slow.transaction():
                await slow.execute(
                    "INSERT INTO events (topic, event, subject_id, version, at, data)"
                    " VALUES ('nodes', 'changed', 'slow', 1, now(), '{}')"
                )
                await submit(stores, "new", 1)
                assert await subjects(stores, after=cursors[-1]) == []
            assert await subjects(stores, after=cursors[-1]) == ["slow", "new-0"]
        finally:
            await slow.close()


async def test_in_the_same_cluster_nothing_is_added_to_the_order_of_events(old: Server) -> None:
    async with postgres.stores(old) as stores:
        await submit(stores, "old", 2)
        await old.migrate()
        assert await stores.owner.fetchval("SELECT xids FROM event_offset") == 0
