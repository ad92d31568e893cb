"""The other side of the hook, in the hands of a test: the two pages, the socket, and what is answered on it."""

import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.compiled import Built
from tests.support.tree import PYTHONPATH

MIB = 1 << 20
HOLD, GATED, CAPPED, CLOSED = 1, 2, 4, 8
HELLO, WANT, RETURN, CHARGE = 1, 2, 3, 4
GRANT, REVOKE = 17, 18
PAGE = 4096
_MESSAGE = struct.Struct("<IIQQQ")
_BEAT_SECONDS = 0.1


class Said(NamedTuple):
    """A message of a hook, with the arbiter's number of the connection and the time of CLOCK_MONOTONIC."""

    connection: int
    at: float
    op: int
    pid: int
    turn: int
    a: int
    b: int


class Entry(NamedTuple):
    pid: int
    generation: int
    memory: int
    launches: int
    busy_us: int


Answer = Callable[["ScriptedArbiter", Said], None]


def grant_always(arbiter: "ScriptedArbiter", said: Said) -> None:
    """The turn for each WANT at once: a process that is alone on its GPU."""
    if said.op == WANT:
        arbiter.grant(said.connection)


def never(arbiter: "ScriptedArbiter", said: Said) -> None:
    """An arbiter that hears and says nothing."""


