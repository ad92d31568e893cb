"""A machine with GPUs: what runs on it, its clocks, and the runtime as its executor has it."""

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.history import History
from tests.simulation.place import Place
from tests.simulation.witness import Witness
from tests.support.doubles.runtime import FakeHost, FakeRuntime, Program
from tests.support.memory_keeper import MemoryKeeper
from weft.domain.cluster import Capacity
from weft.domain.spec import ResizeSignal
from weft.messages.nodes import EndReason, StartRun
from weftd.executor.channel import Channel, SessionWanted
from weftd.executor.guard import thinking as guard
from weftd.executor.runs import Limits, LogChunk, Run, RunKey, RuntimeUnavailableError, always
from weftd.executor.thinking.core import Kill, Memory

ENGINE_SECONDS = (0.001, 0.05)
WALL = 1_767_225_600.0  # 2026-01-01T00:00:00Z
DO = "WEFT_SIMULATED"


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the ranks of one job do, by epoch (the last is for all later ones); it travels in the job's environment.

    `ranks`: what single ranks do instead, by their number, in every epoch but the last.
    """

    tries: tuple[dict[str, Any], ...]
    ranks: dict[str, dict[str, Any]] = {}

    def program(self, epoch: int, rank: int) -> Program:
        last = len(self.tries) - 1
        ranks = self.ranks if epoch < last else {}
        return msgspec.convert(ranks.get(str(rank), self.tries[min(epoch, last)]), Program)


class Clock:
    """Seconds that pass at a rate of their own; `jump` for a boot."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, offset: float, rate: float) -> None:
        self._loop = loop
        self._offset = offset
        self._rate = rate

    def __call__(self) -> float:
        return self._offset + self._loop.time() * self._rate

    def boot(self) -> None:
        """It counts from now."""
        self._offset = -self._loop.time() * self._rate


class Keeper(MemoryKeeper):
    """What the executor keeps on its disk. A full disk still has places for the last good sync and the stops."""

    full = False
    ended_by_guard: frozenset[RunKey] = frozenset()

    def save(self, memory: Memory) -> None:
        self.memory = replace(self.memory, synced_at=memory.synced_at, stops=memory.stops) if self.full else memory

    def fenced(self) -> frozenset[RunKey]:
        return self.ended_by_guard


class Host(FakeHost):
    """The fake host, under the eyes of the witness."""

    def __init__(self, node_id: str, witness: Witness, *, now: Callable[[], float]) -> None:
        super().__init__(_program, now=now)
        self._node_id = node_id
        self._witness = witness

    def start(self, order: StartRun, program: Program) -> None:
        begun = len(self.starts)
        super().start(order, program)
        if len(self.starts) > begun:
            self._witness.began(self._node_id, order)
            self._witness.shown(order)

    def resize(self, key: RunKey, limits: Limits) -> str:
        why = super().resize(key, limits)
        for run in self.runs():
            if run.key == key and run.live and limits.share is not None:
                self._witness.reshared(key, run.limits.share)
        return why

    def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        self._witness.shown(order)
        return super().show_members(order, signal_due=signal_due)

    def signal(self, key: RunKey, *, kill: bool) -> None:
        if any(run.key == key and run.live for run in self.runs()):
            self._witness.told_to_stop.add(key)
        super().signal(key, kill=kill)

    def end(
        self, key: RunKey, *, exit_code: int | None = None, reason: EndReason = EndReason.EXIT, detail: str = ""
    ) -> None:
        lived = any(run.key == key and run.live for run in self.runs())
        super().end(key, exit_code=exit_code, reason=reason, detail=detail)
        if lived:
            self._witness.ended(self._node_id, key, exit_code, reason)


def _program(order: StartRun) -> Program:
    return msgspec.json.decode(order.env[DO], type=Plan).program(order.epoch, order.rank)


