"""The pipes between a run's shim (shim.py) and the executor: its output, its end, and its release.

The stdout and stderr of a run are a pipe, so a job that opens /dev/stdout again cannot truncate what it has written.
`move` moves bytes from there to the log with `splice`: each byte is in the pipe or in the log, also when the executor
is killed meanwhile. The shim has both ends of the output pipe open. So a job gets no SIGPIPE while no executor runs; it
waits once the pipe is full. After the command has ended, the shim waits for its release, until the pipe is empty. Where
neither an executor nor a guard comes back, it exits after RELEASE_SECONDS_MAX, and what is in its pipe is lost.

The next executor and the guard open the pipes through the shim's entries in /proc, by the inodes in the run's record
(records.py): a shell moves its descriptors. Two of them may read one pipe for a
moment, so each locks the log while it appends.
"""

import errno
import fcntl
import os
import stat
import struct
import termios
from contextlib import suppress

from msgspec import Struct

PIPE_BYTES = 256 << 10  # a job that writes more than this while nobody reads waits
FD_MIN = 10  # below are the descriptors of the shim, as shim.py numbers them
OUTPUT_FD, RELEASE_FD, ENDED_FD = 7, 6, 8
RELEASE_SECONDS_MAX = 600  # without an executor
NO_SPLICE = frozenset({errno.EINVAL, errno.ENOSYS})  # this file system has none
_LOG = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_READ, _WRITE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Inodes(Struct, frozen=True, kw_only=True):
    """Which pipes they are, in the run's record."""

    output: int
    ended: int
    release: int


class RunPipes:
    """The executor's ends; -1 is closed. `output` is read without waiting, `ended` has a line when the shim has begun
    and ends when the command has ended, and a line in `release` lets the shim exit."""

    def __init__(self, *, output: int, ended: int, release: int) -> None:
        self.output, self.ended, self.release = output, ended, release

    def inodes(self) -> Inodes:
        output, ended, release = (os.fstat(fd).st_ino for fd in (self.output, self.ended, self.release))
        return Inodes(output=output, ended=ended, release=release)

    def let_go(self) -> None:
        """Let the shim exit. Whatever it still holds in its pipe is lost."""
        if self.release >= 0:
            with suppress(OSError):  # It is gone already.
                os.write(self.release, b"\n")

    def close(self) -> None:
        for fd in (self.output, self.ended, self.release):
            if fd >= 0:
                os.close(fd)
        self.output = self.ended = self.release = -1


class ShimEnds:
    """The ends that the shim inherits, with `write` also the reading end of the output. `close` leaves that open."""

    def __init__(self, *, write: int, ended: int, release: int, output: int) -> None:
        self.write, self.ended, self.release, self.output = write, ended, release, output

    def close(self) -> None:
        os.close(self.write)
        os.close(self.ended)
        os.close(self.release)


def make_pipes() -> tuple[RunPipes, ShimEnds]:
    """The pipes of a run that is about to start. Raises OSError."""
    opened: list[int] = []
    try:
        output, write = _pipe(opened)
        with suppress(OSError):  # The user's share of memory for pipes may be used up.
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        ended, shims_end = _pipe(opened)
        released, release = _pipe(opened)
        os.set_blocking(output, False)
        os.set_blocking(ended, False)
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    pipes = RunPipes(output=output, ended=ended, release=release)
    return pipes, ShimEnds(write=write, ended=shims_end, release=released, output=output)


def find_pipes(pid: int, pipes: Inodes) -> RunPipes | None:
    """The pipes of the shim with this pid; None if it has them no more. The caller knows that it is a shim."""
    found = RunPipes(
        output=_open(pid, pipes.output, _READ),
        ended=_open(pid, pipes.ended, _READ),
        release=_open(pid, pipes.release, _WRITE),
    )
    if found.output >= 0 and found.release >= 0:
        return found
    found.close()
    return None


def open_log(path: str) -> int:
    """Raises OSError."""
    return os.open(path, _LOG, 0o600)


def waiting(output: int) -> int:
    """How many bytes are in the pipe."""
    return int(struct.unpack("i", fcntl.ioctl(output, termios.FIONREAD, b"\0\0\0\0"))[0])


def move(output: int, log: int, *, limit: int) -> int:
    """Move up to about `limit` bytes to the end of the log; 0 if the pipe is empty. Raises OSError, such as of a full
    disk, and BlockingIOError if another process appends to the log now: it may be frozen, so nobody waits for it."""
    moved = 0
    while moved < limit:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.lseek(log, 0, os.SEEK_END)
            count = _move(output, log)
        finally:
            fcntl.flock(log, fcntl.LOCK_UN)
        if not count:
            break
        moved += count
    return moved


def _move(output: int, log: int) -> int:
    try:
        return os.splice(output, log, PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK)
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno not in NO_SPLICE:
            raise
    try:
        data = os.read(output, PIPE_BYTES)
    except BlockingIOError:
        return 0
    left = memoryview(data)
    while left:
        left = left[os.write(log, left) :]
    return len(data)


def _pipe(opened: list[int]) -> tuple[int, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    opened.extend(_high(fd) for fd in (reading, writing))  # one by one: a failure leaves the first to be closed
    return opened[-2], opened[-1]


def _high(fd: int) -> int:
    """The same file with a number that none of the shim's has. Raises OSError."""
    if fd >= FD_MIN:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FD_MIN)
    finally:
        os.close(fd)


def _open(pid: int, inode: int, flags: int) -> int:
    """A pipe that this process has open; -1 if it has not."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                if os.readlink(f"/proc/{pid}/fd/{name}") != f"pipe:[{inode}]":
                    continue
                fd = os.open(f"/proc/{pid}/fd/{name}", flags)
                found = os.fstat(fd)
                if stat.S_ISFIFO(found.st_mode) and found.st_ino == inode:
                    return fd
                os.close(fd)  # A process that starts moves its descriptors: since readlink this is another file.
    return -1
