"""Each run's container, on disk before it starts: the guard uses this when the engine does not answer.

containers/<job>-<epoch>-<rank>   in the home, where no job reaches it; removed with the run
"""

import os
from contextlib import suppress

import msgspec
from msgspec import Struct

from weftd.executor.home import Home
from weftd.executor.runs import RunKey


class GuardedContainer(Struct, frozen=True, kw_only=True):
    key: RunKey
    container: str
    grace: float
    stop_signal: str = "SIGTERM"


def keep(home: Home, one: GuardedContainer) -> None:
    """Store the container of a run. Raises OSError."""
    folder = _folder(home)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    new = f"{folder}/.{one.key}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, msgspec.json.encode(one))
    finally:
        os.close(fd)
    os.replace(new, f"{folder}/{one.key}")


def forget(home: Home, key: RunKey) -> None:
    with suppress(FileNotFoundError):
        os.unlink(f"{_folder(home)}/{key}")


def every(home: Home) -> dict[RunKey, GuardedContainer]:
    found: dict[RunKey, GuardedContainer] = {}
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(_folder(home))):
            with suppress(OSError, msgspec.DecodeError), open(f"{_folder(home)}/{name}", "rb") as file:
                one = msgspec.json.decode(file.read(), type=GuardedContainer)
                found[one.key] = one
    return found


def _folder(home: Home) -> str:
    return f"{home.root}/containers"
