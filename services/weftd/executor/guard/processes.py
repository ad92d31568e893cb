"""The node's runs as processes, found and ended without the executor: by their folders, groups and environments.

Their output is copied meanwhile: a job whose pipe is full could not save what it has. A shim whose command has ended,
and which waits for an executor, is let go.
"""

import os
import signal
from collections.abc import Collection
from contextlib import suppress

from weft.domain.spec import StopSignal
from weftd.executor.files.home import Home
from weftd.executor.guard.thinking import Action, Seen
from weftd.executor.runs import RunKey
from weftd.executor.runtime import signalling
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.pipes import find_pipes, move, open_log, waiting
from weftd.executor.runtime.process.remaining import ProcessesOfRun, StopOrder, follow
from weftd.executor.runtime.process.stragglers import kill_stragglers, stragglers
from weftd.executor.thinking.core import Kill

COPY_BYTES_MAX = 16 << 20  # of one run at one look


class Processes:
    sure = True  # what it does not see is not there

    def __init__(self, home: Home) -> None:
        self._home = home
        self._orders: dict[RunKey, StopOrder] = {}
        self._at_rest: set[RunKey] = set()  # stopped runs of which only the shim remains

    def follow(self, keys: Collection[RunKey]) -> None:
        """Send SIGTERM to the remaining processes of those of these runs whose main process has ended after a stop."""
        wanted: dict[RunKey, tuple[str, ProcessesOfRun]] = {}
        for key in keys:
            folder = self._home.run(key)
            record, leader = records.read(folder), records.leader(folder)
            if record is None or not records.stopped(folder):
                continue
            if leader is None:
                wanted[key] = (folder, ProcessesOfRun(cgroups=record.cgroups))
            elif _command_ended(record, leader):
                wanted[key] = (folder, ProcessesOfRun(cgroups=record.cgroups, group=leader, shim=leader))
        left = follow(str(self._home.runs), wanted, self._orders) if wanted else set()
        self._at_rest = wanted.keys() - left

    def look(self) -> list[Seen]:
        """Every run with a live process; a shell that has not started its command checks the fence itself."""
        found: dict[RunKey, Seen] = {}
        names = _listed(self._home.runs)
        for name in names:
            folder = f"{self._home.runs}/{name}"
            record = records.read(folder)
            leader = None if record is None else records.leader(folder)
            if record is not None and leader is not None:
                self._serve_pipes(record, leader)
            if record is not None and (leader or cgroup.occupied(record.cgroups)):
                found[record.key] = Seen(key=record.key, grace=record.grace)
        if names:
            for _, key in stragglers(str(self._home.runs)):
                folder = self._home.run(key)
                record = records.read(folder) if records.stopped(folder) else None
                found.setdefault(key, Seen(key=key, grace=0.0 if record is None else record.grace))
        return list(found.values())

    def carry_out(self, action: Action) -> None:
        folder = self._home.run(action.key)
        leader, record = records.leader(folder), records.read(folder)
        if not isinstance(action, Kill):
            with suppress(OSError):
                records.mark_stopped(folder)
            if leader is not None:
                _stop(leader, folder, StopSignal.TERM if record is None else record.stop_signal)
            return
        if leader is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        if record is not None:
            cgroup.kill(record.cgroups)
        kill_stragglers(str(self._home.runs), lambda found: found == action.key)

    def _serve_pipes(self, record: records.RunRecord, leader: int) -> None:
        """Copy the run's output; let its shim go if its command has ended and all is copied."""
        pipes = find_pipes(leader, record.pipes)
        if pipes is None:
            return
        try:
            with suppress(OSError):  # A full disk, or an executor that hangs while it copies.
                log = open_log(self._home.log(record.key))
                try:
                    move(pipes.output, log, limit=COPY_BYTES_MAX)
                finally:
                    os.close(log)
                follows = records.stopped(self._home.run(record.key)) and record.key not in self._at_rest
                if pipes.ended < 0 and not waiting(pipes.output) and not follows:
                    pipes.let_go()
        finally:
            pipes.close()

    def known(self) -> set[str]:
        """The names of all runs with a folder."""
        return set(_listed(self._home.runs))


def _command_ended(record: records.RunRecord, leader: int) -> bool:
    """True if the main process of a run has ended, and its shim waits for its release."""
    pipes = find_pipes(leader, record.pipes)
    if pipes is None:
        return False
    ended = pipes.ended < 0
    pipes.close()
    return ended


def _stop(leader: int, folder: str, stop_signal: StopSignal) -> None:
    """Send the stop signal to the main process alone; to all of its group where that cannot be done."""
    with suppress(ProcessLookupError, PermissionError):
        try:
            pidfd = os.pidfd_open(leader)
        except (AttributeError, OSError):
            pidfd = None
        try:
            if pidfd is None or not signalling.shows_children():
                os.killpg(leader, signal.Signals[stop_signal])
            elif records.leader(folder) == leader:
                signalling.signal_child(leader, pidfd, stop_signal)
        finally:
            if pidfd is not None:
                os.close(pidfd)


def _listed(folder: os.PathLike[str]) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
