"""An emulated `nvidia-cuda-mps-control` for emulated GPUs: the commands that Weft sends, as NVIDIA documents them.

With `-d` it becomes the daemon of the folder in `CUDA_MPS_PIPE_DIRECTORY`; without, it sends the commands on its stdin
to that daemon, one a line, and prints the answers. The daemon is its own server: it has the clients of
`native/emulated_mps.c`, each a process that holds a connection. It shows what we believe of NVIDIA's daemon, and is no
proof of what that does.

It is run by its path and imports nothing of ours, so that a command takes milliseconds.
"""

import fcntl
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).resolve()))
SOCKET, LOCK = "control", "control_lock"
ANSWER_SECONDS_MAX = 5.0
LOOK_SECONDS = 5.0  # how often the daemon looks for its folder: once that is gone, no command reaches the daemon
LINE_BYTES_MAX = 1024
_PEER = struct.Struct("3i")


class Daemon:
    """Serves clients and commands on one socket, until a command says quit, or the daemon's folder is gone."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SOCKET
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._path))
        self._socket.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._clients: dict[socket.socket, int] = {}
        self._has_server = False  # one is there from the first client on
        self._quits = False

    def serve(self) -> None:
        while not self._quits and self._path.exists():
            for key, _ in self._selector.select(LOOK_SECONDS):
                if key.fileobj is self._socket:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        connection.settimeout(ANSWER_SECONDS_MAX)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            line = connection.recv(LINE_BYTES_MAX).decode(errors="replace").strip()
            if line == "client":
                self._join(connection)
                return
            if line:
                connection.sendall(self.answered(line).encode())
        except OSError:
            pass
        self._clients.pop(connection, None)
        self._selector.unregister(connection)
        connection.close()

    def _join(self, connection: socket.socket) -> None:
        pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        self._clients[connection] = pid
        self._has_server = True
        connection.sendall(b"ok\n")

    def answered(self, command: str) -> str:
        match command.split():
            case ["get_server_list"]:
                return _lines([os.getpid()] if self._has_server else [])
            case ["get_client_list", server] if server == str(os.getpid()):
                return _lines(sorted(self._clients.values()))
            case ["get_default_active_thread_percentage"]:
                return "100.0\n"
            case ["quit", *_]:
                self._quits = True
                return ""
            case _:
                return "Unknown command\n"


def _lines(numbers: Iterable[int]) -> str:
    return "".join(f"{number}\n" for number in numbers)


def begin(environ: Mapping[str, str]) -> int:
    """Become the daemon of the folder. The parent returns once commands are answered: its exit status."""
    folder = Path(environ[PIPE_VARIABLE])
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write("An instance of this daemon is already running\n")
        return 1
    daemon = Daemon(folder)
    if os.fork():
        return 0
    os.setsid()
    os.chdir("/")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    daemon.serve()
    return 0


def control(environ: Mapping[str, str], commands: Iterable[str]) -> int:
    """Send commands to the daemon, and print what it answers: the exit status."""
    for command in commands:
        if not command.strip():
            continue
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_SECONDS_MAX)
                connection.connect(str(Path(environ[PIPE_VARIABLE], SOCKET)))
                connection.sendall(f"{command.strip()}\n".encode())
                while said := connection.recv(1 << 16):
                    sys.stdout.write(said.decode())
        except OSError:
            sys.stderr.write("Cannot find MPS control daemon process\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(begin(os.environ) if sys.argv[1:] == ["-d"] else control(os.environ, sys.stdin))
