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
from collections.abc import Callable, Mapping
from contextlib import suppress

from weft.domain.spec import ResizeSignal
from weft.messages.nodes import StartRun
from weft.messages.sessions import SessionKind
from weftd.executor import stacks
from weftd.executor.channel import Channel, SessionRefusedError, SessionWanted
from weftd.executor.files import members
from weftd.executor.files.home import Home
from weftd.executor.leave import Leave
from weftd.executor.machine.node import NodeFacts, Refusal
from weftd.executor.runs import Limits, LogChunk, Run, RunKey, RuntimeUnavailableError, always
from weftd.executor.runtime import signalling
from weftd.executor.runtime.bookkeeping import Bookkeeping
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.adopting import Adoption
from weftd.executor.runtime.process.entering import enter, environment_of, kill_marked
from weftd.executor.runtime.process.listening import connect, listening_of, pids_of
from weftd.executor.runtime.process.lives import BEGUN_LOOK_SECONDS, BEGUN_LOOKS_MAX, Lives
from weftd.executor.runtime.process.starter import Starter
from weftd.executor.serving.listening import Listening
from weftd.executor.serving.probe import probe
from weftd.executor.shares.backend import ShareBackend
from weftd.executor.thinking.rounding import fault

PROBED_AT = "127.0.0.1"


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
        self._cgroups: cgroup.Cgroups = cgroups or cgroup.NoCgroups()
        self._leave = leave
        self._book = Bookkeeping(home, node, shares, contained=False)
        self._lives = Lives(home, self._cgroups, self._book)
        self._starter = Starter(home, node, self._cgroups, self._book, inherited=inherited, ignore_images=ignore_images)
        self._watching: asyncio.Task[None] | None = None
        self.not_enforced = (
            *self._cgroups.not_enforced,
            "shm",
            "read_only",
            "egress",
            "gpus",
            *self._book.shares.not_enforced,
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
        lives, book = runtime._lives, runtime._book
        await Adoption(home, runtime._cgroups, book, lives).adopt()
        await book.keep(lives.runs.keys() | book.over.keys())
        for live in lives.runs.values():
            lives.read_limits(live)
        runtime._watching = asyncio.create_task(lives.note_for_ever())
        return runtime

    async def start(self, order: StartRun, *, permitted: Callable[[], bool] = always, why_not: str = "") -> None:
        key, leave = RunKey.of(order), self._leave()
        if key in self._lives.runs or key in self._book.over or not permitted():
            return
        try:
            if why_not:
                raise Refusal(why_not)
            command, env, workdir = self._starter.prepare(order, key)
        except Refusal as refusal:
            self._book.refuse(key, refusal)
            return
        await self._lives.sweeper.finish(key)
        env = (await self._book.attach(order)).added_to(env)
        if not permitted():
            self._book.shares.detach(key)
            return
        try:
            live, pipes = self._starter.spawn(order, key, command=command, env=env, workdir=workdir, leave=leave)
            self._lives.watch(live, pipes)
        except OSError as error:
            self._lives.sweeper.drop(self._cgroups.names().get(str(key), {}))
            self._book.forget(key)
            if error.errno != errno.E2BIG:
                raise RuntimeUnavailableError(f"starting {key}: {error}") from error
            too_long = "its command and environment are too long for this host"
            self._book.refuse(key, Refusal(too_long, is_for_good=True))

    async def runs(self) -> list[Run]:
        return [*(live.run for live in self._lives.runs.values()), *self._book.over.values()]

    async def signal(self, key: RunKey, *, kill: bool) -> None:
        await self._lives.signal(key, kill=kill)

    async def hurry(self, key: RunKey) -> None:
        await self._lives.hurry(key)

    async def remove(self, key: RunKey) -> None:
        if self._book.over.pop(key, None) is not None:
            self._book.forget(key)

    async def resize(self, key: RunKey, limits: Limits) -> str:
        live = self._lives.runs.get(key)
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
            reasons.append(await self._book.shares.resize(key, limits.share))
        before = live.record
        self._lives.read_limits(live)
        if live.record is not before:
            with suppress(OSError):  # For the message if the run exceeds it, also after a restart.
                records.write(self._home.run(key), live.record)
        self._book.note_change()
        return "; ".join(why for why in reasons if why)

    async def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        key = RunKey.of(order)
        live = self._lives.runs.get(key)
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
        pidfd = self._lives.pidfd(key)
        if pidfd is None:
            return f"{told}: this host cannot signal a process safely (no pidfd)"
        return signalling.signal_child(live.record.pid, pidfd, told)

    async def dump_stacks(self, key: RunKey, told: ResizeSignal | None) -> None:
        live, pidfd = self._lives.runs.get(key), self._lives.pidfd(key)
        if live is None or live.over:
            return
        why = ""
        if told is not None and pidfd is not None:
            why = signalling.signal_child(live.record.pid, pidfd, told)
            if not why:
                return
        text = await stacks.stacks_of(live.record.pid)
        with suppress(OSError):
            self._lives.write_stacks(key, f"{why}\n{text}".strip())

    async def enter(self, key: RunKey, wanted: SessionWanted) -> Channel:
        live = self._lives.runs.get(key)
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
        return await self._book.ears.reason(run.key, why, run.port, lambda: self._listening(run.key), contained=False)

    def _listening(self, key: RunKey) -> list[Listening] | None:
        live = self._lives.runs.get(key)
        groups = () if live is None else tuple(live.record.cgroups.values())
        return listening_of(lambda: pids_of(key, str(self._home.runs), groups))

    async def read_log(self, key: RunKey, *, offset: int, limit: int) -> LogChunk:
        known = key in self._lives.runs or key in self._book.over
        return self._home.read_log(key, offset=offset, limit=limit, known=known, over=key not in self._lives.runs)

    async def changed(self) -> None:
        await self._book.changed()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._lives.close()
        self._book.discards.close()
        self._cgroups.close()
