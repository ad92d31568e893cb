"""The node's runs as processes, found and ended without the executor: by their folders, groups and environments.

Their output is copied meanwhile: a job whose pipe is full could not save what it has. A shim whose command has ended,
and which waits for an executor, is let go.
"""

import os
import signal
from contextlib import suppress

from services.executor.guard.thinking import Action, Seen
from services.executor.home import Home
from services.executor.runs import RunKey
from services.executor.runtime.limits import cgroup
from services.executor.runtime.process import records
from services.executor.runtime.process.pipes import find_pipes, move, open_log, waiting
from services.executor.runtime.process.stragglers import kill_stragglers, stragglers
from services.executor.thinking.core import Kill

COPY_BYTES_MAX = 16 << 20  # of one run at one look


class Processes:
    sure = True  # what it does not see is not there

    def __init__(self, home: Home) -> None:
        self._home = home

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
                found.setdefault(key, Seen(key=key, grace=0.0))
        return list(found.values())

    def carry_out(self, action: Action) -> None:
        kill = isinstance(action, Kill)
        folder = self._home.run(action.key)
        if leader := records.leader(folder):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL if kill else signal.SIGTERM)
        if kill:
            record = records.read(folder)
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
                    move(pipes.output, log, limit=COPY_BYTES_MAX, wait=False)
                finally:
                    os.close(log)
                stopped = records.stopped(self._home.run(record.key))  # Then others may write to the pipe.
                if pipes.ended < 0 and not waiting(pipes.output) and not stopped:
                    pipes.let_go()
        finally:
            pipes.close()

    def known(self) -> set[str]:
        """The names of all runs with a folder."""
        return set(_listed(self._home.runs))


def _listed(folder: os.PathLike[str]) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
