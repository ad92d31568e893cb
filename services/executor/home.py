"""The executor's folder on its node: what it keeps there and where.

state.json            the executor's own memory (see keeper.py)
lock                  held while an executor runs from here: there is never a second one
runs/<job>-<epoch>-<rank>/   one folder per run until it is removed (process runtime: see runtime/records.py)
    run.json          what telemetry reads: job_id, epoch, rank, pid, cgroups
    progress          the file that WEFT_PROGRESS names
    progress.sock     the datagram socket that WEFT_PROGRESS_SOCKET names
logs/<job>-<epoch>-<rank>.log   what the run wrote, kept when the run is removed
"""

import os
from pathlib import Path

from services.executor.runtime import LogChunk, RunKey

SOCKET_PATH_MAX = 107  # what the kernel accepts as the address of a Unix socket
LOG_READ_MAX = 1 << 20


class Home:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.runs = self.root / "runs"
        self.logs = self.root / "logs"
        self.state = self.root / "state.json"
        self.lock = self.root / "lock"
        for folder in (self.runs, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def run(self, key: RunKey) -> str:
        return f"{self.runs}/{key}"

    def log(self, key: RunKey) -> str:
        return f"{self.logs}/{key}.log"

    def progress(self, key: RunKey) -> str:
        return f"{self.runs}/{key}/progress"

    def progress_socket(self, key: RunKey) -> str:
        """Empty where the path is longer than a socket's address may be."""
        path = f"{self.runs}/{key}/progress.sock"
        return path if len(os.fsencode(path)) <= SOCKET_PATH_MAX else ""

    def read_log(self, key: RunKey, *, offset: int, limit: int, known: bool, over: bool) -> LogChunk:
        """Bytes from `offset`. `known`: the runtime has this run. `over`: nothing more will be written."""
        try:
            fd = os.open(self.log(key), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return LogChunk(data=b"", ended=over and known, missing=not known)
        try:
            size = os.fstat(fd).st_size
            data = os.pread(fd, max(0, min(limit, LOG_READ_MAX)), max(0, offset))
        finally:
            os.close(fd)
        return LogChunk(data=data, ended=over and offset + len(data) >= size)
