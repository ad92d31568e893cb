"""The pipes through which a container's output reaches the engine, held open until the container has ended.

An engine that is killed leaves its containers running, and what they write stays in these pipes. It would be gone with
the last process that has them open; where the container ends before the engine is back, that is the copy. Nothing is
read from them while the container lives: it is the engine's to read.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress

from weftd.executor.stacks import write_stacks

FOLDER = "/run/docker/containerd"  # of an engine as it comes; another one's is found by who has its pipes open
NAMES = ("init-stdout", "init-stderr")
END_SECONDS_MAX = 2.0
STEP_SECONDS = 0.02
READ_BYTES = 1 << 16
REST_BYTES_MAX = 16 << 20  # many times what the pipes hold


class EnginePipes:
    """The pipes of one container. `hold` while it runs; `rest` when it has ended, by the thread that copies."""

    def __init__(self) -> None:
        self._fds: tuple[int, ...] = ()
        self._rest = b""

    def hold(self, pid: int, container: str) -> None:
        """Open the pipes within reach. `pid`: the container's first process."""
        if not self._fds:
            self._fds = tuple(fd for name in NAMES if (fd := _opened(pid, f"{container}/{name}")) is not None)

    def write_stacks(self, text: str) -> None:
        """Put this text into the output of a container that runs, if its pipes are in reach. Raises OSError."""
        for fd in self._fds[-1:]:
            write_stacks(fd, text)

    def rest(self) -> bytes:
        """Bytes that the engine did not read, the same at each call. Blocks for END_SECONDS_MAX at most."""
        deadline = time.monotonic() + END_SECONDS_MAX
        for fd in self._fds:
            self._rest += _read(fd, deadline)
        self.close()
        return self._rest

    def close(self) -> None:
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)


def _opened(pid: int, name: str) -> int | None:
    for path in (f"{FOLDER}/{name}", *_of_parent(pid, f"/{name}")):
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
    return None


def _of_parent(pid: int, name: str) -> Iterator[str]:
    """The open files with this end of a name of the process's parent, which writes into the pipes."""
    with suppress(OSError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            folder = f"/proc/{int(file.read().rpartition(')')[2].split()[1])}/fd"
        for fd in os.listdir(folder):
            with suppress(FileNotFoundError):
                if os.readlink(f"{folder}/{fd}").endswith(name):
                    yield f"{folder}/{fd}"


def _read(fd: int, deadline: float) -> bytes:
    """All bytes until nobody writes any more, or for long enough."""
    found = bytearray()
    while len(found) < REST_BYTES_MAX:
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                break
            time.sleep(STEP_SECONDS)
            continue
        if not data:
            break
        found += data
    return bytes(found)
