"""The runs that an earlier executor started: found by their records on disk, and watched again or ended."""

import asyncio
import logging
import os
import time
from contextlib import suppress

from msgspec.structs import replace

from weft.messages.nodes import EndReason, RunState
from weftd.executor.files.home import Home
from weftd.executor.runs import Run, RunKey
from weftd.executor.runtime.bookkeeping import Bookkeeping
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.lives import Live, Lives
from weftd.executor.runtime.process.pipes import find_pipes
from weftd.executor.runtime.process.stragglers import kill_stragglers
from weftd.executor.runtime.process.watching import POLL_SECONDS

logger = logging.getLogger(__name__)

ADOPT_SECONDS_MAX = 5.0


class Adoption:
    def __init__(self, home: Home, cgroups: cgroup.Cgroups, book: Bookkeeping, lives: Lives) -> None:
        self._home = home
        self._cgroups = cgroups
        self._book = book
        self._lives = lives

    async def adopt(self) -> None:
        deadline = time.monotonic() + ADOPT_SECONDS_MAX
        known: set[str] = set()
        every_group = self._cgroups.names()
        for name in sorted(os.listdir(self._home.runs)):
            folder = f"{self._home.runs}/{name}"
            record = records.read(folder)
            if record is not None:
                # The job may have overwritten the groups in its record.
                record = replace(record, cgroups=every_group.get(name, {}))
            if record is None or not await self._adopt_one(record, folder, deadline):
                self._forget_unknown(name)
            else:
                known.add(name)
        for name, groups in every_group.items():
            if name not in known:
                self._lives.sweeper.drop(groups)
        self._lives.sweeper.find_strays(*self._book.over)
        self._book.discards.sweep()

    def _forget_unknown(self, name: str) -> None:
        """Remove a folder of no run, of a run that never started, or with a record that its job has spoilt."""
        key = RunKey.parse(name)
        if key is not None:
            self._lives.sweeper.find_strays(key)
        self._book.discards.take(f"{self._home.runs}/{name}")

    async def _adopt_one(self, record: records.RunRecord, folder: str, deadline: float) -> bool:
        """Adopt one run. False: it never started, so there is nothing to adopt."""
        while records.locked(folder):
            if (pid := records.leader(folder)) is not None:
                self._adopt_live(replace(record, pid=pid), folder)
                return True
            if time.monotonic() > deadline:
                await self._end_unknown(record)
                return True
            await asyncio.sleep(POLL_SECONDS)  # It was spawned an instant ago.
        if records.shim_pid(folder) is None:
            return False
        run = Run(key=record.key, state=RunState.RUNNING, grace=record.grace, started_at=records.started_at(folder))
        if records.stopped(folder):
            live = self._lives.runs[record.key] = Live(record, run, child=False)
            live.stopped = live.shim_over = True
            self._lives.follow(live)
            return True
        self._cgroups.kill(record.cgroups)
        self._book.end(self._lives.outcome(record, run, None))
        self._lives.sweeper.drop(record.cgroups)
        return True

    def _adopt_live(self, record: records.RunRecord, folder: str) -> None:
        run = Run(key=record.key, state=RunState.RUNNING, grace=record.grace, started_at=records.started_at(folder))
        run = replace(run, serve=self._book.served.serve(record.key), port=self._book.served.port(record.key))
        live = Live(record, run, child=_is_child(record.pid))
        live.stopped = records.stopped(folder)
        self._lives.watch(live, find_pipes(record.pid, record.pipes))
        if not records.locked(folder):  # If it is locked, the watched pid was the shim's all along.
            self._lives.shim_ended(record.key)
            return
        with suppress(OSError):
            records.write(folder, record)

    async def _end_unknown(self, record: records.RunRecord) -> None:
        """End a run that cannot be watched: its lock is held, but its job has spoilt the pid file, or it hangs."""
        key = record.key
        logger.warning("%s was started and does not come up: its processes are killed", key)
        self._cgroups.kill(record.cgroups)
        await asyncio.to_thread(kill_stragglers, str(self._home.runs), lambda found: found == key)
        detail = "its folder does not say which process it is"
        run = Run(key=key, state=RunState.EXITED, grace=record.grace, ended_at=time.time())
        self._book.end(replace(run, reason=EndReason.LOST, detail=detail))
        self._lives.sweeper.drop(record.cgroups)


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
