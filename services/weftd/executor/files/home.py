"""The layout of the executor's folder on its node.

state.json            the executor's own memory (see state_file.py)
stops                 the runs that were asked to stop, while state.json cannot be written (state_file.py)
lock                  held while an executor runs from here: there is never a second one
swept                 its file time is that of the last retention sweep (retention.py)
dropped               which logs were dropped lately, when, and their sizes (dropped.py)
leave                 until when runs may begin, for their shells (leave.py)
guard guard.json guard.log synced fenced   between the executor and its guard (guard/files.py)
containers/<job>-<epoch>-<rank>   the container of each run (runtime/docker/kept.py)
runs/<job>-<epoch>-<rank>/   one folder per run until it is removed (process runtime: runtime/process/records.py)
    run.json          what telemetry reads: job_id, epoch, rank, pid, cgroups
    progress          the file that WEFT_PROGRESS names
    progress.sock     the datagram socket that WEFT_PROGRESS_SOCKET names
    members.json      the file that WEFT_MEMBERS names (members.py)
members.new           a members.json that is being written
discarded/            files that runs left in their folders, to be removed (discards.py)
shares/               a slot folder for each run with a share of a GPU (libs/weft/sharing/slots.py, shares/opening.py)
results/<job>/, checkpoints/<job>/   what runs of a job wrote there, unless these are elsewhere (job_folders.py)
metrics/<job>/<epoch>-<rank>.jsonl   the series of numbers that a run reported (logs/metrics.py)
contexts/<job>-<epoch>/   the files that went along with a job (contexts.py); `packed` and `discarded` beside them
data/                 copies of objects that jobs read, and outputs to upload (data/cache.py, data/uploads.py)
secrets/<job>-<epoch>-<rank>/   a file for each secret that the run has as one, unless they are elsewhere (secrets.py)
init/                 the first process of containers, as the engine mounts it (runtime/docker/init.py)
native/               the hook and the emulated driver, as runs load them (shares/opening.py)
devices/              the state of each emulated GPU that runs share (libs/weft/emulation/native/emulated.h)
arbiter.log           what the arbiter of this node said (shares/watch.py)
emulated/<gpu>        the slowdown of that emulated GPU, if a person wrote one (libs/weft/emulation/slowdowns.py)
serving/<job>-<epoch>-<rank>   which runs serve requests, where and how (serving/records.py)
egress/<job>-<epoch>-<rank>   the egress limit of each container (runtime/docker/rates.py)
images/               which images were fetched, and when each was used last (runtime/docker/images.py)
logs/<job>-<epoch>-<rank>.log   the run's output, kept when the run is removed (how long: logs/retention.py)

A log whose head was dropped is a file with a hole there: every byte that is left keeps its offset, and the file itself
shows where the data begins, so that no other record is needed.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from weftd.executor.files.dropped import DroppedLogs
from weftd.executor.files.regular import READ
from weftd.executor.runs import LogChunk, RunKey

MEMBERS = "members.json"
SOCKET_PATH_MAX = 107  # the kernel's limit for the address of a Unix socket
LOG_READ_MAX = 1 << 20
NO_LOG = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO})  # or if its place has no regular file
READ_TRIES = 3  # a log whose head is dropped while it is read is read again from where it begins now


class Home:
    def __init__(self, root: Path, *, secret_files: Path | None = None) -> None:
        self.root = root.absolute()
        self.secret_files = secret_files or self.root / "secrets"
        self.runs = self.root / "runs"
        self.logs = self.root / "logs"
        self.discarded = self.root / "discarded"
        self.emulated = self.root / "emulated"
        self.images = self.root / "images"
        self.metrics = self.root / "metrics"
        self.state = self.root / "state.json"
        self.lock = self.root / "lock"
        self.dropped = DroppedLogs(str(self.root / "dropped"))
        for folder in (self.runs, self.logs, self.discarded):  # created now: a disk may be full when they are needed
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.emulated.mkdir(exist_ok=True)  # containers of any user read it

    def run(self, key: RunKey) -> str:
        return f"{self.runs}/{key}"

    def context(self, key: RunKey) -> str:
        return context_folder(self.root, key)

    def secrets(self, key: RunKey) -> str:
        return f"{self.secret_files}/{key}"

    def log(self, key: RunKey) -> str:
        return f"{self.logs}/{key}.log"

    def progress(self, key: RunKey) -> str:
        return f"{self.runs}/{key}/progress"

    def members(self, key: RunKey) -> str:
        return f"{self.runs}/{key}/{MEMBERS}"

    def progress_socket(self, key: RunKey) -> str:
        """The path of the run's socket; empty if it is too long for a socket's address."""
        path = f"{self.runs}/{key}/progress.sock"
        return path if len(os.fsencode(path)) <= SOCKET_PATH_MAX else ""

    def read_log(self, key: RunKey, *, offset: int, limit: int, known: bool, over: bool) -> LogChunk:
        """Bytes from `offset`. `known`: the runtime has this run. `over`: nothing more will be written."""
        try:
            fd = os.open(self.log(key), READ)
        except OSError as error:
            if error.errno not in NO_LOG:
                raise
            return self._no_log(key, ended=over and known, missing=not known)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return self._no_log(key, ended=over and known, missing=not known)
            size = status.st_size
            begins, data = _read_from(fd, max(0, offset), max(0, min(limit, LOG_READ_MAX)))
        finally:
            os.close(fd)
        offset = max(offset, begins)
        return LogChunk(data=data, ended=over and offset + len(data) >= size, begins=begins, size=size)

    def _no_log(self, key: RunKey, *, ended: bool, missing: bool) -> LogChunk:
        dropped = self.dropped.of(str(key)) if missing else None
        if dropped is None:
            return LogChunk(data=b"", ended=ended, missing=missing)
        return LogChunk(
            data=b"", ended=ended, missing=missing, dropped_at=dropped.at, dropped_bytes=dropped.bytes_dropped
        )

    def close_log(self, key: RunKey) -> None:
        """Note that the run is removed: the age of its log counts from now on."""
        with suppress(OSError):
            os.utime(self.log(key), follow_symlinks=False)


def context_folder(root: Path, key: RunKey) -> str:
    """Where the ranks of one job and epoch on this node have the files that went along with it."""
    return f"{root}/contexts/{str(key).rpartition('-')[0]}"


def begins(fd: int) -> int:
    """The first byte that the log still has. A file system without holes has never cut a log."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            return 0
        return os.fstat(fd).st_size  # the whole file is a hole


def _read_from(fd: int, offset: int, limit: int) -> tuple[int, bytes]:
    """The log's first offset, and its bytes from there or from `offset`; never the zeros of a hole."""
    begin = offset
    for _ in range(READ_TRIES):
        data = os.pread(fd, limit, offset)
        begin = begins(fd)
        if begin <= offset:
            return begin, data
        offset = begin
    return begin, b""
