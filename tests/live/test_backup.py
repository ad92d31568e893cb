"""Backup and restore on a real Postgres: every row comes back, and a bad backup changes nothing."""

import asyncio
import os
import tracemalloc
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from tests.support import postgres
from tests.support.builders import spec
from tests.support.cluster import until
from tests.support.filled import fill_ended, fill_queued
from tests.support.postgres import Server
from tests.support.stores import AT
from weft import backup as saved
from weft.backup import BackupError, Manifest, Table
from weft.backup.database import SESSION
from weft.client import Client, ClientError
from weft.credentials import Credentials, provision
from weft.domain.job import JobState
from weft.messages.http import JobView
from weft.store.migrate import ROLES, owner
from weftd.cli.__main__ import main
from weftd.cli.local import Options, running

KEY = b"a key of sixteen characters or more"
SECRET = "only alice may know"
JOBS = 200
PIECE_BYTES, PIECES, MEMORY_BYTES_MAX = 1 << 19, 96, 24 << 20
TIMES = {  # a lease that a test can wait for
    "EXECUTOR_FENCE_SECONDS": "12",
    "EXECUTOR_FENCE_GRACE_MAX": "1",
    "EXECUTOR_DRIFT_SECONDS": "1",
    "EXECUTOR_LEASE_SECONDS": "15",
    "EXECUTOR_SYNC_SECONDS": "0.5",
    "SCHEDULER_LEASE_SECONDS": "15",
    "SCHEDULER_LEADER_SECONDS": "3",
    "SCORER_BENCHMARKS": "off",
}


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    with postgres.quick():
        async with postgres.embedded(tmp_path_factory.mktemp("servers")) as server:
            yield server


@pytest.fixture
async def full(servers: Server) -> AsyncIterator[Server]:
    """A database with jobs that ended and that wait, and rows that are awkward as text."""
    await servers.other("postgres").make("filled")
    server = servers.other("filled")
    async with postgres.stores(server) as stores:
        await fill_ended(stores.owner, JOBS, began=AT, lasting=60.0)
        await fill_queued(stores.owner, JOBS, at=AT)
        odd = spec(env={"ODD": "naïve\\n\\.\n\\.\t\\N"})
        await stores.gateway.submit(odd, job_id="odd", tenant="alice", key="k-1", at=AT)
        await stores.owner.execute("INSERT INTO tenants (id, created_at) VALUES ('alice', now())")
        await stores.owner.execute(
            "INSERT INTO secrets (tenant, name, value, created_at, updated_at)"
            " VALUES ('alice', 'token', $1, now(), now())",
            SECRET,
        )
    yield server
    await _drop(servers, "filled")


@pytest.fixture
async def empty(servers: Server) -> AsyncIterator[Server]:
    await servers.other("postgres").make("unused")
    yield servers.other("unused")
    await _drop(servers, "unused")


async def _drop(servers: Server, database: str) -> None:
    connection = await servers.other("postgres").connect()
    await connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
    await connection.close()


async def save(server: Server, path: Path, *, key: bytes | None = None, home: Path | None = None) -> Manifest:
    credentials = None if home is None else Credentials(home)
    async with owner(
        server.dsn, user=None, password=server.passwords["owner"], tls=None, settings=SESSION
    ) as connection:
        with saved.written(path, key=key) as into:
            return await saved.save(connection, into, credentials=credentials, now=AT)


async def restore(server: Server, path: Path, *, key: bytes | None = None, replace: bool = False) -> list[str]:
    passwords = {role: server.passwords[role] for role in ROLES}
    with saved.opened(path, key=key) as found:
        async with owner(
            server.dsn, user=None, password=server.passwords["owner"], tls=None, settings=SESSION
        ) as connection:
            return await saved.restore(connection, found, role_passwords=passwords, replace=replace)


async def rows(server: Server, folder: Path) -> dict[str, Table]:
    """The rows of each table as one checksum."""
    path = folder / "rows"
    found = {table.name: table for table in (await save(server, path)).tables}
    path.unlink()
    return found


