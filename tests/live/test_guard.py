"""Fencing where the executor cannot do it: stopped, killed for good, or without the guard's own health. Real processes.

The jobs tell by themselves when they ran: each writes its epoch and the time since boot, twenty times a second.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.control_plane import ControlPlane
from tests.support.guarded import (
    KEY,
    LEASE,
    SHORT,
    executor,
    guard_pid,
    guarded_by,
    resident,
    runs_tracing,
    spans,
    tracing,
)
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from tests.support.tier import some
from weft.bus.nats import NatsBus
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Role
from weft.messages.nodes import EndReason, NodeDesired, NodeReported
from weftd.cli.local.leftovers import kill_runs
from weftd.executor.files.home import Home
from weftd.executor.guard.engine import EngineSilentError, EngineSocket
from weftd.executor.guard.files import BEAT_BYTES, Beat, Slot
from weftd.executor.guard.watch import end
from weftd.executor.machine.boot import boot_clock
from weftd.executor.runtime.process import records

# one executor, and a control plane of a few lines


async def test_a_stopped_executors_runs_end_in_time_and_it_tells_so_when_it_goes_on(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    async with executor(server, home) as process:
        await runs_tracing(control, trace, heeds=False)
        process.send_signal(signal.SIGSTOP)
        stopped = boot_clock()
        await until(lambda: boot_clock() > stopped + LEASE)
        assert spans(trace)[1][1] < stopped + LEASE
        said = (home / "guard.log").read_text()
        assert [line.split("guard: ")[1].split(":")[0] for line in said.splitlines()] == [
            f"terminate {KEY}",
            f"kill {KEY}",
        ]
        process.send_signal(signal.SIGCONT)
        seen = await control.hears(KEY, "exited")
        assert (seen.reason, seen.exit_code) == (EndReason.FENCED, 137)


@pytest.mark.parametrize("cgroups", some(1, ["1", "0"]))
async def test_what_left_its_group_ends_too_though_its_shell_was_killed(
    server: NatsServer, control: ControlPlane, tmp_path: Path, cgroups: str
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    async with executor(server, home, EXECUTOR_CGROUPS=cgroups) as process:
        await control.want(order(command=("setsid", *tracing(trace, heeds=False)), grace=0.5))
        await control.hears(KEY, "running")
        await until(lambda: spans(trace))
        process.send_signal(signal.SIGSTOP)
        stopped = boot_clock()
        shell = records.shim_pid(Home(home).run(KEY))
        assert shell is not None
        os.kill(shell, signal.SIGKILL)
        await until(lambda: boot_clock() > stopped + LEASE)
        assert stopped + 1.0 < spans(trace)[1][1] < stopped + LEASE
        process.send_signal(signal.SIGCONT)
        assert (await control.hears(KEY, "exited")).reason is EndReason.FENCED


@pytest.mark.parametrize("cgroups", some(1, ["1", "0"]))
async def test_the_guard_asks_a_program_below_a_shell_after_the_shell(
    server: NatsServer, control: ControlPlane, tmp_path: Path, cgroups: str
) -> None:
    home, saved = tmp_path / "home", tmp_path / "saved"
    longer = {"EXECUTOR_FENCE_GRACE_MAX": "4", "EXECUTOR_LEASE_SECONDS": "10"}
    train = f"trap 'sleep 0.3; echo saved >{saved}; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    async with executor(server, home, **longer, EXECUTOR_CGROUPS=cgroups) as process:
        command = ("sh", "-c", 'sh -c "$TRAIN"; echo after')
        await control.want(order(command=command, env={"TRAIN": train}, grace=4.0))
        await control.hears(KEY, "running")
        log = home / "logs" / f"{KEY}.log"
        await until(lambda: log.exists() and b"up" in log.read_bytes())
        process.send_signal(signal.SIGSTOP)
        await until(saved.exists)
        assert "kill" not in (home / "guard.log").read_text()


async def test_a_killed_executors_runs_end_in_time_and_the_next_one_tells_so(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    async with executor(server, home) as process:
        await runs_tracing(control, trace)
        guard = guard_pid(home)
        process.kill()
        killed = boot_clock()
        await process.wait()
        await until(lambda: boot_clock() > killed + 1.0)
        assert guard_pid(home) == guard
        assert spans(trace)[1][1] > killed + 0.5, "it goes on within the fence"
        await until(lambda: guard_pid(home) is None)
        assert spans(trace)[1][1] < killed + LEASE
        async with executor(server, home):
            assert (await control.hears(KEY, "exited")).reason is EndReason.FENCED


async def test_an_executor_that_is_back_in_time_loses_nothing(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    longer = {"EXECUTOR_FENCE_SECONDS": "8", "EXECUTOR_LEASE_SECONDS": "20"}  # so that a slow start is in time
    async with executor(server, home, **longer) as process:
        await runs_tracing(control, trace)
        first = guard_pid(home)
        process.kill()
        killed = boot_clock()
        await process.wait()
        async with executor(server, home, **longer):
            await until(lambda: boot_clock() > killed + 12.0)
            assert guarded_by(home, other_than=first)()
            assert control.seen[KEY].state == "running"
            assert spans(trace)[1][1] > killed + 11.0


async def test_a_guard_that_is_killed_is_started_again(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with executor(server, home):
        await until(lambda: control.reports)
        first = guard_pid(home)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(guarded_by(home, other_than=first))


async def test_a_guard_that_hangs_is_replaced(server: NatsServer, control: ControlPlane, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with executor(server, home):
        await until(lambda: control.reports)
        first = guard_pid(home)
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        await until(guarded_by(home, other_than=first))
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


async def test_the_guard_ends_with_its_executor_when_nothing_runs(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with executor(server, home) as process:
        await until(lambda: control.reports)
        assert guard_pid(home) is not None
        process.terminate()
        assert await process.wait() == 0
        assert guard_pid(home) is None


async def test_the_guard_stays_for_as_long_as_a_run_is_left(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    async with executor(server, home) as process:
        await runs_tracing(control, trace)
        process.terminate()
        assert await process.wait() == 0
        assert guard_pid(home) is not None
        assert kill_runs(tmp_path) == [str(KEY)]
        await until(lambda: guard_pid(home) is None)


async def test_the_guard_is_small_and_outlives_the_executors_session(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    async with executor(server, home):
        await until(lambda: control.reports)
        pid = guard_pid(home)
        assert pid is not None
        assert os.getsid(pid) == pid
        assert resident(pid) < 24 << 20


async def test_an_answer_that_waited_while_the_executor_was_stopped_starts_nothing(
    server: NatsServer, tmp_path: Path
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    async with NatsBus.connect(server.url, name="control") as bus, executor(server, home) as process:
        control = LateControlPlane(bus)
        await control.listen()
        await until(lambda: control.reports)
        control.late.clear()
        await until(lambda: control.waiting)
        process.send_signal(signal.SIGSTOP)
        stopped = boot_clock()
        await control.want(order(command=tracing(trace)), hint=False)
        control.late.set()
        await control.fall_silent()  # when it has answered
        await until(lambda: boot_clock() > stopped + LEASE)
        process.send_signal(signal.SIGCONT)
        went_on = boot_clock()
        await until(lambda: boot_clock() > went_on + 2.0)
        assert not trace.exists()
        await control.listen()
        await control.hears(KEY, "running")
        await until(lambda: spans(trace))
        assert spans(trace)[1][0] > went_on + 2.0
        # The fence had fallen before it began; when it falls again, it has its grace all the same.
        process.send_signal(signal.SIGSTOP)
        await until(lambda: f"terminate {KEY}" in (home / "guard.log").read_text())


class LateControlPlane(ControlPlane):
    """It answers when it is told to."""

    def __init__(self, bus: NatsBus) -> None:
        super().__init__(bus)
        self.late = asyncio.Event()
        self.late.set()
        self.waiting = False

    async def _answer(self, report: NodeReported) -> NodeDesired:
        self.waiting = not self.late.is_set()
        await self.late.wait()
        return await super()._answer(report)


async def test_a_full_disk_fences_nobody_and_keeps_nobody_from_being_fenced(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    with small_disk(tmp_path / "disk") as disk:
        async with executor(server, disk / "home") as process:
            await runs_tracing(control, trace, heeds=False)
            fill(disk)
            full = boot_clock()
            await until(lambda: boot_clock() > full + LEASE)
            assert spans(trace)[1][1] > full + LEASE - 1.0, "nobody is fenced"
            process.send_signal(signal.SIGSTOP)
            stopped = boot_clock()
            await until(lambda: boot_clock() > stopped + LEASE)
            assert spans(trace)[1][1] < stopped + LEASE
            process.send_signal(signal.SIGCONT)
            assert (await control.hears(KEY, "exited")).reason is EndReason.FENCED


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "weft", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("we may not mount a small disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    with open(disk / "filling", "wb", buffering=0) as file, suppress(OSError):
        file.writelines(b"x" * 4096 for _ in range(1 << 20))
    assert os.statvfs(disk).f_bavail == 0


async def test_a_standing_guard_is_left_alone_and_outlives_the_executor(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    standing = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "weftd.executor.guard", str(home), "--standing"
    )
    try:
        await until((home / "guard").exists)
        async with executor(server, home) as process:
            await runs_tracing(control, trace, heeds=False)
            assert guard_pid(home) == standing.pid
            process.kill()
            killed = boot_clock()
            await until(lambda: boot_clock() > killed + LEASE)
            assert spans(trace)[1][1] < killed + LEASE
            assert guard_pid(home) == standing.pid
            standing.kill()
            await standing.wait()
            async with executor(server, home):
                assert (await control.hears(KEY, "exited")).reason is EndReason.FENCED
                await until(guarded_by(home, other_than=standing.pid))
    finally:
        if standing.returncode is None:
            standing.kill()
        await standing.wait()


@pytest.mark.nightly
async def test_without_fencing_a_node_that_is_cut_off_lets_its_jobs_run_on(
    server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    async with executor(server, home, EXECUTOR_FENCING="0"):
        await runs_tracing(control, trace)
        assert guard_pid(home) is None
        await control.fall_silent()
        silent = boot_clock()
        await until(lambda: spans(trace)[1][1] > silent + LEASE)


# its parts


def test_the_number_of_a_guard_that_another_programs_thread_has_now_is_left_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    over, begun = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (begun.set(), over.wait()))
    thread.start()
    try:
        begun.wait()
        slot = Slot(home.root / "guard", BEAT_BYTES)
        slot.write(Beat(pid=thread.native_id or 0, at=boot_clock()))
        slot.close()
        end(home)  # as after a power cut, when numbers begin anew
        assert thread.is_alive()
    finally:
        over.set()
        thread.join()


def test_an_engine_that_hangs_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "s"))
        hung.listen()
        began = boot_clock()
        with pytest.raises(EngineSilentError):
            EngineSocket(f"unix://{tmp_path}/s").containers({})
        assert boot_clock() - began < 20


# a whole cluster: the job goes on elsewhere, and never twice at once


@asynccontextmanager
async def cluster(home: Path, **settings: str) -> AsyncIterator[Cluster]:
    async with embedded_cluster(home, nodes=2, gpus=1, settings={**SHORT, **settings}) as made:
        yield made


async def moved(made: Cluster, trace: Path) -> dict[int, tuple[float, float]]:
    """When each epoch of a job ran whose first node's executor was stopped, and went on when the second had begun."""
    spec = JobSpec(name="trace", command=tracing(trace, heeds=False), roles={"worker": Role(gpus=1)}, grace="30s")
    job = await made.client.submit(spec)
    first = await made.state(job.id, JobState.RUNNING)
    await until(lambda: spans(trace))
    pid = made.local.pids[f"executor-{first.runs[0].node_id}"]
    os.kill(pid, signal.SIGSTOP)
    await made.until(job.id, lambda view: view.epoch > first.epoch and view.state is JobState.RUNNING)
    await until(lambda: len(spans(trace)) > 1)
    second = max(spans(trace))
    began = spans(trace)[second][0]
    await until(lambda: spans(trace)[second][1] > began + 2.0)
    os.kill(pid, signal.SIGCONT)
    await until(lambda: spans(trace)[second][1] > began + 4.0)
    found = spans(trace)
    await made.client.cancel(job.id)
    return found


def overlap(found: dict[int, tuple[float, float]]) -> float:
    """How long two epochs ran at once, in seconds."""
    (_, first_ended), (second_began, _) = (found[epoch] for epoch in sorted(found)[:2])
    return max(0.0, first_ended - second_began)


async def test_a_stopped_executors_job_goes_on_elsewhere_and_never_twice_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path / "home") as made:
        found = await moved(made, tmp_path / "trace")
    assert len(found) == 2
    assert overlap(found) == 0


@pytest.mark.nightly
async def test_without_the_guard_a_stopped_executors_job_runs_twice_at_once(tmp_path: Path) -> None:
    """The check that the check works."""
    async with cluster(tmp_path / "home", EXECUTOR_GUARD="0") as made:
        found = await moved(made, tmp_path / "trace")
    assert overlap(found) > 1
