"""The executor's service on a fake host, a bus in memory and virtual time: what a control plane sees of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.control_plane import ControlPlane
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.runtime import FakeHost, FakeProgress, FakeRuntime, Program
from tests.support.memory_keeper import MemoryKeeper
from tests.support.runs import order
from tests.support.virtual_time import run_virtually
from weft.domain.cluster import Capacity
from weft.messages.nodes import EndReason, LogRead, ProgressSeen, ReadLog, StartRun
from weftd.executor import service
from weftd.executor.runs import RunKey
from weftd.executor.settings import ExecutorSettings

KEY = RunKey("job-1", 1, 0)


class World:
    """One node with its executor, and its control plane."""

    def __init__(self, program: Callable[[StartRun], Program]) -> None:
        now = asyncio.get_running_loop().time
        self.bus = MemoryBus()
        self.host = FakeHost(program, now=now)
        self.state_file = MemoryKeeper()
        self.progress = FakeProgress()
        self.control = ControlPlane(self.bus)
        self.capacity = Capacity(cpus=4, memory=1 << 30)

    @asynccontextmanager
    async def executor(self, **fields: Any) -> AsyncIterator[asyncio.Event]:
        stop = asyncio.Event()
        running = asyncio.create_task(
            service.run(
                ExecutorSettings(node_id="node-1", home=Path("unused")),
                bus=self.bus,
                runtime=FakeRuntime(self.host),
                progress=self.progress,
                state_file=self.state_file,
                capacity=lambda: self.capacity,
                stop=stop,
                clock=asyncio.get_running_loop().time,
                jitter=lambda: 0.5,
                **fields,
            )
        )
        await asyncio.sleep(0.1)  # it listens
        try:
            yield stop
        finally:
            stop.set()
            await running
            self.state_file.restarted()

    def alive(self) -> list[RunKey]:
        return [run.key for run in self.host.runs() if run.live]


def story(tell: Callable[[World], Awaitable[None]], program: Program | None = None) -> None:
    """Tell it on virtual time. `program` is what every run does."""

    async def told() -> None:
        world = World(lambda _: program or Program())
        await world.control.listen()
        await tell(world)

    run_virtually(told())


def test_a_run_that_waited_for_other_ranks_in_vain_is_reported_as_such() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            assert (await world.control.hears(KEY, "exited")).timed_out

    line = b"RuntimeError: [Gloo] Timed out waiting 1800000ms for recv operation to complete\n"
    story(tell, Program(seconds=1.0, exit_code=1, output=line))


def test_a_job_runs_ends_is_told_and_forgotten() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            assert (await world.control.hears(KEY, "running")).started_at is not None
            seen = await world.control.hears(KEY, "exited")
            assert (seen.exit_code, seen.reason) == (3, EndReason.EXIT)
            await asyncio.sleep(5)
            assert world.host.runs() == []
            assert world.host.starts == [KEY]

    story(tell, Program(seconds=10.0, exit_code=3))


def test_a_hint_and_an_end_are_acted_on_at_once() -> None:
    async def tell(world: World) -> None:
        loop = asyncio.get_running_loop()
        async with world.executor():
            await asyncio.sleep(0.5)
            began = loop.time()
            await world.control.want(order())
            await world.control.hears(KEY, "exited")
            assert loop.time() - began < 1.2

    story(tell, Program(seconds=1.0))


def test_a_burst_of_changes_makes_few_syncs() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await asyncio.sleep(1)
            before = len(world.control.reports)
            await world.control.want(*(order(f"job-{number}") for number in range(200)))
            await world.control.hears(RunKey("job-199", 1, 0), "exited")
            assert len(world.host.starts) == 200
            assert len(world.control.reports) - before < 60

    story(tell, Program(seconds=0.5))


def test_a_slow_start_holds_up_neither_other_starts_nor_ends() -> None:
    async def tell(world: World) -> None:
        slow = order("job-slow")
        async with world.executor():
            await world.control.want(slow, order())
            await world.control.hears(KEY, "running")
            await world.control.want(slow)
            seen = await world.control.hears(KEY, "exited")
            assert seen.reason is EndReason.STOPPED
            assert world.control.seen[RunKey("job-slow", 1, 0)].state == "starting"

    async def told() -> None:
        world = World(lambda asked: Program(start_seconds=600.0 if asked.job_id == "job-slow" else 0.0))
        await world.control.listen()
        await tell(world)

    run_virtually(told())


def test_a_start_that_took_too_long_begins_nothing_after_its_order_is_withdrawn() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            await asyncio.sleep(10)
            await world.control.want()
            await asyncio.sleep(100)
            assert world.host.starts == []

    story(tell, Program(start_seconds=60.0))


def test_a_node_that_is_cut_off_fences_itself_and_says_so_when_it_is_back() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order(grace=3600.0))
            await world.control.hears(KEY, "running")
            await world.control.fall_silent()
            await asyncio.sleep(85)
            assert world.alive() == [KEY]
            await asyncio.sleep(40)
            assert world.alive() == []
            await world.control.listen()
            seen = await world.control.hears(KEY, "exited")
            assert (seen.reason, seen.exit_code) == (EndReason.FENCED, 137)

    story(tell, Program(on_term=None))


def test_a_minute_of_silence_ends_nothing() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            await world.control.fall_silent()
            await asyncio.sleep(60)
            await world.control.listen()
            await asyncio.sleep(60)
            assert world.alive() == [KEY]

    story(tell)


def test_an_executor_restarted_while_cut_off_fences_as_if_it_had_not_been() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            await world.control.fall_silent()
            await asyncio.sleep(60)
        async with world.executor():
            await asyncio.sleep(25)
            assert world.alive() == [KEY]
            await asyncio.sleep(15)
            assert world.alive() == []

    story(tell)


def test_a_refusing_control_plane_does_not_keep_the_fence_up() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            world.control.refused = "an older incarnation"
            await asyncio.sleep(125)
            assert world.alive() == []

    story(tell)


def test_a_stopped_executor_leaves_its_jobs_and_the_next_one_adopts_them() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
        assert world.alive() == [KEY]
        async with world.executor():
            await asyncio.sleep(10)
            assert world.alive() == [KEY]
            assert world.host.starts == [KEY]
            assert world.control.reports[-1].incarnation == 2
            await world.control.want()
            assert (await world.control.hears(KEY, "exited")).reason is EndReason.STOPPED

    story(tell)


def test_an_executor_may_be_set_to_end_its_jobs_with_itself() -> None:
    async def tell(world: World) -> None:
        async with world.executor(stop_jobs_on_exit=True):
            await world.control.want(order(grace=3600.0))
            await world.control.hears(KEY, "running")
        assert world.alive() == []

    story(tell, Program(on_term=None))


def test_a_runtime_that_is_away_is_waited_for_and_nothing_is_said_meanwhile() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            world.host.available = False
            await asyncio.sleep(1)
            before = len(world.control.reports)
            await world.control.want(order("job-2"))
            await asyncio.sleep(20)
            assert len(world.control.reports) == before
            world.host.available = True
            await world.control.hears(RunKey("job-2", 1, 0), "running")
            assert world.control.seen[KEY].reason is EndReason.STOPPED

    story(tell)


def test_a_log_is_waited_for_and_read_to_its_end() -> None:
    async def tell(world: World) -> None:
        loop = asyncio.get_running_loop()

        async def read(offset: int, wait: float) -> LogRead:
            ask = ReadLog(node_id="node-1", job_id="job-1", epoch=1, rank=0, offset=offset, wait=wait)
            return await world.bus.request(ask, LogRead, seconds_max=30)

        async with world.executor():
            assert (await read(0, 0)).missing
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            assert (await read(0, 5)).data == b"hello\n"
            began = loop.time()
            assert (await read(6, 3)) == LogRead(offset=6, data=b"", size=6)
            assert loop.time() - began >= 3
            asked = asyncio.create_task(read(6, 10))
            await asyncio.sleep(1)
            world.host.write(KEY, b"more\n")
            assert (await asked).data == b"more\n"
            world.host.end(KEY, exit_code=0)
            assert (await read(11, 10)).ended

    story(tell, Program(output=b"hello\n"))


def test_progress_is_published_as_it_comes_and_told_with_the_end() -> None:
    async def tell(world: World) -> None:
        heard: list[ProgressSeen] = []

        async def hear(message: ProgressSeen) -> None:
            heard.append(message)

        await world.bus.subscribe(ProgressSeen, hear)
        async with world.executor():
            await world.control.want(order())
            await world.control.hears(KEY, "running")
            for step in range(100):
                world.progress.latest[KEY] = {"step": float(step)}
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)
            assert heard[-1].runs[0].progress == {"step": 99.0}
            assert len(heard) <= 13
            world.host.end(KEY, exit_code=0)
            assert (await world.control.hears(KEY, "exited")).progress == {"step": 99.0}

    story(tell)
