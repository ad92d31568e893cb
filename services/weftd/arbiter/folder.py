"""The arbiter's side of a slot folder: it makes the pages and the socket, and keeps them open.

Everything in `job/` may have been replaced by the job: a link, a fifo, a device, a folder. What is not as the arbiter
made it is moved out of the job's sight and made anew; nothing but an ordinary file is ever opened.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from weft.sharing import slots
from weft.sharing.pages import (
    PAGE_BYTES,
    Flag,
    LimitsPage,
    SlotLimits,
    UsePage,
    empty_use_bytes,
    limits_bytes,
    read_limits,
    read_use,
    regular,
)
from weft.sharing.records import SlotSeen, SlotShare

BACKLOG = 1024
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class SlotFolder:
    """One slot folder that is served. Raises OSError and ValueError where the folder cannot be served."""

    def __init__(self, root: int, name: str) -> None:
        """Serve the folder `name` of the root with that descriptor."""
        self._root, self._name = root, name
        self._fds: list[int] = []
        self._mark: tuple[int, ...] | None = None
        try:
            self._folder = self._kept(slots.open_folder(name, beside=root))
            self._job = self._kept(slots.open_folder(slots.JOB, beside=self._folder))
            self._inode = os.fstat(self._folder).st_ino
            self.limits = LimitsPage(
                self._kept(self._page(slots.LIMITS, limits_bytes(SlotLimits()), _is_limits, 0o644))
            )
            self.use = UsePage(self._kept(self._page(slots.USE, empty_use_bytes(), _is_use, 0o666)))
            self.listener = self._listen()
        except BaseException:
            self._close_all()
            raise

    def is_there(self) -> bool:
        """True if the folder is still the one that is served."""
        try:
            return os.stat(self._name, dir_fd=self._root, follow_symlinks=False).st_ino == self._inode
        except OSError:
            return False

    def changed_share(self) -> SlotShare | None:
        """The share, if it was replaced since the last call. Raises OSError, and ValueError with what is wrong."""
        status = os.stat(slots.SHARE, dir_fd=self._folder, follow_symlinks=False)
        mark = status.st_ino, status.st_mtime_ns, status.st_size
        if mark == self._mark:
            return None
        self._mark = mark
        return slots.read_share(self._folder)

    def tell(self, share: SlotShare, *, in_flight_us: int, now_ns: int) -> None:
        """Write what the hook is to hold its process to. Raises OSError."""
        flags = Flag.GATED
        flags |= Flag.HOLD if share.hold else Flag(0)
        flags |= Flag.CAPPED if share.memory else Flag(0)
        flags |= Flag.CLOSED if share.closed else Flag(0)
        self.limits.write(
            SlotLimits(flags, share.memory, share.device_memory, in_flight_us, share.context_mib, beat_ns=now_ns)
        )

    def write_seen(self, seen: SlotSeen) -> None:
        """Raises OSError."""
        slots.write_seen(self._folder, seen)

    def close(self) -> None:
        """Stop serving. The files stay for the processes that have them mapped, and for the next arbiter."""
        self.listener.close()
        self._close_all()

    def _kept(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def _close_all(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def _page(self, name: str, new: bytes, is_good: Callable[[bytes], bool], mode: int) -> int:
        """Reuse a valid page, so that processes keep their mapping of it; otherwise create one."""
        with suppress(OSError):
            fd = _open_regular(name, self._job)
            if regular(fd) and is_good(os.pread(fd, PAGE_BYTES, 0)):
                return fd
            os.close(fd)
        made = f".{name}.new"
        with suppress(FileNotFoundError):
            os.unlink(made, dir_fd=self._folder)
        fd = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=self._folder)
        try:
            os.fchmod(fd, mode)
            os.pwrite(fd, new, 0)
            self._put(made, name)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _listen(self) -> socket.socket:
        made = f".{slots.SOCKET}.new"
        with suppress(FileNotFoundError):
            os.unlink(made, dir_fd=self._folder)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            path = f"/proc/self/fd/{self._folder}/{made}"
            listener.bind(path)
            os.chmod(path, 0o666)  # the run may have another user; the folder above keeps others out
            listener.listen(BACKLOG)
            self._put(made, slots.SOCKET)
        except OSError:
            listener.close()
            raise
        return listener

    def _put(self, made: str, name: str) -> None:
        """Move a finished file into the job's sight, in place of whatever is there."""
        try:
            os.rename(made, name, src_dir_fd=self._folder, dst_dir_fd=self._job)
        except IsADirectoryError:
            os.rename(name, f".{name}.{time.monotonic_ns()}", src_dir_fd=self._job, dst_dir_fd=self._folder)
            os.rename(made, name, src_dir_fd=self._folder, dst_dir_fd=self._job)


def _open_regular(name: str, folder: int) -> int:
    """Open a file for reading and writing if it is an ordinary one, without opening anything else. Raises OSError."""
    path = os.open(name, _PATH, dir_fd=folder)
    try:
        if not regular(path):
            raise OSError(f"{name} is no ordinary file of one page")
        return os.open(f"/proc/self/fd/{path}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(path)


def _is_limits(data: bytes) -> bool:
    return read_limits(data) is not None


def _is_use(data: bytes) -> bool:
    return read_use(data) is not None
