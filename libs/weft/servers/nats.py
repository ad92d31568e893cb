"""A NATS server with JetStream, for this machine only."""

import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import msgspec

from weft.servers import process
from weft.servers.errors import ServerFailedError
from weft.servers.find import ServerProgram

PROGRAM = "nats-server"
START_SECONDS_MAX = 15
RELOAD_SECONDS_MAX = 5
ANSWER_SECONDS_MAX = 2
PORTS_TRIED = 3
STOP_SIGNALS = ((signal.SIGTERM, 10.0),)
RELOADED = "Reloaded server configuration"
RELOAD_ENDS = (RELOADED, "Failed to reload server configuration")

CONFIG = """\
# Written by weft at every start; changes made here are lost.
server_name: {name}
listen: "127.0.0.1:{port}"
pid_file: {pid_file}
max_payload: 8MB
jetstream {{
  store_dir: {store}
  sync_interval: {sync_interval}
}}
include {users}
"""


class NatsSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One NATS server: its folder, its log, its users, and how often it syncs to disk."""

    folder: Path
    log: Path
    users: Path
    sync_interval: str

    @property
    def config(self) -> Path:
        return self.folder / "nats.conf"


class ServerInfo(msgspec.Struct, frozen=True):
    """The server's greeting to each connection."""

    version: str
    jetstream: bool = False


def running_pid(folder: Path) -> int | None:
    """The pid of the server of this folder, by whichever process it was started."""
    try:
        pid = int((folder / "nats.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return pid if process.is_running(pid, PROGRAM, folder / "nats.conf") else None


def configured_port(folder: Path) -> int:
    try:
        listen = re.search(r'^listen: "127\.0\.0\.1:(\d+)"$', (folder / "nats.conf").read_text(), re.MULTILINE)
    except FileNotFoundError:
        return 0
    return int(listen[1]) if listen else 0


def start(setup: NatsSetup, program: ServerProgram, *, port: int, remembered_port: int) -> int:
    """Start it and return its pid once it answers; if another program takes the port meanwhile, pick another."""
    for _ in range(PORTS_TRIED):
        chosen = process.pick_port(port, remembered_port)
        _write_config(setup, chosen)
        pid = process.start_in_background([program.path, "--config", setup.config], log=setup.log)
        if _came_up(setup, pid, chosen):
            return pid
        process.stop(pid, PROGRAM, setup.config, signals=STOP_SIGNALS)
    raise ServerFailedError(f"{program.path} did not start on port {port or 'any'}", log=setup.log)


def reload(folder: Path, log: Path) -> None:
    """Have it reload its users; unchanged users keep their connections."""
    pid = running_pid(folder)
    if pid is None:
        raise ServerFailedError(f"no NATS server of {folder} is running, so none can be told of new users")
    said_before = log.stat().st_size
    os.kill(pid, signal.SIGHUP)
    process.wait_until(lambda: any(said in _said_since(log, said_before) for said in RELOAD_ENDS), RELOAD_SECONDS_MAX)
    if RELOADED not in _said_since(log, said_before):
        raise ServerFailedError("the NATS server did not take its new configuration", log=log)


def stop(folder: Path) -> None:
    pid = running_pid(folder)
    if pid is not None:
        process.stop(pid, PROGRAM, folder / "nats.conf", signals=STOP_SIGNALS)


def answer(port: int) -> ServerInfo | None:
    """The greeting of a server with JetStream on this port, if there is one."""
    with (
        contextlib.suppress(OSError, msgspec.DecodeError),
        socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX) as connection,
        connection.makefile("rb") as lines,
    ):
        info = msgspec.json.decode(lines.readline().removeprefix(b"INFO "), type=ServerInfo)
        return info if info.jetstream else None
    return None


def _came_up(setup: NatsSetup, pid: int, port: int) -> bool:
    def is_settled() -> bool:
        ended = not process.command_of(pid)  # at first this pid is the shell that starts the server
        return ended or (running_pid(setup.folder) == pid and answer(port) is not None)

    return process.wait_until(is_settled, START_SECONDS_MAX) and running_pid(setup.folder) == pid


def _write_config(setup: NatsSetup, port: int) -> None:
    setup.folder.mkdir(mode=0o700, exist_ok=True)
    setup.config.write_text(
        CONFIG.format(
            name=_quoted(f"weft-{os.uname().nodename}"),
            port=port,
            pid_file=_quoted(setup.folder / "nats.pid"),
            store=_quoted(setup.folder),
            sync_interval=_quoted(setup.sync_interval),
            # The server joins an included path to the folder of its configuration, absolute or not.
            users=_quoted(os.path.relpath(setup.users, setup.folder)),
        )
    )


def _said_since(log: Path, size: int) -> str:
    with log.open("rb") as lines:
        lines.seek(size)
        return lines.read().decode(errors="replace")


def _quoted(value: str | Path) -> str:
    return msgspec.json.encode(str(value)).decode()