@pytest.mark.parametrize("key", [None, KEY])
async def test_every_row_of_a_backup_comes_back(full: Server, empty: Server, tmp_path: Path, key: bytes | None) -> None:
    manifest = await save(full, tmp_path / "backup", key=key)
    assert manifest.rows("jobs") == 2 * JOBS
    assert manifest.rows("events") == 6 * JOBS + 1
    assert await restore(empty, tmp_path / "backup", key=key) == []
    before, after = await rows(full, tmp_path), await rows(empty, tmp_path)
    assert {name for name, table in before.items() if after[name] != table} <= {"event_offset"}
    if key is not None:
        assert b"tables/" not in (tmp_path / "backup").read_bytes()
    async with postgres.stores(empty) as stores:  # migrates, and has the rights of each role
        assert (await stores.gateway.job("new-1")) is not None
        cursors = [event.cursor for event in await stores.gateway.events(limit=100_000)]
        taken = await stores.owner.fetchval("SELECT max(seq) FROM submissions")
        await stores.gateway.submit(spec(), job_id="later", tenant="alice", key=None, at=AT)
        assert await stores.owner.fetchval("SELECT seq FROM submissions WHERE id = 'later'") > taken
        behind = await stores.gateway.events(after=cursors[-1])
        assert [event.subject_id for event in behind] == ["later"]


async def test_a_restore_takes_the_place_of_a_database_only_when_told_to(
    full: Server, empty: Server, tmp_path: Path
) -> None:
    await save(full, tmp_path / "backup")
    await empty.migrate()
    with pytest.raises(BackupError, match="not empty, it has 0 jobs; --replace"):
        await restore(empty, tmp_path / "backup")
    gateway = await empty.connect("gateway")
    with pytest.raises(BackupError, match=r"services use the database \(weft_gateway\): stop them first"):
        await restore(empty, tmp_path / "backup", replace=True)
    await gateway.close()
    assert await restore(empty, tmp_path / "backup", replace=True) == []
    assert (await rows(empty, tmp_path))["jobs"].rows == 2 * JOBS


def _cut(path: Path, part: float) -> None:
    os.truncate(path, int(path.stat().st_size * part))


def _changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def _of_later(path: Path, **fields: object) -> None:
    """The same backup, but with other fields in its manifest."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    manifest = msgspec.json.decode(content["manifest.json"])
    content["manifest.json"] = msgspec.json.encode({**manifest, **fields})
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)


SPOILT: dict[str, tuple[Callable[[Path], None], bytes | None, bytes | None, str]] = {
    "cut off near its end": (lambda path: _cut(path, 0.99), None, None, "is no backup of weft, or was cut off"),
    "cut off early": (lambda path: _cut(path, 0.2), None, None, "is no backup of weft, or was cut off"),
    "nothing": (lambda path: _cut(path, 0), None, None, "is no backup of weft, or was cut off"),
    "a bit flipped": (_changed, None, None, "is no backup of weft, or was cut off"),
    "encrypted and cut off": (lambda path: _cut(path, 0.7), KEY, KEY, "is no backup of weft, or was cut off"),
    "encrypted, a bit flipped": (_changed, KEY, KEY, "is no backup of weft, or was cut off"),
    "another key": (lambda path: None, KEY, KEY[::-1], "was encrypted with another key"),
    "no key": (lambda path: None, KEY, None, "is encrypted: name its key"),
    "a key too many": (lambda path: None, None, KEY, "is not encrypted"),
    "a later format": (
        lambda path: _of_later(path, format=2, version="9.9"),
        None,
        None,
        "by a later version of weft, 9.9",
    ),
    "a later migration": (
        lambda path: _of_later(path, migrations={"0001_first": "", "9999_later": ""}),
        None,
        None,
        "does not fit this version of weft: a later version made 9999_later",
    ),
    "fewer rows than it says": (lambda path: _of_later(path, tables=[]), None, None, "other tables or columns"),
}


@pytest.mark.parametrize("spoilt", SPOILT.values(), ids=SPOILT)
async def test_a_backup_that_is_not_whole_or_is_newer_is_refused_and_changes_nothing(
    full: Server, empty: Server, tmp_path: Path, spoilt: tuple[Callable[[Path], None], bytes | None, bytes | None, str]
) -> None:
    spoil, key, other, sentence = spoilt
    await save(full, tmp_path / "backup", key=key)
    spoil(tmp_path / "backup")
    await empty.migrate()
    before = await rows(empty, tmp_path)
    with pytest.raises(BackupError, match=sentence) as refused:
        await restore(empty, tmp_path / "backup", key=other, replace=True)
    assert "\n" not in str(refused.value)
    assert await rows(empty, tmp_path) == before


async def test_a_backup_that_failed_leaves_no_file(empty: Server, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="not the database of a cluster"):
        await save(empty, tmp_path / "backup")
    assert os.listdir(tmp_path) == []


async def test_memory_is_bounded_whatever_the_tables_hold(full: Server, empty: Server, tmp_path: Path) -> None:
    connection = await full.connect()
    await connection.execute(
        "INSERT INTO contexts (id, tenant, digest, bytes, used_at) VALUES ('big', 'alice', repeat('0', 64), 1, now())"
    )
    await connection.execute(
        "INSERT INTO context_pieces (context, number, data)"
        " SELECT 'big', n, decode(repeat(md5(n::text), $1::int / 16), 'hex') FROM generate_series(1, $2::int) n",
        PIECE_BYTES,
        PIECES,
    )
    await connection.close()
    tracemalloc.start()
    try:
        manifest = await save(full, tmp_path / "backup", key=KEY)
        await restore(empty, tmp_path / "backup", key=KEY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(table.bytes for table in manifest.tables) > 2 * PIECE_BYTES * PIECES
    assert peak < MEMORY_BYTES_MAX


async def typed(*words: str) -> int:
    """The exit status of `weft`, in a thread, since it makes its own event loop."""
    return await asyncio.to_thread(main, list(words))


@pytest.mark.timeout(240)
async def test_a_cluster_goes_on_from_its_backup_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node remembers the time that the restored store has lost, so nothing starts for one lease."""
    monkeypatch.delenv("WEFT_PG_DSN", raising=False)
    home, file, key = tmp_path / "home", str(tmp_path / "backup"), tmp_path / "key"
    key.write_bytes(KEY)
    options = Options(nodes=1, emulated_gpus=2, port=0, settings=TIMES)
    wanted = spec("kept", gpus=2, command=["sleep", "600"], role={"cpus": 1, "memory": "64MiB"})
    with postgres.quick():
        async with running(home, options) as local, Client(local.url, local.token) as client:
            kept = (await client.submit(wanted)).id
            await until(client, kept, lambda view: view.state is JobState.RUNNING)
            assert await typed("backup", file, "--home", str(home), "--key-file", str(key)) == 0
            lost = (await client.submit(spec("lost"))).id
            assert await typed("restore", file, "--home", str(home), "--key-file", str(key), "--replace") == 1
            assert "runs already: `weft down` stops it" in capsys.readouterr().err
            token = local.token
        (home / "credentials" / "admin-token").write_text("weft_another\n")
        assert await typed("restore", file, "--home", str(home), "--key-file", str(key), "--check") == 0
        assert await typed("restore", file, "--home", str(home), "--key-file", str(key), "--replace") == 0
        assert "1 job," in capsys.readouterr().out
        async with running(home, options, erase=True) as local, Client(local.url, local.token) as client:
            assert local.token == token
            with pytest.raises(ClientError):
                await client.job(lost)
            await until(client, kept, waits_for_restored)
            await until(client, kept, lambda view: view.state is JobState.RUNNING, seconds_max=90.0)


