"""The runs whose processes live: watched from their start, or from the start of this executor, to their end.

A stop reaches the main process alone. Once that has ended, the others are followed to their end, or to the kill.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from weft.messages.nodes import EndReason, RunState
from weftd.executor.files.home import Home
from weftd.executor.machine.ulimits import ULIMITS_REFUSED_STATUS
from weftd.executor.runs import Run, RunKey
from weftd.executor.runtime import signalling
from weftd.executor.runtime.bookkeeping import Bookkeeping
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.noted import SIGBUS_STATUS, output_lost, output_waits, process_killed, shm_of_host_full
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.outputs import Outputs
from weftd.executor.runtime.process.pipes import RunPipes
from weftd.executor.runtime.process.remaining import LOOK_SECONDS, ProcessesOfRun, StopOrder, follow, hurry
from weftd.executor.runtime.process.shim import CGROUP_REFUSED_STATUS, TOO_LATE_STATUS
from weftd.executor.runtime.process.stragglers import kill_stragglers
from weftd.executor.runtime.process.sweeping import Sweeper
from weftd.executor.runtime.process.watching import ShellWatch

logger = logging.getLogger(__name__)

NOTE_SECONDS = 1.0
BEGUN_LOOKS_MAX, BEGUN_LOOK_SECONDS = 100, 0.02
ENDING_SECONDS = 1.0  # a shell that ends closes its files this long at most before its end is seen


class Live:
    """A run whose shim lives (or did a moment ago)."""

    def __init__(self, record: records.RunRecord, run: Run, *, child: bool) -> None:
        self.record = record
        self.run = run
        self.child = child  # a child of this process, to be reaped
        self.stopped = False  # it was asked to stop
        self.killed = False
        self.ending = False  # its main process has ended after a stop; others remain
        self.rest_over = False  # these have ended, too
        self.lingered = False  # there were some
        self.shim_over = False
        self.over = False  # its shim has ended, and the rest of its output is being copied


class Lives:
    """By key the runs whose shim lives; `sweeper` removes what ended runs leave."""

    def __init__(self, home: Home, cgroups: cgroup.Cgroups, book: Bookkeeping) -> None:
        self.runs: dict[RunKey, Live] = {}
        self._home = home
        self._cgroups = cgroups
        self._book = book
        self._outputs = Outputs()
        self._shells = ShellWatch(
            folder=home.run, begun=self._see_begun, ended=self._see_command_ended, over=self.shim_ended
        )
        self._remaining = Remaining(str(home.runs), self._see_rest_ended)
        self.sweeper = Sweeper(cgroups, str(home.runs))

    def pidfd(self, key: RunKey) -> int | None:
        """The run's shell, held for a signal; None if this host cannot hold a process."""
        return self._shells.pidfd(key)

    async def signal(self, key: RunKey, *, kill: bool) -> None:
        live = self.runs.get(key)
        if live is None or live.over:
            return
        if not kill:
            await self._stop(key, live)
            return
        live.killed = True
        if live.child or not live.shim_over:  # The shim lives or is not reaped yet, so its pid is still its group's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(live.record.pid, signal.SIGKILL)
        self._cgroups.kill(live.record.cgroups)
        if not live.record.cgroups:
            await asyncio.to_thread(kill_stragglers, str(self._home.runs), lambda found: found == key)
        if live.ending and self.runs.get(key) is live:
            self._remaining.drop(key)
            live.lingered = True
            if live.shim_over and not live.over:
                self._finish(live)

    async def hurry(self, key: RunKey) -> None:
        live = self.runs.get(key)
        if live is None or not live.stopped or not signalling.shows_children():
            return
        main = None if live.ending else signalling.only_child(live.record.pid)
        await asyncio.to_thread(hurry, str(self._home.runs), key, self._home.run(key), _where(live), main=main)

    def write_stacks(self, key: RunKey, text: str) -> None:
        """Put this text into the output of a live run. Raises OSError."""
        self._outputs.write_stacks(key, text)

    def read_limits(self, live: Live) -> None:
        """Read the run's limits from its groups."""
        limits = self._cgroups.limits(live.record.cgroups)
        live.run = replace(live.run, limits=replace(limits, share=self._book.shares.held(live.run.key)))
        if limits.memory is not None and limits.memory != live.record.memory:
            live.record = replace(live.record, memory=limits.memory)

    def watch(self, live: Live, pipes: RunPipes | None) -> None:
        """`pipes`: those of the run; None if its shim has them no more."""
        key = live.run.key
        self.runs[key] = live
        self.read_limits(live)
        if live.run.state is RunState.RUNNING:  # It had begun before it was adopted.
            self._book.note_change()
        ended_fd = None if pipes is None or pipes.ended < 0 else pipes.ended
        if pipes is not None:
            self._outputs.copy(key, pipes, self._home.log(key))
        self._shells.watch(key, live.record.pid, ended_fd=ended_fd)
        if pipes is not None and ended_fd is None:
            self._see_command_ended(key)

    def _see_command_ended(self, key: RunKey) -> None:
        """The main process has ended, and its shim waits. After a stop the remaining processes are followed first."""
        live = self.runs[key]
        if live.stopped and not live.killed:
            self.follow(live)
        else:
            self._let_go(key)

    def _let_go(self, key: RunKey) -> None:
        """Let the run's shim exit once all output is in the log."""
        self._outputs.when_copied(key, lambda: self._outputs.let_go(key))

    def _see_begun(self, key: RunKey) -> None:
        """The shim begins its command. The job can spoil the pid file from then on, so without a pid a shim that still
        lives a moment later counts as begun."""
        live = self.runs[key]
        if not self._mark_begun(live):
            asyncio.get_running_loop().call_later(ENDING_SECONDS, self._see_alive, live)

    def _see_alive(self, live: Live) -> None:
        if self.runs.get(live.run.key) is live:
            live.run = replace(live.run, state=RunState.RUNNING, started_at=time.time())
            self._book.note_change()

    def _mark_begun(self, live: Live) -> bool:
        """Mark a starting run as running if its shim has written its pid. Returns whether it runs."""
        folder = self._home.run(live.run.key)
        if live.run.state is RunState.STARTING and records.shim_pid(folder) is not None:
            live.run = replace(live.run, state=RunState.RUNNING, started_at=records.started_at(folder))
            self._book.note_change()
        return live.run.state is RunState.RUNNING

    async def _stop(self, key: RunKey, live: Live) -> None:
        """Send the stop signal to the main process alone. When it has ended, the others follow (see remaining.py)."""
        live.stopped = True
        with suppress(OSError):  # Without the note, a restart of this executor ends what remains at once.
            records.mark_stopped(self._home.run(key))
        for _ in range(BEGUN_LOOKS_MAX):
            pidfd = self._shells.pidfd(key)
            if self.runs.get(key) is not live or live.ending:
                return
            if pidfd is None or not signalling.shows_children():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(live.record.pid, signal.Signals[live.record.stop_signal])
                return
            if not signalling.signal_child(live.record.pid, pidfd, live.record.stop_signal):
                return
            await asyncio.sleep(BEGUN_LOOK_SECONDS)  # The command has not begun yet, or has just ended.

    def shim_ended(self, key: RunKey) -> None:
        """The run's shim has ended. After a stop the remaining processes are followed until their end, or the kill."""
        live = self.runs[key]
        live.shim_over = True
        self._shells.forget(key)
        if live.killed or live.rest_over or not live.stopped:
            self._finish(live)
        elif not live.ending:
            self.follow(live)

    def follow(self, live: Live) -> None:
        """Follow the remaining processes to their end. The shim waits, so that none of their output is lost."""
        live.ending = True
        self._remaining.add(live.run.key, self._home.run(live.run.key), _where(live))

    def _see_rest_ended(self, key: RunKey, lingered: bool) -> None:
        """No other process of a stopped run remains. `lingered`: there were some."""
        live = self.runs[key]
        live.rest_over, live.lingered = True, lingered
        if live.shim_over:
            self._finish(live)
        else:
            self._let_go(key)

    def _finish(self, live: Live) -> None:
        """Kill the remaining processes of a run whose shim has ended, and note its outcome once their output is in the
        log."""
        live.over = True
        key = live.run.key
        if live.child:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(live.record.pid, signal.SIGKILL)  # before it is reaped, while its pid cannot be reused
        self._outputs.when_copied(key, lambda: self._over(key))

    def _over(self, key: RunKey) -> None:
        """The run's shim has ended: reap it, and note its outcome."""
        live = self.runs.pop(key, None)
        if live is None:  # The runtime is closed.
            return
        since, lost = self._outputs.blocked_at(key), self._outputs.close(key)
        status: int | None = None
        if live.child:
            with suppress(ChildProcessError):
                status = os.waitstatus_to_exitcode(os.waitpid(live.record.pid, 0)[1])
        folder = self._home.run(key)
        if status == TOO_LATE_STATUS and records.shim_pid(folder) is None:  # It never ran: nothing to report.
            logger.warning("%s did not start: its permission to start had expired", key)
            self._book.discards.take(folder)
            self.sweeper.drop(live.record.cgroups)
            self._book.shares.detach(key)
            self._book.note_change()
            return
        self._mark_begun(live)
        run = self.outcome(live.record, live.run, status)
        if live.lingered:
            run = replace(run, ended_at=max(time.time(), run.started_at or 0.0))
        if since is not None and lost:
            run = replace(run, noted=(*run.noted, output_lost(lost, since)))
        self._book.end(run)
        self.sweeper.drop(live.record.cgroups)
        if not (live.record.cgroups and live.child):
            self.sweeper.find_strays(key)

    def outcome(self, record: records.RunRecord, run: Run, status: int | None) -> Run:
        """The run's end: as the shim wrote it, else by the status from the kernel, else unknown."""
        folder = self._home.run(record.key)
        written = records.exit_status(folder)
        reason, detail, exit_code = EndReason.EXIT, "", None
        if written is not None:
            exit_code = written.exit_code
        elif status == CGROUP_REFUSED_STATUS and records.shim_pid(folder) is None:
            reason, detail = EndReason.START_FAILED, "the host did not let it join its cgroup"
        elif status == ULIMITS_REFUSED_STATUS and records.shim_pid(folder) is None:
            reason, detail = EndReason.START_FAILED, "the host refused its ulimits"
        elif status is not None:
            exit_code = status if status >= 0 else 128 - status
        else:
            reason, detail = EndReason.LOST, "it was killed together with the shell that watched it"
        kills = self._cgroups.oom_kills(record.cgroups)
        if reason is not EndReason.START_FAILED and exit_code != 0 and kills:
            reason, detail = EndReason.OOM, f"it used more than its {record.memory} bytes of memory"
            exit_code = 137 if exit_code is None else exit_code
        return Run(
            key=record.key,
            state=RunState.EXITED,
            grace=record.grace,
            serve=self._book.served.serve(record.key),
            started_at=run.started_at,
            # File times are coarser than the clock.
            ended_at=max(written.ended_at if written else time.time(), run.started_at or 0.0),
            exit_code=exit_code,
            reason=reason,
            detail=detail,
            noted=(
                *((process_killed(kills, record.memory),) if kills and reason is not EndReason.OOM else ()),
                *(shm_of_host_full() if exit_code == SIGBUS_STATUS else ()),
            ),
        )

    async def note_for_ever(self) -> None:
        """Watch for changes that live runs may not report themselves."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            for key, live in self.runs.items():
                kills, since = self._cgroups.oom_kills(live.record.cgroups), self._outputs.blocked_at(key)
                noted = (
                    *((process_killed(kills, live.record.memory),) if kills else ()),
                    *((output_waits(since),) if since is not None else ()),
                )
                if noted != live.run.noted:
                    live.run = replace(live.run, noted=noted)
                    self._book.note_change()

    async def close(self) -> None:
        self.runs.clear()
        await self._shells.close()
        await self._remaining.close()
        await asyncio.to_thread(self._outputs.stop)
        await self.sweeper.close()


def _where(live: Live) -> ProcessesOfRun:
    shim = live.record.pid
    group = shim if live.child or not live.shim_over else 0  # where that number cannot be reused
    return ProcessesOfRun(cgroups=live.record.cgroups, group=group, shim=0 if live.shim_over else shim)


class Remaining:
    """Follows stopped runs from the end of their main process to the end of their last one."""

    def __init__(self, runs_folder: str, over: Callable[[RunKey, bool], None]) -> None:
        """`over` is called by the event loop when a run has no process left, with whether it had one at first."""
        self._runs_folder = runs_folder
        self._over = over
        self._runs: dict[RunKey, tuple[str, ProcessesOfRun]] = {}
        self._orders: dict[RunKey, StopOrder] = {}
        self._lingered: set[RunKey] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, key: RunKey, folder: str, left: ProcessesOfRun) -> None:
        self._runs[key] = (folder, left)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def drop(self, key: RunKey) -> None:
        self._runs.pop(key, None)
        self._lingered.discard(key)

    async def close(self) -> None:
        self._runs.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while self._runs:
            wanted = dict(self._runs)
            left = await asyncio.to_thread(follow, self._runs_folder, wanted, self._orders)
            self._lingered |= left & self._runs.keys()
            for key in wanted.keys() - left:
                if key in self._runs:
                    lingered = key in self._lingered
                    self.drop(key)
                    self._over(key, lingered)
            if self._runs:
                await asyncio.sleep(LOOK_SECONDS)
