"""Retention of logs on a node: decides by the logs on the disk, then removes and cuts files.

Three limits, each a setting. The log of a run that this node still has is *held*: it is never removed, and its age does
not count. But no log is longer than the limit for one run, or than the node has room for: the excess at its head is
made a hole in the file (see home.py), so that every byte left keeps its offset, and a reader learns how many are gone.
A file system that cannot make holes keeps such a log whole, and the node reports that.

A log's age depends on the node's clock, which may be wrong. So after that clock jumped ahead by a day, nothing is
dropped for its age for a day, in which the clock can be corrected.
"""

import ctypes
import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from weftd.executor.files.dropped import Dropped
from weftd.executor.files.home import Home, begins
from weftd.executor.files.job_folders import JobFolders
from weftd.executor.runs import RunKey

logger = logging.getLogger(__name__)

DAY = 86400.0
GRAIN = 1 << 20  # holes begin and end at multiples of this: no file system has larger blocks
SWEEP_SECONDS = 15.0
AHEAD_SECONDS = 86400.0  # a larger jump of the clock, or time off, makes the ages doubtful
DOUBT_SECONDS = 86400.0
DISK_PART = 0.2  # of its file system that all logs may use if no limit is set
FREE_PART_MIN = 0.02  # of the file system: with less the disk counts as full
PUNCH_HOLE, KEEP_SIZE = 2, 1
NOT_HERE = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ETXTBSY, errno.EINVAL})


class RetentionLimits(Struct, frozen=True, kw_only=True):
    """Settings of the executor: how many logs a node keeps, and for how long. 0 means no such limit."""

    logs_kept_days: float = 14.0  # after the run's end
    log_bytes_max: int = 1 << 30  # of one run's log its newest bytes are kept
    logs_bytes_max: int = 0  # of all logs; 0: a fifth of their file system


class Log(Struct, frozen=True, kw_only=True):
    """One log file. `size` is its end, `used` its bytes on the disk."""

    name: str
    size: int
    used: int
    written_at: float
    held: bool


class Removal(Struct, frozen=True):
    name: str


class Cut(Struct, frozen=True):
    """Drop all bytes before `begins`."""

    name: str
    begins: int


def decide(logs: Iterable[Log], limits: RetentionLimits, *, now: float) -> list[Removal | Cut]:
    """Remove the oldest ended logs first; then cut the heads of the longest logs down to the node's limit."""
    removals: list[Removal | Cut] = []
    kept: list[Log] = []
    for log in sorted(logs, key=lambda log: (log.written_at, log.name)):
        old = 0 < limits.logs_kept_days * DAY < now - log.written_at
        if old and not log.held:
            removals.append(Removal(log.name))
        else:
            kept.append(log)
    one_max = limits.log_bytes_max or None
    over = sum(_bounded(log.used, one_max) for log in kept) - limits.logs_bytes_max if limits.logs_bytes_max else 0
    staying: list[Log] = []
    for log in kept:
        if over > 0 and not log.held:
            over -= _bounded(log.used, one_max)
            removals.append(Removal(log.name))
        else:
            staying.append(log)
    level = _level([_bounded(log.used, one_max) for log in staying], limits.logs_bytes_max) if over > 0 else one_max
    return removals + [cut for log in staying if level is not None and (cut := _cut(log, level)) is not None]


def _bounded(used: int, one_max: int | None) -> int:
    return used if one_max is None else min(used, one_max)


def _level(sizes: list[int], total_max: int) -> int:
    """The most that each may have so that all together have no more than `total_max`."""
    left = total_max
    ascending = sorted(sizes)
    for place, size in enumerate(ascending):
        share = left // (len(ascending) - place)
        if size > share:
            return share
        left -= size
    return total_max


def _cut(log: Log, level: int) -> Cut | None:
    """A cut at a multiple of GRAIN that leaves at least `level` bytes; None if nothing more can be dropped."""
    begins = max(0, log.size - level) // GRAIN * GRAIN
    return Cut(log.name, begins) if log.used - level >= GRAIN and begins > 0 else None


class Found(Struct, kw_only=True):
    """The result of a look at the logs."""

    logs_bytes: int = 0
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    dropped_bytes: int = 0  # since this executor began, of heads and of whole logs
    uncut: int = 0  # logs over their limit that this file system cannot cut

    @property
    def full(self) -> bool:
        return self.disk_bytes > 0 and self.disk_free_bytes < self.disk_bytes * FREE_PART_MIN