class Engine:
    """What runs runs on a host, and answers a little later. It works while the host does."""

    def __init__(self, host: FakeHost, loop: asyncio.AbstractEventLoop, dice: random.Random) -> None:
        self.host = host
        self.on = True
        self._loop = loop
        self._dice = dice
        self._context = contextvars.copy_context()

    async def ask(self, place: Place, do: Callable[[], Any]) -> Any:
        """Have it do something. Raises RuntimeUnavailableError."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settled(result: Any, works: bool) -> None:
            if answer.done():
                return
            if works:
                answer.set_result(result)
            else:
                answer.set_exception(RuntimeUnavailableError("the engine does not answer"))

        def done() -> None:
            works = self.on and self.host.available
            place.call(settled, do() if works else None, works)

        self._loop.call_later(self._dice.uniform(*ENGINE_SECONDS), done, context=self._context)
        return await answer


class Machine:
    """One node: what outlives its executor."""

    def __init__(
        self,
        node_id: str,
        *,
        capacity: Capacity,
        boot_clock: Clock,
        wall_clock: Clock,
        loop: asyncio.AbstractEventLoop,
        dice: random.Random,
        history: History,
        witness: Witness,
    ) -> None:
        self.node_id = node_id
        self.capacity = capacity
        self.clock = boot_clock
        self.wall_clock = wall_clock
        self.history = history
        self.host = Host(node_id, witness, now=wall_clock)
        self.engine = Engine(self.host, loop, dice)
        self.state_file = Keeper("boot-1")
        self.guard: NodeGuard | None = None
        self._boots = 1

    @property
    def on(self) -> bool:
        return self.engine.on

    def power_off(self) -> None:
        self.engine.on = False
        self.guard = None
        self.host.reboot()

    def power_on(self) -> None:
        self.engine.on = True
        self._boots += 1
        self.state_file.boot_id = f"boot-{self._boots}"
        self.state_file.memory = self.state_file.memory.after_boot(self.state_file.ended_by_guard)
        self.state_file.ended_by_guard = frozenset()  # the note is of the boot before
        self.clock.boot()


class SimRuntime:
    """The runtime of one executor. What was asked of the engine is done, also when the executor is no more."""

    name = "fake"
    not_enforced = FakeRuntime.not_enforced

    def __init__(self, engine: Engine, place: Place) -> None:
        self._engine = engine
        self._host = engine.host
        self._place = place
        self._fake = FakeRuntime(engine.host)

    async def start(self, order: StartRun, *, permitted: Callable[[], bool] = always, why_not: str = "") -> None:
        program = self._host.program(order)
        if program.start_seconds:
            await asyncio.sleep(program.start_seconds)
        await self._place.point(f"start {RunKey.of(order)}")
        if permitted():
            asked = replace(program, refused=why_not or program.refused)
            await self._engine.ask(self._place, lambda: self._host.start(order, asked))

    async def runs(self) -> list[Run]:
        await self._place.point("runs")
        found: list[Run] = await self._engine.ask(self._place, self._host.runs)
        return found

    async def signal(self, key: RunKey, *, kill: bool) -> None:
        await self._place.point(f"signal {key}")
        await self._engine.ask(self._place, lambda: self._host.signal(key, kill=kill))

    async def hurry(self, key: RunKey) -> None:
        await self._place.point(f"hurry {key}")

    async def remove(self, key: RunKey) -> None:
        await self._place.point(f"remove {key}")
        await self._engine.ask(self._place, lambda: self._host.remove(key))

    async def resize(self, key: RunKey, limits: Limits) -> str:
        return await self._fake.resize(key, limits)

    async def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        await self._place.point(f"show members {RunKey.of(order)}")
        why: str = await self._engine.ask(self._place, lambda: self._host.show_members(order, signal_due=signal_due))
        return why

    async def dump_stacks(self, key: RunKey, told: ResizeSignal | None) -> None:
        await self._place.point(f"dump stacks {key}")
        await self._engine.ask(self._place, lambda: self._host.dump_stacks(key, told))

    async def probe(self, run: Run) -> str:
        await self._place.point(f"probe {run.key}")
        why: str = await self._engine.ask(self._place, lambda: self._host.probe(run.key))
        return why

    async def read_log(self, key: RunKey, *, offset: int, limit: int) -> LogChunk:
        return await self._fake.read_log(key, offset=offset, limit=limit)

    async def enter(self, key: RunKey, wanted: SessionWanted) -> Channel:
        return await self._fake.enter(key, wanted)

    async def end_sessions(self) -> None:
        await self._fake.end_sessions()

    async def changed(self) -> None:
        await self._fake.changed()

    async def close(self) -> None:
        pass


class NodeGuard:
    """The guard's process of one boot of a machine: the production core, looking twice a second."""

    def __init__(self, machine: Machine, timings: guard.FenceTimings) -> None:
        self._machine = machine
        self._guard = guard.Guard(timings, began=machine.clock())

    def look(self) -> None:
        machine = self._machine
        runs = machine.host.runs()
        memory = machine.state_file.memory
        self._guard.keep({run.key for run in runs})
        actions = self._guard.decide(
            [guard.Seen(key=run.key, grace=run.grace) for run in runs if run.live],
            synced_at=memory.synced_at,
            stops={stop.key: stop.kill_at for stop in memory.stops},
            now=machine.clock(),
        )
        machine.state_file.ended_by_guard = self._guard.ended
        for action in actions:
            machine.history.note(machine.node_id, f"guard: {action}")
            machine.history.counts["acts of guards"] += 1
            machine.host.signal(action.key, kill=isinstance(action, Kill))


def running(hosts: Sequence[Host]) -> list[RunKey]:
    return [run.key for host in hosts for run in host.runs() if run.live]
