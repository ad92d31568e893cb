"""Runs jobs as plain processes of this host: for a laptop, a demo, a test, or a node without containers.

Each run is a session of its own under a small shell (see shim.py) and is on disk before it exists (see records.py), so
the executor may be killed at any instant. Requests that a process cannot fulfil are refused or reported:

- an image: refused, unless the node is set to ignore images and there is a command;
- a volume: allowed only where its target is its source, because nothing is mounted; one that the node offers by name
  has no target, and its path in a variable;
- shm, read_only, egress, and GPUs beyond CUDA_VISIBLE_DEVICES are not enforced, and the node reports that.

A job runs as the executor's own user, in its checkpoint folder unless it names a workdir or has files with it.
"""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from msgspec.structs import replace

from weft.domain.spec import StopSignal
from weft.messages.nodes import EndReason, RunState, StartRun
from weft.messages.sessions import SessionKind
from weftd.executor import members
from weftd.executor.channel import Channel, SessionRefusedError, SessionWanted
from weftd.executor.checkpoints import OWN, make_folder
from weftd.executor.discards import Discards
from weftd.executor.environment import RunFacts, environment
from weftd.executor.home import Home
from weftd.executor.leave import Leave
from weftd.executor.node import (
    NodeFacts,
    Refusal,
    gpus_of,
    meets_at_its_port,
    named_paths,
    port_taken,
    refused,
    volume_source,
)
from weftd.executor.runs import Limits, LogChunk, Run, RunKey, RuntimeUnavailableError, always
from weftd.executor.runtime import signalling
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.noted import SIGBUS_STATUS, output_lost, output_waits, process_killed, shm_of_host_full
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.entering import enter, environment_of, kill_marked
from weftd.executor.runtime.process.following import Remaining
from weftd.executor.runtime.process.listening import connect, listening_of, pids_of
from weftd.executor.runtime.process.outputs import Outputs
from weftd.executor.runtime.process.pipes import RunPipes, find_pipes, make_pipes, open_log
from weftd.executor.runtime.process.remaining import ProcessesOfRun, hurry
from weftd.executor.runtime.process.shim import (
    CGROUP_REFUSED_STATUS,
    TOO_LATE_STATUS,
    find_command,
    spawn,
)
from weftd.executor.runtime.process.stragglers import kill_stragglers
from weftd.executor.runtime.process.sweeping import Sweeper
from weftd.executor.runtime.process.watching import POLL_SECONDS, ShellWatch
from weftd.executor.serving.listening import Ears, Listening
from weftd.executor.serving.probe import probe
from weftd.executor.serving.records import ServedRuns
from weftd.executor.shares.backend import NOTHING, Attached, ShareBackend, TimeSlicing
from weftd.executor.thinking.rounding import fault
from weftd.executor.ulimits import ULIMITS_REFUSED_STATUS, check_ulimits, own_bounds

logger = logging.getLogger(__name__)

INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")  # the only variables that a job inherits from the executor
ADOPT_SECONDS_MAX = 5.0
NOTE_SECONDS = 1.0
PROBED_AT = "127.0.0.1"
BEGUN_LOOKS_MAX, BEGUN_LOOK_SECONDS = 100, 0.02
ENDING_SECONDS = 1.0  # a shell that ends closes its files this long at most before its end is seen


class _Live:
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


