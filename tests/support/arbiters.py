"""The arbiter as a process, and processes that speak with it as the hook does, without a GPU: a turn is time."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.sharing import slots, wire
from weft.sharing.records import SlotShare
from weft.sharing.wire import Op, ShareMessage

GPU = "GPU-0"
SECONDS_MAX = 30.0


def shared(request: int, **more: object) -> SlotShare:
    return SlotShare(**{"gpu": GPU, "job": "j", "request": request, "emulated": True, **more})  # type: ignore[arg-type]


def start_arbiter(root: Path) -> subprocess.Popen[bytes]:
    """Start an arbiter; its log goes to `arbiter.log` beside the root."""
    with (root.parent / "arbiter.log").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "weftd.arbiter", "--root", str(root)], stderr=log)


@contextmanager
def arbiter(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An arbiter for as long as the block lasts; it must still be alive at its end, and end in time."""
    root.mkdir(exist_ok=True)
    process = start_arbiter(root)
    try:
        yield process
        assert process.poll() is None, (root.parent / "arbiter.log").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
        assert "Traceback" not in (root.parent / "arbiter.log").read_text()
    finally:
        process.kill()
        process.wait()


def within(seconds: float, what: object) -> None:
    """Wait until `what()` is true. Raises AssertionError after that many seconds."""
    assert callable(what)
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.002)


class Peer:
    """A connection as of a process under the hook, which blocks for at most half a minute."""

    def __init__(
        self, job: Path, *, entry: int | None = None, pid: int | None = None, seconds: float = SECONDS_MAX
    ) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.socket.settimeout(SECONDS_MAX)
            try:
                self.socket.connect(str(job / slots.SOCKET))
                break
            except OSError:
                self.socket.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        self._pid = os.getpid() if pid is None else pid
        if entry is not None:
            self.say(Op.HELLO, a=entry)

    def say(self, op: int, *, turn: int = 0, a: int = 0, b: int = 0) -> None:
        self.socket.send(wire.encode(ShareMessage(op, self._pid, turn, a, b)))

    def hear(self) -> ShareMessage:
        """The next message. Raises EOFError when the arbiter ended the connection, and TimeoutError."""
        try:
            data = self.socket.recv(64)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError
        return wire.decode(data)

    def turn(self) -> ShareMessage:
        """Want a turn, and wait for it."""
        self.say(Op.WANT, a=1000)
        return self.granted()

    def granted(self) -> ShareMessage:
        """Wait for a turn that was wanted."""
        while (message := self.hear()).op != Op.GRANT:
            pass
        return message

    def use(self, granted: ShareMessage) -> int:
        """Use a turn up until its quota or its revocation, and give it back; the time used in µs."""
        began = time.monotonic()
        self.socket.settimeout(granted.a / 1e6)
        try:
            self.hear()
        except TimeoutError:
            pass
        finally:
            self.socket.settimeout(SECONDS_MAX)
        used = round((time.monotonic() - began) * 1e6)
        self.say(Op.WANT, a=1000)
        self.say(Op.RETURN, turn=granted.turn, a=used)
        return used

    def close(self) -> None:
        self.socket.close()


def saturate(job: Path, seconds: float) -> None:
    """Use turns for so long, also across arbiters, and print when each began and how many µs it lasted."""
    turns: list[tuple[float, int]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            peer = Peer(job, entry=0)
            peer.say(Op.WANT, a=1000)
            while time.monotonic() < end:
                message = peer.hear()
                if message.op == Op.GRANT:
                    began = time.monotonic()
                    turns.append((began, peer.use(message)))
        except (EOFError, OSError):
            continue
    sys.stdout.write(json.dumps(turns))


def saturating(job: Path, seconds: float) -> subprocess.Popen[bytes]:
    """A process that saturates its slot."""
    program = f"from tests.support.arbiters import *; saturate(Path({str(job)!r}), {seconds})"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)


def holding(job: Path) -> subprocess.Popen[bytes]:
    """A process that has a turn when this returns, and keeps it."""
    program = (
        f"from tests.support.arbiters import *; Peer(Path({str(job)!r})).turn(); print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def turns_of(process: subprocess.Popen[bytes]) -> list[tuple[float, int]]:
    out, _ = process.communicate(timeout=60)
    return [(began, us) for began, us in json.loads(out)]


def remove_slot(root: Path, name: str) -> None:
    """Remove the folder of a well-behaved run; what the arbiter writes into it until it notices goes, too."""
    gone = root / f".{name}.{time.monotonic_ns()}"
    (root / name).rename(gone)

    def is_gone() -> bool:
        with suppress(OSError):
            shutil.rmtree(gone)
        return not gone.exists()

    within(5, is_gone)