class Doubt:
    """Detects jumps of the clock: its time is stored as a file's time and compared with that, and with `clock`.

    `clock` counts from boot. While there is doubt the file keeps the time from before, so that a restart doubts too.
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._looked_at: float | None = None
        self._since: float | None = None

    def look(self, now: float) -> bool:
        """`now` in seconds since the epoch, of the clock that may be wrong. Raises OSError."""
        at = self._clock()
        passed = 0.0 if self._looked_at is None else at - self._looked_at
        self._looked_at = at
        before = self._kept()
        if before is None or now - before <= AHEAD_SECONDS + passed:
            self._since = None
        elif self._since is None:
            self._since = at
            logger.warning(
                "the clock went ahead by %.1f days: for a day nothing is dropped for its age", (now - before) / 86400.0
            )
        if self._since is not None and at - self._since < DOUBT_SECONDS:
            return True
        self._since = None
        self._keep(now)
        return False

    def _kept(self) -> float | None:
        try:
            return os.lstat(self._path).st_mtime
        except FileNotFoundError:
            return None

    def _keep(self, now: float) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            os.utime(fd, (now, now))
        finally:
            os.close(fd)


class Retention:
    """The files of one home, held to these limits. `clock` counts from boot and never jumps.

    `folders`: those of jobs, whose ages are looked at as well.
    """

    def __init__(
        self,
        home: Home,
        limits: RetentionLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        folders: Sequence[JobFolders] = (),
    ) -> None:
        self._home = home
        self._folders = folders
        self._limits = limits
        self._doubt = Doubt(f"{home.root}/swept", clock)
        self.found = Found()
        self._warned: set[str] = set()
        self._uncut: set[str] = set()
        self._swept_at: float | None = None
        self._now = 0.0

    def look(self, held: Collection[RunKey] | None, *, now: float) -> Found:
        """Enforce the limits once: on held logs each time, on all logs every SWEEP_SECONDS. Blocks: for a thread.

        `held` None: the runs are unknown, so all logs may be held. `now` in seconds since the epoch, of a clock that
        may jump. A failure is only logged as a warning.
        """
        self._now = now
        try:
            disk = os.statvfs(self._home.logs)
            self.found.disk_bytes, self.found.disk_free_bytes = (
                disk.f_blocks * disk.f_frsize,
                disk.f_bavail * disk.f_frsize,
            )
            self._warn_of_full()
            limits = self._limits
            if not limits.logs_bytes_max:
                limits = replace(limits, logs_bytes_max=max(GRAIN, int(self.found.disk_bytes * DISK_PART)))
            names = None if held is None else {str(key) for key in held}
            if self._swept_at is None or not 0 <= now - self._swept_at < SWEEP_SECONDS:
                self._sweep(names, limits, now)
                self._swept_at = now
            else:
                self._bound(names or set(), limits, now)
        except OSError as error:
            self._warn("look", f"the logs in {self._home.logs} cannot be kept to their limits: {error}")
        else:
            self._warned.discard("look")
        return self.found

    def _sweep(self, held: set[str] | None, limits: RetentionLimits, now: float) -> None:
        names = [name.removesuffix(".log") for name in os.listdir(self._home.logs) if name.endswith(".log")]
        if self._doubt.look(now):
            limits = replace(limits, logs_kept_days=0)
        elif held is not None:
            keys = [RunKey.parse(name) for name in held]
            for folders in self._folders:
                folders.sweep({key.job_id for key in keys if key is not None}, now=now)
        logs = [log for name in names if (log := _log(self._home, name, held is None or name in held)) is not None]
        self.found.logs_bytes = sum(log.used for log in logs)
        self._uncut.clear()
        self._do(decide(logs, limits, now=now))

    def _bound(self, held: set[str], limits: RetentionLimits, now: float) -> None:
        """Between two sweeps: cut the logs that grow."""
        logs = [log for name in sorted(held) if (log := _log(self._home, name, True)) is not None]
        self._do(decide(logs, limits, now=now))

    def _do(self, deeds: Iterable[Removal | Cut]) -> None:
        for deed in deeds:
            try:
                gone = self._remove(deed.name) if isinstance(deed, Removal) else self._make_cut(deed)
            except FileNotFoundError:
                continue  # A job of this very user may remove its own log.
            self.found.uncut = len(self._uncut)
            self.found.dropped_bytes += gone
            self.found.logs_bytes = max(0, self.found.logs_bytes - gone)

    def _warn_of_full(self) -> None:
        found = self.found
        if found.full:
            self._warn("full", f"the disk of {self._home.root} is full: {found.disk_free_bytes} bytes are free")
        else:
            self._warned.discard("full")

    def _remove(self, name: str) -> int:
        path = f"{self._home.logs}/{name}.log"
        used = os.lstat(path).st_blocks * 512
        os.unlink(path)
        with suppress(FileNotFoundError):
            os.unlink(f"{path}.at")
        self._home.dropped.add(Dropped(name, self._now, used))
        logger.info("dropped the log of %s", name)
        return used

    def _make_cut(self, cut: Cut) -> int:
        path = f"{self._home.logs}/{cut.name}.log"
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            begin = begins(fd)
            punch(fd, cut.begins)
        except OSError as error:
            if error.errno not in NOT_HERE:
                raise
            self._uncut.add(cut.name)
            self._warn("cut", f"this file system cannot drop the head of a log, {path} grows on: {error}")
            return 0
        finally:
            os.close(fd)
        return max(0, cut.begins - begin)

    def _warn(self, what: str, text: str) -> None:
        """Warn once, until the problem is over."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning(text)


def punch(fd: int, length: int) -> None:
    """Free the first `length` bytes of the file: they become a hole, and nothing moves. Raises OSError."""
    if _fallocate is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if _fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _log(home: Home, name: str, held: bool) -> Log | None:
    """The log of this name; None if it is missing, or is no regular file because a job replaced it."""
    try:
        found = os.lstat(f"{home.logs}/{name}.log")
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return Log(name=name, size=found.st_size, used=found.st_blocks * 512, written_at=found.st_mtime, held=held)


def _find_fallocate() -> "ctypes._NamedFuncPointer | None":
    """The C library's fallocate; None if there is none, as on macOS."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        function.restype = ctypes.c_int
    return function


_fallocate = _find_fallocate()
