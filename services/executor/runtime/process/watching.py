"""Watches the shells of runs (shim.py): when a shell begins its command, and when it has ended.

The end is seen by a pidfd where the host has pidfds, else by the lock (records.py), which is looked at again and again.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable

from services.executor.runs import RunKey
from services.executor.runtime.process import records
from services.executor.runtime.process.shim import LOCK_FD

POLL_SECONDS = 0.05


class _Watched:
    def __init__(self, *, begun_fd: int | None) -> None:
        self.pidfd: int | None = None
        self.begun_fd = begun_fd


class ShellWatch:
    def __init__(
        self, *, folder: Callable[[RunKey], str], begun: Callable[[RunKey], None], over: Callable[[RunKey], None]
    ) -> None:
        """`folder` returns the run's folder. `begun` is called when the shell has closed its end of the pipe, `over`
        when it has ended, until the run is forgotten: both by the event loop, with the run's key."""
        self._folder = folder
        self._begun = begun
        self._over = over
        self._watched: dict[RunKey, _Watched] = {}
        self._polled: set[RunKey] = set()  # watched, without a pidfd
        self._polling: asyncio.Task[None] | None = None

    def watch(self, key: RunKey, pid: int, *, begun_fd: int | None = None) -> None:
        """Watch the shell with this pid. `begun_fd`, the reading end of its pipe, is closed here."""
        watched = self._watched[key] = _Watched(begun_fd=begun_fd)
        if begun_fd is not None:
            asyncio.get_running_loop().add_reader(begun_fd, self._see_begun, key)
        try:
            watched.pidfd = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._polled.add(key)
            if self._polling is None or self._polling.done():
                self._polling = asyncio.get_running_loop().create_task(self._poll())
        else:
            asyncio.get_running_loop().add_reader(watched.pidfd, self._over, key)

    def forget(self, key: RunKey) -> None:
        watched = self._watched.pop(key, None)
        if watched is None:
            return
        self._polled.discard(key)
        self._close_begun(watched)
        if watched.pidfd is not None:
            asyncio.get_running_loop().remove_reader(watched.pidfd)
            os.close(watched.pidfd)

    def pidfd(self, key: RunKey) -> int | None:
        """The pidfd of the run's shell, open until the run is forgotten; None if the host has none."""
        watched = self._watched.get(key)
        return None if watched is None else watched.pidfd

    async def close(self) -> None:
        for key in list(self._watched):
            self.forget(key)
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    def _see_begun(self, key: RunKey) -> None:
        self._close_begun(self._watched[key])
        self._begun(key)

    def _close_begun(self, watched: _Watched) -> None:
        if watched.begun_fd is not None:
            asyncio.get_running_loop().remove_reader(watched.begun_fd)
            os.close(watched.begun_fd)
            watched.begun_fd = None

    async def _poll(self) -> None:
        while self._polled:
            await asyncio.sleep(POLL_SECONDS)
            for key in sorted(self._polled):
                if not records.locked(self._folder(key)):
                    self._over(key)


def begun_pipe() -> tuple[int, int]:
    """A pipe for BEGUN_FD: its reading end, and its writing end with a number that no other of the shim's has.
    Raises OSError."""
    begun_fd, low = os.pipe()
    try:
        return begun_fd, fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, LOCK_FD + 1)
    except OSError:
        os.close(begun_fd)
        raise
    finally:
        os.close(low)