class ProcessRuntime:
    name = "process"

    def __init__(
        self,
        home: Home,
        node: NodeFacts,
        *,
        inherited: Mapping[str, str],
        cgroups: cgroup.Cgroups | None = None,
        ignore_images: bool = False,
        leave: Callable[[], Leave | None] = lambda: None,
        shares: ShareBackend | None = None,
    ) -> None:
        self._home = home
        self._ears = Ears()
        self._shares: ShareBackend = shares or TimeSlicing()
        self._node = node
        self._cgroups: cgroup.Cgroups = cgroups or cgroup.NoCgroups()
        self._base = {name: inherited[name] for name in INHERITED if name in inherited}
        self._ignore_images = ignore_images
        self._leave = leave
        self._live: dict[RunKey, _Live] = {}
        self._ended: dict[RunKey, Run] = {}
        self._changed = asyncio.Event()
        self._outputs = Outputs()
        self._shells = ShellWatch(
            folder=home.run, begun=self._see_begun, ended=self._see_command_ended, over=self._shim_ended
        )
        self._remaining = Remaining(str(home.runs), self._see_rest_ended)
        self._sweeper = Sweeper(self._cgroups, str(home.runs))
        self._discards = Discards(str(home.discarded))
        self._served = ServedRuns(home)
        self._watching: asyncio.Task[None] | None = None
        self.not_enforced = (
            *self._cgroups.not_enforced,
            "shm",
            "read_only",
            "egress",
            "gpus",
            *self._shares.not_enforced,
        )
        if ignore_images:
            self.not_enforced += ("image",)

    @classmethod
    async def open(
        cls,
        home: Home,
        node: NodeFacts,
        *,
        inherited: Mapping[str, str],
        cgroups: cgroup.Cgroups | None = None,
        ignore_images: bool = False,
        leave: Callable[[], Leave | None] = lambda: None,
        shares: ShareBackend | None = None,
    ) -> "ProcessRuntime":
        """Open the runtime and adopt all runs of an earlier executor.

        `leave` returns the permission for a run that is started now. The run's shell checks it again as it begins.
        """
        runtime = cls(
            home,
            node,
            inherited=inherited,
            cgroups=cgroups,
            ignore_images=ignore_images,
            leave=leave,
            shares=shares,
        )
        await runtime._adopt()
        await runtime._shares.keep((*runtime._live, *runtime._ended))
        runtime._served.forget_others(runtime._live.keys() | runtime._ended.keys())
        for live in runtime._live.values():
            runtime._read_limits(live)
        runtime._watching = asyncio.create_task(runtime._note_for_ever())
        return runtime

    async def start(self, order: StartRun, *, permitted: Callable[[], bool] = always, why_not: str = "") -> None:
        key, leave = RunKey.of(order), self._leave()
        if key in self._live or key in self._ended or not permitted():
            return
        try:
            if why_not:
                raise Refusal(why_not)
            command, env, workdir = self._prepare(order, key)
        except Refusal as refusal:
            self._served.forget(key)
            self._fail(key, refusal)
            return
        await self._sweeper.finish(key)
        env = (await self._attach(order)).added_to(env)
        if not permitted():
            self._shares.detach(key)
            return
        folder = self._home.run(key)
        try:
            self._spawn(order, key, command=command, env=env, workdir=workdir, leave=leave)
        except OSError as error:
            self._served.forget(key)
            self._discards.take(folder)
            self._sweeper.drop(self._cgroups.names().get(str(key), {}))
            self._shares.detach(key)
            if error.errno != errno.E2BIG:
                raise RuntimeUnavailableError(f"starting {key}: {error}") from error
            self._fail(key, Refusal("its command and environment are too long for this host", is_for_good=True))

    async def runs(self) -> list[Run]:
        return [*(live.run for live in self._live.values()), *self._ended.values()]

    async def signal(self, key: RunKey, *, kill: bool) -> None:
        live = self._live.get(key)
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
        if live.ending and self._live.get(key) is live:
            self._remaining.drop(key)
            live.lingered = True
            if live.shim_over and not live.over:
                self._finish(live)

    async def hurry(self, key: RunKey) -> None:
        live = self._live.get(key)
        if live is None or not live.stopped or not signalling.shows_children():
            return
        main = None if live.ending else signalling.only_child(live.record.pid)
        await asyncio.to_thread(hurry, str(self._home.runs), key, self._home.run(key), _where(live), main=main)

    async def remove(self, key: RunKey) -> None:
        if self._ended.pop(key, None) is not None:
            self._home.close_log(key)
            self._discards.take(self._home.run(key))
            self._served.forget(key)
            self._shares.detach(key)

    async def resize(self, key: RunKey, limits: Limits) -> str:
        live = self._live.get(key)
        if live is None:
            return "it does not run"
        if why := fault(limits):
            return why
        reasons = []
        if limits.cpus is not None or limits.memory is not None:
            reasons.append(await asyncio.to_thread(self._cgroups.limit, live.record.cgroups, limits))
        if limits.egress is not None:
            reasons.append("egress: the processes of this node share their host's network")
        if limits.share is not None:
            reasons.append(await self._shares.resize(key, limits.share))
        before = live.record
        self._read_limits(live)
        if live.record is not before:
            with suppress(OSError):  # For the message if the run exceeds it, also after a restart.
                records.write(self._home.run(key), live.record)
        self._changed.set()
        return "; ".join(why for why in reasons if why)

    async def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        key = RunKey.of(order)
        live = self._live.get(key)
        if live is None or order.members is None:
            return "it does not run"
        try:
            due = members.show(self._home, key, order.members) or signal_due
            told = members.signal_of(order.members)
        except OSError as error:
            return members.why_not(error)
        except ValueError as error:
            return f"members: {error}"
        if told is None or not due:
            return ""
        pidfd = self._shells.pidfd(key)
        if pidfd is None:
            return f"{told}: this host lets no process be held while it is signalled"
        return signalling.signal_child(live.record.pid, pidfd, told)

    async def enter(self, key: RunKey, wanted: SessionWanted) -> Channel:
        live = self._live.get(key)
        if live is None:
            raise SessionRefusedError("the run is over")
        if live.ending:
            raise SessionRefusedError("the run ends: its main process has ended")
        groups = tuple(live.record.cgroups.values())
        if wanted.kind is SessionKind.PORT:
            return await connect(wanted.port, lambda: pids_of(key, str(self._home.runs), groups))
        own = f"{self._home.runs}/".encode()
        for _ in range(BEGUN_LOOKS_MAX):
            if environment_of(live.record.pid).get(b"WEFT_PROGRESS", b"").startswith(own):
                return enter(live.record.pid, wanted, groups)
            await asyncio.sleep(BEGUN_LOOK_SECONDS)  # Its first process still has the executor's environment.
        raise SessionRefusedError("the run has only just begun: try again in a moment")

    async def end_sessions(self) -> None:
        await asyncio.to_thread(kill_marked, lambda _: True, having=f"WEFT_PROGRESS={self._home.runs}/".encode())

    async def probe(self, run: Run) -> str:
        if run.serve is None or run.port is None:
            return "it does not serve requests"
        why = await probe(PROBED_AT, run.port, run.serve.ready)
        return await self._ears.reason(run.key, why, run.port, lambda: self._listening(run.key), contained=False)

    def _listening(self, key: RunKey) -> list[Listening] | None:
        live = self._live.get(key)
        groups = () if live is None else tuple(live.record.cgroups.values())
        return listening_of(lambda: pids_of(key, str(self._home.runs), groups))

    async def read_log(self, key: RunKey, *, offset: int, limit: int) -> LogChunk:
        known = key in self._live or key in self._ended
        return self._home.read_log(key, offset=offset, limit=limit, known=known, over=key not in self._live)

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._live.clear()
        await self._shells.close()
        await self._remaining.close()
        await asyncio.to_thread(self._outputs.stop)
        await self._sweeper.close()
        self._discards.close()
        self._cgroups.close()

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, order: StartRun, key: RunKey) -> tuple[tuple[str, ...], dict[str, str], str]:
        """The command with its program's whole path, its environment, and its working directory. Raises Refusal."""
        if order.image and not (self._ignore_images and order.command):
            raise Refusal(f"this node runs jobs as processes and cannot use the image {order.image}")
        if not order.command:
            raise Refusal("there is no command", is_for_good=True)
        for volume in order.volumes:
            volume_source(volume, self._node.volumes_allowed)
            if volume.source != volume.target:
                raise Refusal(f"this node runs jobs as processes and cannot mount {volume.source} at {volume.target}")
        check_ulimits(order.ulimits, {**own_bounds(), **self._node.ulimits_max})
        paths = named_paths(order, self._node)
        for volume in order.named_volumes:
            if volume.target:
                why = f"leave `target` out, its path is in {volume.variable}"
                raise Refusal(f"this node runs jobs as processes and cannot mount {volume.name}: {why}")
        checkpoints = f"{self._node.checkpoints}/{order.job_id}"
        facts = RunFacts(
            gpus=gpus_of(order, self._node),
            checkpoints=checkpoints,
            secrets=self._home.secrets(key),
            progress=self._home.progress(key),
            progress_socket=self._home.progress_socket(key),
            members=self._home.members(key),
            own_address=self._node.address,
            slowdowns=str(self._home.emulated),
            python=sys.executable,
            master_address=order.master_address,
            service_port=None if order.serve is None else self._served.begin(key, order.serve, self._node.ports),
            volumes={volume.variable: paths[volume.name] for volume in order.named_volumes},
        )
        env = {**self._base, **environment(order, facts)}
        workdir = self._home.context(key) if order.context else order.workdir or checkpoints
        if workdir != checkpoints and not os.path.isdir(workdir):
            raise Refusal(f"the workdir {workdir} does not exist on this node", is_for_good=True)
        command = (*(order.entrypoint or ()), *order.command)
        program, why = find_command(command[0], path=env.get("PATH", os.defpath), workdir=workdir)
        if why:
            raise Refusal(why, is_for_good=True)
        if meets_at_its_port(order) and _port_taken(order.master_port):
            raise port_taken(order)
        return (program, *command[1:]), env, workdir

    def _spawn(
        self,
        order: StartRun,
        key: RunKey,
        *,
        command: tuple[str, ...],
        env: dict[str, str],
        workdir: str,
        leave: Leave | None,
    ) -> None:
        """Spawn the shim; records.py explains the order. Raises OSError."""
        folder = self._home.run(key)
        make_folder(self._node.checkpoints, order.job_id, mode=OWN)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        groups = self._cgroups.create(str(key), Limits(cpus=order.cpus, memory=order.memory))
        with ExitStack() as opened:
            pipes, ends = make_pipes()
            opened.callback(ends.close)
            failed = opened.enter_context(ExitStack())
            failed.callback(pipes.close)
            record = records.RunRecord(
                job_id=key.job_id,
                epoch=key.epoch,
                rank=key.rank,
                grace=order.grace,
                memory=order.memory,
                cgroups=groups,
                pipes=pipes.inodes(),
                stop_signal=order.stop_signal or StopSignal.TERM,
            )
            record_fd = records.begin(folder, record)
            opened.callback(os.close, record_fd)
            lock_fd = records.lock(folder)
            if lock_fd is None:
                raise RuntimeUnavailableError(f"{key} runs already, under an executor that is not this one")
            opened.callback(os.close, lock_fd)
            records.reserve(folder, lock_fd)
            if order.members is not None:
                members.show(self._home, key, order.members)
            os.close(open_log(self._home.log(key)))
            pid = spawn(
                command,
                env=env,
                folder=folder,
                workdir=workdir,
                lock_fd=lock_fd,
                ends=ends,
                cgroups=tuple(groups.values()),
                leave=leave,
                ulimits=order.ulimits,
            )
            failed.pop_all()
            record = replace(record, pid=pid)
            with suppress(OSError):  # Without it the run goes on, and is found all the same.
                records.add_pid(record_fd, record)
        run = Run(key=key, state=RunState.STARTING, grace=order.grace)
        run = replace(run, serve=self._served.serve(key), port=self._served.port(key))
        self._watch(_Live(record, run, child=True), pipes)

    async def _attach(self, order: StartRun) -> Attached:
        if order.share is None:
            return NOTHING
        [gpu] = gpus_of(order, self._node)
        return await self._shares.attach(order, gpu, contained=False)

    def _fail(self, key: RunKey, refusal: Refusal) -> None:
        """Note a failed start, in memory only: after a restart the order is tried again."""
        self._end(refused(key, refusal, at=time.time()))

    def _read_limits(self, live: _Live) -> None:
        """Read the run's limits from its groups."""
        limits = self._cgroups.limits(live.record.cgroups)
        live.run = replace(live.run, limits=replace(limits, share=self._shares.held(live.run.key)))
        if limits.memory is not None and limits.memory != live.record.memory:
            live.record = replace(live.record, memory=limits.memory)

    # ── ending ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, live: _Live, pipes: RunPipes | None) -> None:
        """`pipes`: those of the run; None if its shim has them no more."""
        key = live.run.key
        self._live[key] = live
        self._read_limits(live)
        if live.run.state is RunState.RUNNING:  # It had begun before it was adopted.
            self._changed.set()
        ended_fd = None if pipes is None or pipes.ended < 0 else pipes.ended
        if pipes is not None:
            self._outputs.copy(key, pipes, self._home.log(key))
        self._shells.watch(key, live.record.pid, ended_fd=ended_fd)
        if pipes is not None and ended_fd is None:
            self._see_command_ended(key)

    def _see_command_ended(self, key: RunKey) -> None:
        """The main process has ended, and its shim waits. After a stop the remaining processes are followed first."""
        live = self._live[key]
        if live.stopped and not live.killed:
            self._follow(live)
        else:
            self._let_go(key)

    def _let_go(self, key: RunKey) -> None:
        """Let the run's shim exit once all output is in the log."""
        self._outputs.when_copied(key, lambda: self._outputs.let_go(key))

    def _see_begun(self, key: RunKey) -> None:
        """The shim begins its command. The job can spoil the pid file from then on, so without a pid a shim that still
        lives a moment later counts as begun."""
        live = self._live[key]
        if not self._mark_begun(live):
            asyncio.get_running_loop().call_later(ENDING_SECONDS, self._see_alive, live)

    def _see_alive(self, live: _Live) -> None:
        if self._live.get(live.run.key) is live:
            live.run = replace(live.run, state=RunState.RUNNING, started_at=time.time())
            self._changed.set()

    def _mark_begun(self, live: _Live) -> bool:
        """Mark a starting run as running if its shim has written its pid. Returns whether it runs."""
        folder = self._home.run(live.run.key)
        if live.run.state is RunState.STARTING and records.shim_pid(folder) is not None:
            live.run = replace(live.run, state=RunState.RUNNING, started_at=records.started_at(folder))
            self._changed.set()
        return live.run.state is RunState.RUNNING

    async def _stop(self, key: RunKey, live: _Live) -> None:
        """Send the stop signal to the main process alone. When it has ended, the others follow (see remaining.py)."""
        live.stopped = True
        with suppress(OSError):  # Without the note, a restart of this executor ends what remains at once.
            records.mark_stopped(self._home.run(key))
        for _ in range(BEGUN_LOOKS_MAX):
            pidfd = self._shells.pidfd(key)
            if self._live.get(key) is not live or live.ending:
                return
            if pidfd is None or not signalling.shows_children():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(live.record.pid, signal.Signals[live.record.stop_signal])
                return
            if not signalling.signal_child(live.record.pid, pidfd, live.record.stop_signal):
                return
            await asyncio.sleep(BEGUN_LOOK_SECONDS)  # The command has not begun yet, or has just ended.

    def _shim_ended(self, key: RunKey) -> None:
        """The run's shim has ended. After a stop the remaining processes are followed until their end, or the kill."""
        live = self._live[key]
        live.shim_over = True
        self._shells.forget(key)
        if live.killed or live.rest_over or not live.stopped:
            self._finish(live)
        elif not live.ending:
            self._follow(live)

    def _follow(self, live: _Live) -> None:
        """Follow the remaining processes to their end. The shim waits, so that none of their output is lost."""
        live.ending = True
        self._remaining.add(live.run.key, self._home.run(live.run.key), _where(live))

    def _see_rest_ended(self, key: RunKey, lingered: bool) -> None:
        """No other process of a stopped run remains. `lingered`: there were some."""
        live = self._live[key]
        live.rest_over, live.lingered = True, lingered
        if live.shim_over:
            self._finish(live)
        else:
            self._let_go(key)

    def _finish(self, live: _Live) -> None:
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
        live = self._live.pop(key, None)
        if live is None:  # The runtime is closed.
            return
        since, lost = self._outputs.blocked_at(key), self._outputs.close(key)
        status: int | None = None
        if live.child:
            with suppress(ChildProcessError):
                status = os.waitstatus_to_exitcode(os.waitpid(live.record.pid, 0)[1])
        folder = self._home.run(key)
        if status == TOO_LATE_STATUS and records.shim_pid(folder) is None:  # It never ran: nothing to report.
            logger.warning("%s did not begin: its leave to start had run out", key)
            self._discards.take(folder)
            self._sweeper.drop(live.record.cgroups)
            self._shares.detach(key)
            self._changed.set()
            return
        self._mark_begun(live)
        run = self._outcome(live.record, live.run, status)
        if live.lingered:
            run = replace(run, ended_at=max(time.time(), run.started_at or 0.0))
        if since is not None and lost:
            run = replace(run, noted=(*run.noted, output_lost(lost, since)))
        self._end(run)
        self._sweeper.drop(live.record.cgroups)
        if not (live.record.cgroups and live.child):
            self._sweeper.find_strays(key)

    def _outcome(self, record: records.RunRecord, run: Run, status: int | None) -> Run:
        """The run's end: as the shim wrote it, else by the status from the kernel, else unknown."""
        folder = self._home.run(record.key)
        written = records.exit_status(folder)
        reason, detail, exit_code = EndReason.EXIT, "", None
        if written is not None:
            exit_code = written.exit_code
        elif status == CGROUP_REFUSED_STATUS and records.shim_pid(folder) is None:
            reason, detail = EndReason.START_FAILED, "the host did not let it into its cgroup"
        elif status == ULIMITS_REFUSED_STATUS and records.shim_pid(folder) is None:
            reason, detail = EndReason.START_FAILED, "the host did not let it have its ulimits"
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
            serve=self._served.serve(record.key),
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

    async def _note_for_ever(self) -> None:
        """Look at what live runs may not show themselves."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            for key, live in self._live.items():
                kills, since = self._cgroups.oom_kills(live.record.cgroups), self._outputs.blocked_at(key)
                noted = (
                    *((process_killed(kills, live.record.memory),) if kills else ()),
                    *((output_waits(since),) if since is not None else ()),
                )
                if noted != live.run.noted:
                    live.run = replace(live.run, noted=noted)
                    self._changed.set()

    def _end(self, run: Run) -> None:
        self._ended[run.key] = run
        self._changed.set()

    # ── after a restart ─────────────────────────────────────────────────────────────────────────────────────────

    async def _adopt(self) -> None:
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
                self._sweeper.drop(groups)
        self._sweeper.find_strays(*self._ended)
        self._discards.sweep()

    def _forget_unknown(self, name: str) -> None:
        """Remove a folder of no run, of a run that never started, or with a record that its job has spoilt."""
        key = RunKey.parse(name)
        if key is not None:
            self._sweeper.find_strays(key)
        self._discards.take(f"{self._home.runs}/{name}")

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
            live = self._live[record.key] = _Live(record, run, child=False)
            live.stopped = live.shim_over = True
            self._follow(live)
            return True
        self._cgroups.kill(record.cgroups)
        self._end(self._outcome(record, run, None))
        self._sweeper.drop(record.cgroups)
        return True

    def _adopt_live(self, record: records.RunRecord, folder: str) -> None:
        run = Run(key=record.key, state=RunState.RUNNING, grace=record.grace, started_at=records.started_at(folder))
        run = replace(run, serve=self._served.serve(record.key), port=self._served.port(record.key))
        live = _Live(record, run, child=_is_child(record.pid))
        live.stopped = records.stopped(folder)
        self._watch(live, find_pipes(record.pid, record.pipes))
        if not records.locked(folder):  # If it is locked, the watched pid was the shim's all along.
            self._shim_ended(record.key)
            return
        with suppress(OSError):
            records.write(folder, record)

    async def _end_unknown(self, record: records.RunRecord) -> None:
        """End a run that cannot be watched: its lock is held, but its job has spoilt the pid file, or it hangs."""
        key = record.key
        logger.warning("%s was started and does not come up: what there is of it is killed", key)
        self._cgroups.kill(record.cgroups)
        await asyncio.to_thread(kill_stragglers, str(self._home.runs), lambda found: found == key)
        detail = "its folder does not say which process it is"
        run = Run(key=key, state=RunState.EXITED, grace=record.grace, ended_at=time.time())
        self._end(replace(run, reason=EndReason.LOST, detail=detail))
        self._sweeper.drop(record.cgroups)


def _where(live: _Live) -> ProcessesOfRun:
    shim = live.record.pid
    group = shim if live.child or not live.shim_over else 0  # where that number cannot be reused
    return ProcessesOfRun(cgroups=live.record.cgroups, group=group, shim=0 if live.shim_over else shim)


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _port_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
