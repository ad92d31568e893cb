"""How each fault is done and undone. What was done when is kept: the audit and the story need it."""

import asyncio
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg
from msgspec import Struct
from msgspec.structs import replace

from tests.chaos import disk
from tests.chaos.clock import boot_clock
from tests.chaos.engine import EngineMissingError
from tests.chaos.failover import FailoverStores
from tests.chaos.faults import BUSIEST, LEADER, PRIMARY, REPLICA, STANDBY, Fault, touches
from tests.chaos.hosts import HostsWorld
from tests.chaos.services import replicas
from tests.chaos.traces import read_runs
from tests.chaos.world import World
from tests.hosts.host import LaboratoryError
from weft.emulation.faults import Fault as GpuFault
from weft.emulation.faults import read_fault, write_fault
from weft.servers import ServersError

LIVING_SECONDS = 1.0  # since its last word


class Done(Struct, frozen=True, kw_only=True):
    """One fault as it came true, from `began` to `ended` in boot seconds; `failed` says why it did not."""

    what: str
    target: str
    began: float
    ended: float
    failed: str = ""


class Deeds:
    """Does faults to a world. `restores`: what was acknowledged from one boot second to the other is undone."""

    def __init__(self, world: World, tell: Callable[[str], None]) -> None:
        self.done: list[Done] = []
        self.restores: list[tuple[float, float]] = []
        self._backed_up_at: float | None = None
        self._world = world
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def play(self, faults: list[Fault]) -> None:
        """Do each at its time; return when the last is over. Everything is mended then."""
        began = boot_clock()
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - boot_clock()))
            task = asyncio.create_task(self._do(fault))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def end(self) -> None:
        """Leave nothing broken, also when it was interrupted."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _do(self, fault: Fault) -> None:
        """One may take longer than was planned, by the time that a server needs to be up again: the next one of its
        target waits for it."""
        if fault.target.endswith(BUSIEST):
            fault = replace(fault, target=fault.target.replace(BUSIEST, self._busiest()))
        hosts = isinstance(self._world, HostsWorld)
        async with self._one_at_a_time[touches(fault.target, hosts=hosts)]:
            await self.once(fault)

    async def once(self, fault: Fault) -> None:
        """Do it now, and undo it."""
        began, failed, what = boot_clock(), "", fault.what
        try:
            if fault.target in (LEADER, PRIMARY, STANDBY):
                what = f"{fault.what} ({fault.target.partition('-')[2]})"
                fault = replace(fault, target=await self._host_of(fault.target))
            self._tell(f"{what} {fault.target} for {fault.seconds:.1f} s")
            await self._deed(fault)
        except (
            *(OSError, TimeoutError, LookupError),
            *(ServersError, EngineMissingError, LaboratoryError, asyncpg.PostgresError),
        ) as error:
            failed = f"{type(error).__name__}: {error}"
            self._tell(f"could not {what} {fault.target}: {failed}")
        self.done.append(Done(what=what, target=fault.target, began=began, ended=boot_clock(), failed=failed))

    async def _host_of(self, which: str) -> str:
        assert isinstance(self._world, HostsWorld), "only dealt where there are hosts"
        return await self._world.host_of(which)

    def _busiest(self) -> str:
        living = [run.node for run in read_runs(self._world.folder) if run.last > boot_clock() - LIVING_SECONDS]
        return Counter(living or self._world.nodes).most_common(1)[0][0]

    def _deed(self, fault: Fault) -> Awaitable[None]:
        kind = fault.target.partition("-")[0]
        if kind == "host":
            assert isinstance(self._world, HostsWorld), "only dealt where there are hosts"
            return self._world.do(fault)
        if kind in ("link", "store", "bus"):
            return self._link(fault)
        if kind == "gpu":
            return self._gpu(fault)
        if kind == "disk":
            return self._disk(fault)
        if kind == "engine":
            return self._engine(fault)
        if kind == "guard":
            return self._guard(fault)
        if fault.target in ("nats", "postgres"):
            return self._server(fault)
        if kind in ("gate", "caddy"):
            return self._pid(fault, self._world.child_of_router(kind))
        if kind == REPLICA:
            return self._pid(fault, self._any_replica())
        return self._member(fault)

    async def _member(self, fault: Fault) -> None:
        member = self._world.members[fault.target]
        if fault.what == "freeze":
            member.send(signal.SIGSTOP)
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                member.send(signal.SIGCONT)
            return
        member.hold()
        try:
            member.send(signal.SIGKILL if fault.what == "kill" else signal.SIGTERM)
            await asyncio.sleep(fault.seconds)
        finally:
            member.release()

    async def _link(self, fault: Fault) -> None:
        """`cut`: half open, nobody is told. `break`: every connection ends, and none is taken."""
        link = self._world.links[fault.target]
        if fault.what == "cut":
            link.cut()
        else:
            link.end_all()
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            link.mend()

    async def _disk(self, fault: Fault) -> None:
        filler = self._world.logs_of(self._world.small_disk) / ".filler"
        try:
            await asyncio.to_thread(disk.fill, filler)
            await asyncio.sleep(fault.seconds)
        finally:
            filler.unlink(missing_ok=True)

    async def _gpu(self, fault: Fault) -> None:
        """A GPU on which a run lives, if there is one, shows a sign of sickness, and is reset afterwards."""
        node = fault.target.partition("-")[2]
        folder = self._world.home.node(node) / "emulated"
        here = [run for run in read_runs(self._world.folder) if run.node == node and run.gpus]
        index = max(here, key=lambda run: run.last).gpus[0] if here else 0
        before = read_fault(folder, index)
        await asyncio.to_thread(write_fault, folder, index, sick(fault.what, before))
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            shown = read_fault(folder, index)
            await asyncio.to_thread(write_fault, folder, index, GpuFault(xids=shown.xids, resets=shown.resets + 1))

    async def _guard(self, fault: Fault) -> None:
        """Its executor has to have it running again."""
        pid = self._world.guard(fault.target.partition("-")[2])
        if pid is None:
            raise LookupError("this node has no guard")
        await self._pid(fault, pid)

    def _any_replica(self) -> int:
        living = sorted(one.pid for one in replicas(self._world.folder))
        if not living:
            raise LookupError("no replica lives")
        return living[int(boot_clock() * 1000) % len(living)]

    async def _pid(self, fault: Fault, pid: int) -> None:
        """Of a process that something else starts again. One that has just ended by itself needs nothing done."""
        try:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if fault.what == "kill" else signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def _engine(self, fault: Fault) -> None:
        engine = self._world.engine
        assert engine is not None, "only dealt where there is one"
        await asyncio.to_thread(engine.send, signal.SIGKILL)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            await asyncio.to_thread(engine.start)

    async def _server(self, fault: Fault) -> None:
        stores, name = self._world.stores, fault.target
        if isinstance(stores, FailoverStores):
            await stores.do(fault)
            return
        if fault.what == "freeze":
            await stores.freeze(name)
            try:
                await asyncio.sleep(fault.seconds)
            finally:
                stores.thaw(name)
            return
        stores.hold(name)
        try:
            await self._while_down(fault)
        finally:
            await stores.release(name)
        if fault.what == "restore":  # what was acknowledged before may be heard until now, from a gateway that hung
            since, _ = self.restores.pop()
            self.restores.append((since, boot_clock()))

    async def _while_down(self, fault: Fault) -> None:
        stores, name = self._world.stores, fault.target
        assert not isinstance(stores, FailoverStores), "it does its own faults"
        if fault.what == "back up":
            self._backed_up_at = None
            await stores.back_up()
            self._backed_up_at = boot_clock()
            return
        if fault.what == "restore" and self._backed_up_at is None:
            raise LookupError("no copy to restore")
        await stores.end(name, signal.SIGTERM if (name, fault.what) == ("nats", "restart") else END[fault.what])
        if fault.what == "lose stream":
            await stores.lose_stream()
        if fault.what == "restore" and self._backed_up_at is not None:
            await stores.restore()
            self.restores.append((self._backed_up_at, boot_clock()))  # also if it does not come up again
        await asyncio.sleep(fault.seconds)


def sick(what: str, before: GpuFault) -> GpuFault:
    """The fault of an emulated GPU after a card of `GPU_FAULTS`."""
    if what.startswith("xid "):
        number = what.removeprefix("xid ")
        return replace(before, xids={**before.xids, number: before.xids.get(number, 0) + 1})
    return replace(before, ecc=int(what == "ecc"), off_bus=what == "off bus", throttle=what == "throttle")


END = {
    "kill": signal.SIGKILL,
    "lose stream": signal.SIGKILL,
    "restore": signal.SIGKILL,
    "restart": signal.SIGINT,  # of Postgres: sessions end, data are written
}
