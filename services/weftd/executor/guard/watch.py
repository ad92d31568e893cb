"""The executor's side: its guard is started before anything else, and started again when it died or hangs."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from weftd.executor.files.home import Home
from weftd.executor.guard.files import BEAT_BYTES, Beat, GuardOrders, read_slot, write_orders
from weftd.executor.runtime.process.records import holds

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
HUNG_SECONDS = 10.0  # without a beat
BEGIN_SECONDS_MAX = 10.0
END_SECONDS_MAX = 3.0
STEP_SECONDS = 0.02
LOG_BYTES_MAX = 1 << 20
INHERITED = ("PATH", "LANG", "HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH")


class Watch:
    """Keeps one guard alive beside this executor. A standing guard, which we did not start, is as good as our own."""

    def __init__(self, home: Home, orders: GuardOrders, *, clock: Callable[[], float]) -> None:
        """`clock` is the clock of the guard's heartbeats. Without fencing there is no guard to keep."""
        self._home, self._orders, self._clock = home, orders, clock
        self._child: subprocess.Popen[bytes] | None = None
        self._began = clock()

    async def begin(self) -> None:
        """Return when a guard with our orders beats. Raises OSError if the orders cannot be written."""
        write_orders(self._home.root / "guard.json", self._orders)
        beat = self._beat()
        if beat is not None and not beat.standing:  # An earlier executor's, which may have other orders.
            end(self._home)
        if not self._orders.fencing:
            logger.warning("no guard runs: if this executor hangs, its jobs may run twice")
            return
        self._look()
        if not await self._within(BEGIN_SECONDS_MAX, self._beats):
            logger.error("the guard does not beat: a hang of this executor would not be fenced (see guard.log)")

    async def keep(self) -> None:
        """Keep one guard alive and beating, for ever."""
        while self._orders.fencing:
            await asyncio.sleep(LOOK_SECONDS)
            self._look()

    async def close(self) -> None:
        """Release the guard: it ends when no run is left. Returns when it has ended, or reports that it stays."""
        child = self._child
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        if not await self._within(END_SECONDS_MAX, lambda: child.poll() is not None or self._stays(child.pid)):
            logger.warning("killing the guard (pid %d), which did not confirm its start", child.pid)
            child.kill()
            child.wait()
        child.returncode = child.poll() or 0  # It may outlive us, and needs no waiting parent then.

    def _look(self) -> None:
        if self._child is not None and (status := self._child.poll()) is not None:
            logger.warning("the guard ended with status %d", status)
            self._let_go()
        if self._child is not None and not self._beats() and self._clock() - self._began > HUNG_SECONDS:
            logger.warning("the guard (pid %d) hangs, it is replaced", self._child.pid)
            self._child.kill()
            self._child.wait()
            self._let_go()
        if self._child is None and not self._beats():
            end(self._home)
            try:
                self._spawn()
            except OSError as error:
                logger.error("there is no guard: %s", error)

    def _spawn(self) -> None:
        """Start the guard in its own session, with only a pipe from us, whose end shows it our end. Raises OSError."""
        log = self._home.root / "guard.log"
        with suppress(OSError):
            if log.stat().st_size > LOG_BYTES_MAX:
                os.truncate(log, 0)
        with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as err:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "weftd.executor.guard", str(self._home.root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=err,
                cwd="/",
                env={name: os.environ[name] for name in INHERITED if name in os.environ},
                start_new_session=True,
            )
        self._began = self._clock()

    def _let_go(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
        self._child = None

    def _beat(self) -> Beat | None:
        return read_slot(self._home.root / "guard", BEAT_BYTES, Beat)

    def _beats(self) -> bool:
        """Whether our guard, or a standing one, beats."""
        beat = self._beat()
        if beat is None or not (beat.standing or (self._child is not None and beat.pid == self._child.pid)):
            return False
        return self._clock() - beat.at < HUNG_SECONDS

    def _stays(self, pid: int) -> bool:
        beat = self._beat()
        return beat is not None and beat.pid == pid and beat.stays

    async def _within(self, seconds: float, true: Callable[[], bool]) -> bool:
        deadline = self._clock() + seconds
        while not true():
            if self._clock() > deadline:
                return False
            await asyncio.sleep(STEP_SECONDS)
        return True


@asynccontextmanager
async def guarded(home: Home, orders: GuardOrders, *, clock: Callable[[], float]) -> AsyncIterator[None]:
    """A guard beside us for as long as the block lasts, and as long after it as runs are left."""
    watch = Watch(home, orders, clock=clock)
    await watch.begin()
    keeping = asyncio.create_task(watch.keep(), name="guard")
    try:
        yield
    finally:
        keeping.cancel()
        await watch.close()


def end(home: Home) -> None:
    """Kill the guard of this home, if there is one; a pid that is no longer its own is left alone."""
    path = str(home.root / "guard")
    beat = read_slot(path, BEAT_BYTES, Beat)
    # Looked at before too: after another boot the number may be that of a thread, which no pidfd can be opened to.
    if beat is None or not holds(beat.pid, path):
        return
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(beat.pid)
        try:
            if holds(beat.pid, path):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