class ScriptedArbiter:
    """One job folder and its socket. `answer` is called with each message, in the arbiter's thread."""

    def __init__(
        self, folder: Path, *, flags: int = GATED, memory_limit: int = 0, answer: Answer = grant_always
    ) -> None:
        self.folder = folder
        self.said: list[Said] = []
        self.beating = True
        self.quota_us, self.bound_us = 10_000, 2_000
        self._answer = answer
        self._turn = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._limits = self._page("limits", struct.pack("<QIIIIQQIIQ", *self._first(flags, memory_limit)))
        self._use = self._page("use", b"WEFTUSE1")
        self._connections: dict[int, socket.socket] = {}
        self._numbers = 0
        self._stop = threading.Event()
        self._listening: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._limits.close()
        self._use.close()

    def start(self) -> None:
        """Listen and answer. Also after `stop`: an arbiter that is started again."""
        path = self.folder / "socket"
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._stop.clear()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every connection, as an arbiter that dies."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)
        self._thread = None

    # the pages

    def set_flags(self, flags: int) -> None:
        self._put("<I", 16, flags)
        self._changed()

    def set_memory_limit(self, size: int) -> None:
        self._put("<Q", 24, size)
        self._changed()

    def set_context_mib(self, size: int) -> None:
        self._put("<I", 44, size)
        self._changed()

    def beat(self) -> None:
        self._put("<Q", 48, time.monotonic_ns())

    @property
    def launches(self) -> int:
        return self._count(8)

    @property
    def busy_us(self) -> int:
        return self._count(24)

    @property
    def denied(self) -> int:
        return self._count(32)

    @property
    def waits_given_up(self) -> int:
        return self._count(40)

    @property
    def longest_kernel_us(self) -> int:
        return self._count(48)

    def entries(self) -> list[Entry]:
        use = os.pread(self._use.fileno(), PAGE, 0)
        found = (Entry(*struct.unpack_from("<IIQQQ", use, at)) for at in range(64, PAGE, 64))
        return [entry for entry in found if entry.pid]

    def clear(self, pid: int) -> None:
        """Clear the entry of a process, as the arbiter does when its connection ends."""
        use = os.pread(self._use.fileno(), PAGE, 0)
        for at in range(64, PAGE, 64):
            if struct.unpack_from("<I", use, at)[0] == pid:
                os.pwrite(self._use.fileno(), bytes(64), at)

    # the socket

    def grant(self, connection: int, *, quota_us: int | None = None, skip: int = 0) -> int:
        """Give the turn. `skip` turns have been another process's in between."""
        self._turn += 1 + skip
        quota = self.quota_us if quota_us is None else quota_us
        self._send(connection, GRANT, self._turn, quota, self.bound_us)
        return self._turn

    def revoke(self, connection: int, turn: int) -> None:
        self._send(connection, REVOKE, turn, 0, 0)

    def revoke_all(self) -> None:
        """Revoke the latest turn of every process, held or not."""
        for connection in list(self._connections):
            self.revoke(connection, self._turn)

    def ops(self, op: int) -> list[Said]:
        return [said for said in list(self.said) if said.op == op]

    def wait_for(self, true: Callable[[], bool], *, seconds: float = 10) -> None:
        """Wait until something holds. Raises TimeoutError."""
        until = time.monotonic() + seconds
        while not true():
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(0.002)

    # programs

    def environment(self, built: Built, device: Path, **more: str) -> dict[str, str]:
        """Of a job's process: the hook and the emulated driver."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("WEFT_")},
            **environment(built, device),
            "LD_PRELOAD": str(built.hook),
            "WEFT_SHARE": str(self.folder),
            **more,
        }

    def _page(self, name: str, content: bytes) -> "_File":
        path = self.folder / name
        path.write_bytes(content.ljust(PAGE, b"\0"))
        return _File(path)

    @staticmethod
    def _first(flags: int, memory_limit: int) -> tuple[int, ...]:
        magic = int.from_bytes(b"WEFTLIM1", "little")
        return (magic, 1, 0, flags, 0, memory_limit, 16 << 30, 2000, 0, time.monotonic_ns())

    def _put(self, form: str, at: int, value: int) -> None:
        os.pwrite(self._limits.fileno(), struct.pack(form, value), at)

    def _changed(self) -> None:
        self._put("<I", 12, struct.unpack("<I", os.pread(self._limits.fileno(), 4, 12))[0] + 1)

    def _count(self, at: int) -> int:
        return int(struct.unpack("<Q", os.pread(self._use.fileno(), 8, at))[0])

    def _send(self, connection: int, op: int, turn: int, a: int, b: int) -> None:
        with suppress(KeyError, OSError):  # the process may be gone
            self._connections[connection].send(_MESSAGE.pack(op, 0, turn, a, b))

    def _serve(self) -> None:
        assert self._listening is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ, 0)
            beat_at = 0.0
            while not self._stop.is_set():
                if self.beating and time.monotonic() >= beat_at:
                    self.beat()
                    beat_at = time.monotonic() + _BEAT_SECONDS
                for key, _ in selector.select(0.02):
                    if key.data == 0:
                        self._numbers += 1
                        self._connections[self._numbers] = self._listening.accept()[0]
                        selector.register(self._connections[self._numbers], selectors.EVENT_READ, self._numbers)
                    else:
                        self._hear(selector, key.data)
        for connection in [self._listening, *self._connections.values()]:
            connection.close()
        self._connections.clear()

    def _hear(self, selector: selectors.BaseSelector, number: int) -> None:
        connection = self._connections[number]
        try:
            data = connection.recv(64)
        except OSError:
            data = b""
        if not data:
            selector.unregister(connection)
            self._connections.pop(number).close()
            return
        assert len(data) == _MESSAGE.size
        said = Said(number, time.monotonic(), *_MESSAGE.unpack(data))
        self.said.append(said)
        self._answer(self, said)


class _File:
    """A page, open for as long as the test runs."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


def environment(built: Built, device: Path) -> dict[str, str]:
    """Of a process on the emulated GPU whose folder is `device`, without the hook."""
    return {
        "PYTHONPATH": PYTHONPATH,
        "LD_LIBRARY_PATH": str(built.driver_folder),
        "WEFT_EMULATED_DEVICE": str(device),
    }


def program(text: str, environ: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Start a Python program that has `Driver` and `time`; it says what it has to say on stdout."""
    head = "import os, sys, time\nfrom tests.support.driver_client import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + text],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(started: "subprocess.Popen[str]", *, seconds: float = 60) -> str:
    """What the program wrote, once it ended well."""
    out, err = started.communicate(timeout=seconds)
    assert started.returncode == 0, err[-3000:]
    return out
