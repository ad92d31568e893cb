"""The folder of a local cluster: what is kept there and where.

credentials/        every secret (weft.credentials)
nats/ postgres/     the servers' data, with nats.log, postgres.log and servers.json (weft.servers)
nodes/<node>/       an executor's home: its runs and their logs
checkpoints/        each job's own folder, the same on every node
logs/<service>.log  the logs of the services
client.json         the gateway's address and the administrator's token, for `weft ps` and the other commands
cluster.json        the process that runs the cluster, and its phase
up.lock             held as long as it runs: there is never a second one
up.log              the output of `weft up --detach`
"""

import fcntl
import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from weft.client.place import CLIENT_FILE, ClientFile
from weftd.cli.local.errors import AlreadyRunsError, LocalError

S = TypeVar("S", bound=Struct)


class ClusterState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cluster as the process that runs it last wrote it."""

    pid: int
    phase: Literal["starting", "ready", "stopping", "stopped"]
    url: str
    pids: dict[str, int] = {}  # by service


class ClusterHome:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.credentials = self.root / "credentials"
        self.checkpoints = self.root / "checkpoints"
        self.nodes = self.root / "nodes"
        self.logs = self.root / "logs"
        self.up_log = self.root / "up.log"
        self._lock: int | None = None

    def make(self) -> None:
        for folder in (self.root, self.checkpoints, self.nodes, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def node(self, node_id: str) -> Path:
        return self.nodes / node_id

    def log(self, service: str) -> Path:
        return self.logs / f"{service}.log"

    def take(self) -> None:
        """Lock the home for this process, until `release` or the end of the process."""
        lock = os.open(self.root / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AlreadyRunsError(f"the cluster of {self.root} runs already") from None
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        self._lock = lock

    def runner(self) -> int | None:
        """The pid of the process that took it last."""
        try:
            return int((self.root / "up.lock").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def runs(self) -> int | None:
        """The pid of the process that runs the cluster now; None if none does."""
        try:
            with (self.root / "up.lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            return self.runner()
        return None

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def state(self) -> ClusterState | None:
        return self._read("cluster.json", ClusterState)

    def client(self) -> ClientFile | None:
        return self._read(CLIENT_FILE, ClientFile)

    def write_state(self, state: ClusterState) -> None:
        self._write("cluster.json", state)

    def write_client(self, client: ClientFile) -> None:
        self._write(CLIENT_FILE, client)

    def _read(self, name: str, kind: type[S]) -> S | None:
        path = self.root / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as error:
            raise LocalError(f"{path} is damaged, or was not written by weft: {error}") from error

    def _write(self, name: str, content: Struct) -> None:
        """Write the whole file or nothing, readable by its owner only."""
        unfinished = self.root / f".{name}.unfinished"
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
        unfinished.replace(self.root / name)