def waits_for_restored(view: JobView) -> bool:
    return view.waiting_for is not None and view.waiting_for.code == "store-restored"


async def test_another_home_gets_the_tokens_and_passwords_of_the_cluster(
    full: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By WEFT_PG_DSN, as in Compose, into a new home of `weft up`."""
    theirs, password = tmp_path / "theirs", tmp_path / "password"
    provision(theirs, nodes=["node-7"])
    password.write_text(full.passwords["owner"])
    monkeypatch.setenv("WEFT_PG_DSN", full.dsn)
    monkeypatch.setenv("WEFT_PG_PASSWORD_FILE", str(password))
    monkeypatch.setenv("WEFT_CREDENTIALS", str(theirs))
    file, home = str(tmp_path / "backup"), tmp_path / "home"
    assert await typed("backup", file) == 0
    assert await typed("backup", file) == 1
    assert "exists already" in capsys.readouterr().err
    monkeypatch.delenv("WEFT_PG_DSN")
    with postgres.quick():
        assert await typed("restore", file, "--home", str(home)) == 0
        ours = Credentials(home / "credentials")
        assert ours.portable() == Credentials(theirs).portable()
        assert ours.nodes() == ["node-7"]
        assert ours.nats_password("executor-node-7") in ours.nats_users_file.read_text()
        assert await typed("backup", str(tmp_path / "again"), "--home", str(home), "--no-credentials") == 0
    with saved.opened(tmp_path / "backup", key=None) as first, saved.opened(tmp_path / "again", key=None) as second:
        assert second.manifest.credentials == {}
        pairs = zip(first.manifest.tables, second.manifest.tables, strict=True)
        assert {one.name for one, other in pairs if one != other} <= {"event_offset"}
