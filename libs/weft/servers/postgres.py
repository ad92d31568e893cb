"""A Postgres server for this machine only, never run as root, whose data outlast every way it can end."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from weft.servers import process
from weft.servers.account import Account, make_folder
from weft.servers.errors import ServerFailedError

PROGRAM = "postgres"
OWNER = "weft_owner"
DATABASE = "weft"
INITDB_SECONDS_MAX = 240  # a disk that has just been attached may take more than one minute for it
START_SECONDS_MAX = 60
ANSWER_SECONDS_MAX = 2
ORPHANS_SECONDS_MAX = 10
STARTS_TRIED = 6
BETWEEN_STARTS_SECONDS = 0.25
SOCKET_PATH_MAX = 107
SSL_REQUEST = struct.pack("!II", 8, 80877103)
STOP_SIGNALS = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0))  # pg_ctl calls these fast, then immediate
ABANDON_SIGNALS = STOP_SIGNALS[1:]

SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "checkpoint_timeout": "5min",
    "checkpoint_completion_target": "0.9",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One Postgres server: its programs, its folder, its log, the account that it runs as, and where it listens."""

    programs: Path
    folder: Path
    log: Path
    account: Account | None
    listens: str = "127.0.0.1"

    @property
    def data(self) -> Path:
        return data_of(self.folder)


class Postmaster(msgspec.Struct, frozen=True):
    pid: int
    port: int
    ready: bool


def data_of(folder: Path) -> Path:
    return folder / "data"


def data_major(folder: Path) -> int | None:
    """The major version of Postgres that made the data; None where there are none."""
    try:
        return int((data_of(folder) / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def running(folder: Path) -> Postmaster | None:
    """The server of this folder, by whichever process it was started."""
    try:
        lines = (data_of(folder) / "postmaster.pid").read_text().split("\n")
    except FileNotFoundError:
        return None
    if len(lines) < 4 or not process.is_running(int(lines[0]), PROGRAM, data_of(folder)):
        return None
    return Postmaster(int(lines[0]), int(lines[3]), ready=len(lines) > 7 and lines[7].strip() == "ready")


def initialise(setup: PostgresSetup, password: str) -> None:
    """Make the data and the database; an earlier, unfinished attempt is made again."""
    make_folder(setup.folder, 0o700, setup.account)
    unfinished = setup.folder / "data.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    with _as_file(password, setup.account) as pwfile:
        _must_run(
            setup,
            "initdb",
            *("--pgdata", unfinished, "--username", OWNER, "--pwfile", "/dev/stdin"),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
            *(() if SETTINGS["fsync"] == "on" else ("--no-sync",)),
            stdin=pwfile,
        )
    with _as_file(f"CREATE DATABASE {DATABASE}", setup.account) as statement:
        _must_run(setup, "postgres", "--single", "-D", unfinished, "postgres", stdin=statement)
    unfinished.rename(setup.data)
    _sync(setup.folder)


def start(setup: PostgresSetup, *, port: int, remembered_port: int) -> Postmaster:
    """Start it and wait until it is ready."""
    # The children of a server that was killed hold its data until they notice.
    process.wait_until(lambda: not process.working_in(setup.data), ORPHANS_SECONDS_MAX)
    for _ in range(STARTS_TRIED):
        _forget_strangers(setup)
        _pg_ctl_start(setup, process.pick_port(port, remembered_port))
        if running(setup.folder):
            return wait_ready(setup.folder, setup.log)
        time.sleep(BETWEEN_STARTS_SECONDS)
    raise ServerFailedError(f"Postgres did not start in {setup.folder}", log=setup.log)


def wait_ready(folder: Path, log: Path) -> Postmaster:
    """Wait for a server that runs to have recovered its data and to answer."""

    def is_ready() -> bool:
        found = running(folder)
        return found is None or (found.ready and answers(found.port))

    process.wait_until(is_ready, START_SECONDS_MAX)
    found = running(folder)
    if found is None or not found.ready:
        raise ServerFailedError(f"Postgres in {folder} is not ready after {START_SECONDS_MAX} s", log=log)
    return found


def stop(folder: Path) -> None:
    """End every session, write all data and end."""
    _end(folder, STOP_SIGNALS)


def abandon(folder: Path) -> None:
    """End at once and write no data: the folder is about to be removed."""
    _end(folder, ABANDON_SIGNALS)


def answers(port: int) -> bool:
    """Whether a Postgres serves this port: it answers a request for TLS with yes or no."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX) as connection,
    ):
        connection.sendall(SSL_REQUEST)
        return connection.recv(1) in (b"S", b"N")
    return False


def _end(folder: Path, signals: Sequence[tuple[signal.Signals, float]]) -> None:
    found = running(folder)
    if found:
        process.stop(found.pid, PROGRAM, data_of(folder), signals=signals)


def _pg_ctl_start(setup: PostgresSetup, port: int) -> None:
    options = [f"--{name}={value}" for name, value in SETTINGS.items()]
    options += [
        f"--listen_addresses={setup.listens}",
        f"--port={port}",
        f"--unix_socket_directories={_socket_folder(setup.folder)}",
    ]
    command: list[str | Path] = [
        setup.programs / "pg_ctl",
        "start",
        "-D",
        setup.data,
        "-w",
        "-t",
        str(START_SECONDS_MAX),
    ]
    with process.open_log(setup.log) as output:  # inherited by the server: its account needs no access to the folder
        subprocess.run(
            [*command, "-o", shlex.join(options)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
            timeout=START_SECONDS_MAX + ANSWER_SECONDS_MAX,
            cwd="/",
            env=process.environment(),
            start_new_session=True,
            **(setup.account.as_user() if setup.account else {}),
        )


def _socket_folder(folder: Path) -> str:
    """The folder itself, or none if a socket's path in it would be too long."""
    fits = len(os.fsencode(folder / ".s.PGSQL.65535")) <= SOCKET_PATH_MAX
    return str(folder) if fits and not set(str(folder)) & set(' ,"') else ""


def _forget_strangers(setup: PostgresSetup) -> None:
    """Remove lock files whose pid is no longer a Postgres, but another program or a zombie that is never reaped.

    Postgres itself asks only whether the pid exists, and would refuse to start for ever.
    """
    for lock in (setup.data / "postmaster.pid", *setup.folder.glob(".s.PGSQL.*.lock")):
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid = int(lock.read_text().split("\n")[0])
            command = process.command_of(pid)
            is_postgres = bool(command) and Path(command[0]).name.startswith(PROGRAM)
            if process.exists(pid) and not is_postgres and not process.working_in(setup.data):
                lock.unlink()


def _must_run(setup: PostgresSetup, program: str, *arguments: str | Path, stdin: IO[bytes]) -> None:
    command = [setup.programs / program, *arguments]
    try:
        done = process.run_as(setup.account, command, seconds_max=INITDB_SECONDS_MAX, stdin=stdin)
    except subprocess.TimeoutExpired as error:
        raise ServerFailedError(
            f"{program} did not end within {INITDB_SECONDS_MAX} s: is the disk of {setup.folder} very slow?"
        ) from error
    if done.returncode:
        raise ServerFailedError(f"{program} failed in {setup.folder}:\n{done.stdout[-2000:]}")


@contextlib.contextmanager
def _as_file(text: str, account: Account | None) -> Iterator[IO[bytes]]:
    """A file without a name, for the account's standard input: no other account can open it."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode() + b"\n")
        file.seek(0)
        if account:
            os.fchown(file.fileno(), account.uid, account.gid)
        yield file


def _sync(folder: Path) -> None:
    """Make a rename in this folder outlast a power cut."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
