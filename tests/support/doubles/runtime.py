"""A runtime that runs nothing, for tests and simulations: the behaviour of each run is an input, time is the loop's.

It holds its runs as a host would, so a second `FakeRuntime` on the same `FakeHost` adopts them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from weft.domain.cluster import NOT_HELD_TO_SHARES
from weft.domain.spec import ResizeSignal
from weft.messages.nodes import EndReason, Members, RunState, StartRun
from weftd.executor.channel import Channel, SessionRefusedError, SessionWanted
from weftd.executor.runs import NO_LIMIT, Limits, LogChunk, Run, RunKey, RuntimeUnavailableError, always
from weftd.executor.runtime.limits.groups import too_tight
from weftd.executor.thinking.rounding import fault
from weftd.executor.thinking.telling import Told


class Program(Struct, frozen=True, kw_only=True):
    """The behaviour of a fake run: it writes `output`, ends by itself after `seconds`, and reacts to SIGTERM."""

    output: bytes = b""
    seconds: float | None = None  # None: until it is ended
    exit_code: int = 0
    on_term: int | None = 143  # the status it ends with; None ignores it
    oom: bool = False
    refused: str = ""  # the reason why it cannot start
    start_seconds: float = 0.0  # such as for a pull
    working_set: int = 0  # memory that it needs, in bytes
    ready_seconds: float | None = 0.0  # after its start it takes requests, if it serves any; None: never


class _Held:
    def __init__(self, order: StartRun, program: Program, run: Run) -> None:
        self.order = order
        self.program = program
        self.run = run
        self.timer: asyncio.TimerHandle | None = None


class FakeHost:
    """The state that survives the executor: the runs and their logs."""

    def __init__(
        self, program: Callable[[StartRun], Program] = lambda _: Program(), *, now: Callable[[], float]
    ) -> None:
        self._program = program
        self._now = now
        self._held: dict[RunKey, _Held] = {}
        self._listeners: list[Callable[[], None]] = []
        self.logs: dict[RunKey, bytes] = {}
        self.starts: list[RunKey] = []  # in order; a key that appears twice is a run that ran twice
        self.resizes: list[tuple[RunKey, Limits]] = []  # in order, also refused ones
        self.refuse: Callable[[RunKey, Limits], str] = lambda _key, _limits: ""  # why a resize is refused
        self.members: dict[RunKey, Members] = {}  # what each run's file has
        self.signals: list[tuple[RunKey, str]] = []  # after a change of members, in order
        self.hide: Callable[[StartRun], str] = lambda _order: ""  # why members are not shown
        self.available = True

    def runs(self) -> list[Run]:
        return [held.run for held in self._held.values()]

    def program(self, order: StartRun) -> Program:
        return self._program(order)

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def start(self, order: StartRun, program: Program) -> None:
        key = RunKey.of(order)
        if key in self._held:
            return
        run = Run(key=key, state=RunState.RUNNING, grace=order.grace, started_at=self._now())
        held = self._held[key] = _Held(order, program, run)
        if program.refused:
            held.run = replace(run, started_at=None)
            self.end(key, reason=EndReason.START_FAILED, detail=program.refused)
            return
        self.starts.append(key)
        if order.members is not None:
            self.members[key] = order.members
        egress = NO_LIMIT if order.egress is None else order.egress
        held.run = replace(run, limits=Limits(cpus=order.cpus, memory=order.memory, egress=egress, share=order.share))
        if order.serve is not None:
            held.run = replace(held.run, serve=order.serve, port=order.serve.port)
        self.write(key, program.output)
        if program.seconds is not None:
            ended = EndReason.OOM if program.oom else EndReason.EXIT
            held.timer = asyncio.get_running_loop().call_later(
                program.seconds, lambda: self.end(key, exit_code=program.exit_code, reason=ended)
            )
        self._tell()

    def write(self, key: RunKey, data: bytes) -> None:
        self.logs[key] = self.logs.get(key, b"") + data

    def end(
        self, key: RunKey, *, exit_code: int | None = None, reason: EndReason = EndReason.EXIT, detail: str = ""
    ) -> None:
        """End a run; a run that has ended stays as it is."""
        held = self._held.get(key)
        if held is None or not held.run.live:
            return
        if held.timer is not None:
            held.timer.cancel()
        held.run = replace(
            held.run,
            state=RunState.EXITED,
            ended_at=self._now(),
            exit_code=exit_code,
            reason=reason,
            detail=detail,
            limits=Limits(),
        )
        self._tell()

    def resize(self, key: RunKey, limits: Limits) -> str:
        """Set each of the limits, unless the resize is refused. Empty, or why not."""
        held = self._held.get(key)
        if held is None or not held.run.live:
            return "it does not run"
        self.resizes.append((key, limits))
        if why := fault(limits) or self.refuse(key, limits):
            return why
        has = held.run.limits
        memory = has.memory if limits.memory is None else limits.memory
        why = too_tight(held.program.working_set, memory) if memory and memory < (has.memory or 0) else ""
        held.run = replace(
            held.run,
            limits=Limits(
                cpus=has.cpus if limits.cpus is None else limits.cpus,
                memory=has.memory if why else memory,
                egress=has.egress if limits.egress is None else limits.egress,
                share=has.share if limits.share is None else limits.share,
            ),
        )
        self._tell()
        return why

    def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        key, members = RunKey.of(order), order.members
        held = self._held.get(key)
        if members is None or held is None or not held.run.live:
            return "it does not run"
        if why := self.hide(order):
            return why
        before = self.members.get(key)
        self.members[key] = members
        if members.signal and (signal_due or before is None or before.changes != members.changes):
            self.signals.append((key, members.signal))
        return ""

    def dump_stacks(self, key: RunKey, told: ResizeSignal | None) -> None:
        words = f"stacks by {told}" if told is not None else "no stacks"
        if key in self._held and self._held[key].run.live:
            self.write(key, f"weft: this job hangs\n{words}\n".encode())

    def probe(self, key: RunKey) -> str:
        """Empty if the run takes requests now, else why not."""
        held = self._held.get(key)
        if held is None or not held.run.live or held.run.serve is None:
            return "it does not serve requests"
        ready, began = held.program.ready_seconds, held.run.started_at
        return "" if ready is not None and began is not None and self._now() >= began + ready else "it loads"

    def signal(self, key: RunKey, *, kill: bool) -> None:
        held = self._held.get(key)
        if held is None:
            return
        status = 137 if kill else held.program.on_term
        if status is not None:
            self.end(key, exit_code=status)

    def remove(self, key: RunKey) -> None:
        held = self._held.get(key)
        if held is not None and not held.run.live:
            del self._held[key]

    def reboot(self) -> None:
        """All running runs are gone, without an exit status."""
        for key in list(self._held):
            self.end(key, reason=EndReason.LOST, detail="the host went down")

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


class FakeRuntime:
    name = "fake"
    not_enforced: tuple[str, ...] = ("cpus", "memory", "egress", "shm", "read_only", "gpus", NOT_HELD_TO_SHARES)

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self._changed = asyncio.Event()
        host.listen(self._changed.set)

    async def start(self, order: StartRun, *, permitted: Callable[[], bool] = always, why_not: str = "") -> None:
        program = self.host.program(order)
        if program.start_seconds:
            await asyncio.sleep(program.start_seconds)
        self._check()
        if permitted():
            self.host.start(order, replace(program, refused=why_not or program.refused))

    async def runs(self) -> list[Run]:
        self._check()
        return self.host.runs()

    async def signal(self, key: RunKey, *, kill: bool) -> None:
        self._check()
        self.host.signal(key, kill=kill)

    async def hurry(self, key: RunKey) -> None:
        self._check()

    async def remove(self, key: RunKey) -> None:
        self._check()
        self.host.remove(key)

    async def resize(self, key: RunKey, limits: Limits) -> str:
        self._check()
        return self.host.resize(key, limits)

    async def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        self._check()
        return self.host.show_members(order, signal_due=signal_due)

    async def dump_stacks(self, key: RunKey, told: ResizeSignal | None) -> None:
        self._check()
        self.host.dump_stacks(key, told)

    async def enter(self, key: RunKey, wanted: SessionWanted) -> Channel:
        raise SessionRefusedError("this runtime runs nothing")

    async def end_sessions(self) -> None:
        pass

    async def probe(self, run: Run) -> str:
        self._check()
        return self.host.probe(run.key)

    async def read_log(self, key: RunKey, *, offset: int, limit: int) -> LogChunk:
        log = self.host.logs.get(key)
        run = next((run for run in self.host.runs() if run.key == key), None)
        if log is None:
            return LogChunk(data=b"", ended=run is not None and not run.live, missing=run is None)
        data = log[offset : offset + limit]
        ended = (run is None or not run.live) and offset + len(data) >= len(log)
        return LogChunk(data=data, ended=ended, size=len(log))

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def close(self) -> None:
        pass

    def _check(self) -> None:
        if not self.host.available:
            raise RuntimeUnavailableError("the fake host is down")


class FakeProgress:
    """Progress as a test sets it in `latest`."""

    def __init__(self) -> None:
        self.latest: dict[RunKey, dict[str, float]] = {}
        self.patterns: Mapping[RunKey, str] = {}

    async def look(self, runs: Iterable[Run]) -> dict[RunKey, Told]:
        return {run.key: Told(progress=self.latest[run.key]) for run in runs if run.live and run.key in self.latest}

    async def settle(self, ended: Sequence[Run]) -> None:
        pass

    async def close(self) -> None:
        pass
