"""Starts, attaches to and stops the servers of one home folder: blocking, one caller at a time."""

import shutil
from pathlib import Path

import msgspec

from weft.servers import nats, postgres, process
from weft.servers.account import reachable_folder, readable_copy, server_account
from weft.servers.errors import ServerFailedError
from weft.servers.find import find_nats, find_postgres
from weft.servers.state import ServersState, ServerState, locked, read_state, write_state


class Ensured(msgspec.Struct, frozen=True):
    """A running server, and whether it was started now."""

    server: ServerState
    started: bool


def make_home(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    return home.resolve()


def ensure_nats(home: Path, *, users: Path, port: int, sync_interval: str) -> Ensured:
    """Attach to the NATS server of this home and reload its users, or start it."""
    with locked(home):
        found = _attach_nats(home) or _start_nats(home, users.resolve(), port, sync_interval)
        write_state(home, msgspec.structs.replace(read_state(home), nats=found.server))
        return found


def ensure_postgres(home: Path, *, password: str, port: int) -> Ensured:
    """Attach to the Postgres server of this home, or start it, with new data if there are none."""
    with locked(home):
        place = read_state(home).postgres or _choose_place(home)
        write_state(home, msgspec.structs.replace(read_state(home), postgres=place))
        found = _attach_postgres(home, place) or _start_postgres(home, place, password, port)
        write_state(home, msgspec.structs.replace(read_state(home), postgres=found.server))
        return found


def reload_nats(home: Path) -> None:
    home = home.resolve()
    nats.reload(home / "nats", home / "nats.log")


def stop_all(home: Path) -> None:
    if not home.exists():
        return
    home = home.resolve()
    with locked(home):
        state = read_state(home)
        if state.nats:
            nats.stop(state.nats.folder)
        if state.postgres:
            postgres.stop(state.postgres.folder)
        write_state(home, _as_running(state))


def what_runs(home: Path) -> ServersState:
    home = home.resolve()
    return _as_running(read_state(home))


def erase_all(home: Path) -> None:
    if not home.exists():
        return
    home = home.resolve()
    with locked(home):
        state = read_state(home)
        if state.nats:
            nats.stop(state.nats.folder)
        if state.postgres:
            postgres.abandon(state.postgres.folder)
        for server in (state.nats, state.postgres):
            if server and server.folder.exists():
                shutil.rmtree(server.folder)
        write_state(home, ServersState())


def _attach_nats(home: Path) -> Ensured | None:
    folder = home / "nats"
    pid = nats.running_pid(folder)
    if pid is None:
        return None
    port = nats.configured_port(folder)
    process.wait_until(lambda: nats.answer(port) is not None, nats.START_SECONDS_MAX)
    info = nats.answer(port)
    if info is None:
        raise ServerFailedError(f"the NATS server (pid {pid}) does not answer on port {port}", log=home / "nats.log")
    nats.reload(folder, home / "nats.log")
    return Ensured(ServerState(pid=pid, port=port, version=info.version, folder=folder), started=False)


def _start_nats(home: Path, users: Path, port: int, sync_interval: str) -> Ensured:
    program = find_nats()
    folder = home / "nats"
    setup = nats.NatsSetup(folder=folder, log=home / "nats.log", users=users, sync_interval=sync_interval)
    pid = nats.start(setup, program, port=port, remembered_port=nats.configured_port(folder))
    server = ServerState(pid=pid, port=nats.configured_port(folder), version=program.version, folder=folder)
    return Ensured(server, started=True)


def _choose_place(home: Path) -> ServerState:
    """Choose the data's folder and record it before there are data, so that they are found whatever happens next."""
    account = server_account(home / "postgres")
    folder = reachable_folder(home, account)
    note = "" if folder.parent == home or account is None else f"{account.name} runs Postgres and may not enter {home}"
    return ServerState(pid=None, port=0, version="", folder=folder, note=note)


def _attach_postgres(home: Path, place: ServerState) -> Ensured | None:
    if postgres.running(place.folder) is None:
        return None
    found = postgres.wait_ready(place.folder, home / "postgres.log")
    return Ensured(msgspec.structs.replace(place, pid=found.pid, port=found.port), started=False)


def _start_postgres(home: Path, place: ServerState, password: str, port: int) -> Ensured:
    account = server_account(place.folder)
    program = find_postgres(major=postgres.data_major(place.folder))
    programs = readable_copy(program.path, program.version, account)
    setup = postgres.PostgresSetup(programs=programs, folder=place.folder, log=home / "postgres.log", account=account)
    if postgres.data_major(place.folder) is None:
        postgres.initialise(setup, password)
    found = postgres.start(setup, port=port, remembered_port=place.port)
    server = msgspec.structs.replace(place, pid=found.pid, port=found.port, version=program.version)
    return Ensured(server, started=True)


def _as_running(state: ServersState) -> ServersState:
    """Return the state with the current process ids."""
    found_nats, found_postgres = state.nats, state.postgres
    if found_nats:
        found_nats = msgspec.structs.replace(found_nats, pid=nats.running_pid(found_nats.folder))
    if found_postgres:
        postmaster = postgres.running(found_postgres.folder)
        found_postgres = msgspec.structs.replace(found_postgres, pid=postmaster and postmaster.pid)
    return ServersState(nats=found_nats, postgres=found_postgres)
