"""Watches the shells of runs (shim.py): when a shell begins its command, and when each of the two ends.

The end is seen by a pidfd where the host has pidfds, else by the lock (records.py), which is looked at again and again.
"""

import asyncio
import os
from collections.abc import Callable

from weftd.executor.runs import RunKey
from weftd.executor.runtime.process import records

POLL_SECONDS = 0.05
SIGNS_BYTES = 16


class _Watched:
    def __init__(self, *, ended_fd: int | None) -> None:
        self.pidfd: int | None = None
        self.ended_fd = ended_fd


class ShellWatch:
    def __init__(
        self,
        *,
        folder: Callable[[RunKey], str],
        begun: Callable[[RunKey], None],
        ended: Callable[[RunKey], None],
        over: Callable[[RunKey], None],
    ) -> None:
        """`folder` returns the run's folder. `begun` is called when the shell is about to start its command, `ended`
        when that has ended or never starts, and `over` when the shell has ended, until the run is forgotten: all by
        the event loop, with the run's key."""
        self._folder = folder
        self._begun = begun
        self._ended = ended
        self._over = over
        self._watched: dict[RunKey, _Watched] = {}
        self._polled: set[RunKey] = set()  # watched, without a pidfd
        self._polling: asyncio.Task[None] | None = None

    def watch(self, key: RunKey, pid: int, *, ended_fd: int | None = None) -> None:
        """Watch the shell with this pid. `ended_fd`: the reading end of its pipe, which is closed by the caller."""
        watched = self._watched[key] = _Watched(ended_fd=ended_fd)
        if ended_fd is not None:
            asyncio.get_running_loop().add_reader(ended_fd, self._see_sign, key, ended_fd)
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
        self._forget_end(watched)
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

    def _see_sign(self, key: RunKey, ended_fd: int) -> None:
        try:
            while os.read(ended_fd, SIGNS_BYTES):
                self._begun(key)
        except BlockingIOError:
            return
        self._forget_end(self._watched[key])
        self._ended(key)

    def _forget_end(self, watched: _Watched) -> None:
        if watched.ended_fd is not None:
            asyncio.get_running_loop().remove_reader(watched.ended_fd)
            watched.ended_fd = None

    async def _poll(self) -> None:
        while self._polled:
            await asyncio.sleep(POLL_SECONDS)
            for key in sorted(self._polled):
                if not records.locked(self._folder(key)):
                    self._over(key)
