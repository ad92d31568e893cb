"""The recorded state of the servers of one home: enough to find, recognise and stop them."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from weft.servers.errors import ServerFailedError, ServersBusyError

LOCK_SECONDS_MAX = 120  # longer than a start that recovers data
LOCK_POLL_SECONDS = 0.05


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    pid: int | None  # None: not running
    port: int
    version: str
    folder: Path  # where its data are
    note: str = ""


class ServersState(msgspec.Struct, frozen=True, kw_only=True):
    nats: ServerState | None = None
    postgres: ServerState | None = None


def read_state(home: Path) -> ServersState:
    path = home / "servers.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServersState, dec_hook=lambda kind, value: kind(value))
    except FileNotFoundError:
        return ServersState()
    except msgspec.DecodeError as error:
        raise ServerFailedError(f"{path} is damaged, or was not written by weft: {error}") from error


def write_state(home: Path, state: ServersState) -> None:
    unfinished = home / ".servers.json.unfinished"
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(state, enc_hook=str)) + b"\n")
    unfinished.replace(home / "servers.json")


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """A lock: one process at a time starts or stops the servers of a home."""
    with open(home / "servers.lock", "ab") as lock:
        until = time.monotonic() + LOCK_SECONDS_MAX
        while not _taken(lock.fileno()):
            if time.monotonic() >= until:
                raise ServersBusyError(f"{home}: someone else is starting or stopping its servers")
            time.sleep(LOCK_POLL_SECONDS)
        yield


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
