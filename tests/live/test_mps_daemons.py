"""The executor starts, finds and ends MPS daemons, and reports the runs whose daemon died. The daemons, the GPU and its
driver are emulated."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.domain.cluster import Gpu
from libs.domain.shares import Share
from libs.messages.nodes import StartRun
from libs.messages.signals import GpuProcess, GpuSample
from libs.sharing.native import Built
from services.executor.home import Home
from services.executor.runs import RunKey, RuntimeUnavailableError
from services.executor.shares import mps, mps_daemon
from services.executor.shares.backend import MPS, ShareBackend
from services.executor.shares.opening import SharesUnavailableError, opened
from tests.support.mps import LAUNCHES, daemons, no_daemon_is_left, pipe_of
from tests.support.odd_folders import swept
from tests.support.runs import order, until

MIB = 1 << 20
GPU = Gpu(index=0, uuid="emulated-0", model="emulated", memory=4096 * MIB, emulated=True)
OTHER_GPU = replace(GPU, index=1, uuid="emulated-1")
SHARE = Share(request=300, limit=500, memory=256 * MIB, kind="batch")
ORDER = replace(order("job-1", gpus=(0,)), share=SHARE)
BESIDE = replace(order("job-2", gpus=(0,)), share=SHARE)
KEY, BESIDE_KEY = RunKey.of(ORDER), RunKey.of(BESIDE)

pytestmark = pytest.mark.alone


def begun(env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHES],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


class Node:
    """The back-end of one home, opened again and again as executors do, and the processes of its runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._stack = AsyncExitStack()
        self.backend: ShareBackend
        self.processes: list[subprocess.Popen[str]] = []

    async def open(self, *keys: RunKey) -> None:
        """As an executor does that finds these runs."""
        self.backend = await self._stack.enter_async_context(opened(MPS, Home(self.home), emulated=True))
        await self.backend.keep(keys)

    async def close(self) -> None:
        await self._stack.aclose()

    async def run(self, order: StartRun, gpu: Gpu = GPU, **changed: str | None) -> subprocess.Popen[str]:
        """A process of the run that launches without an end. `changed`: variables that its job changed, or dropped."""
        attached = await self.backend.attach(order, gpu, contained=False)
        run = {"WEFT_JOB_ID": order.job_id, "WEFT_EPOCH": str(order.epoch), "WEFT_RANK": str(order.rank)}
        env = attached.added_to({**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **run})
        given = {name: value for name, value in {**env, **changed}.items() if value is not None}
        process = begun(given)
        self.processes.append(process)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        return process

    async def daemon(self, gpu: Gpu = GPU) -> int:
        """The daemon of a GPU, once there is one."""
        await until(lambda: gpu.uuid in daemons(self.home))
        return daemons(self.home)[gpu.uuid]

    async def escaped(self, memory: int, *processes: tuple[RunKey, subprocess.Popen[str]]) -> set[str]:
        """The jobs that are to be ended, after telemetry saw these processes twice on the GPU."""
        seen = tuple(
            GpuProcess(pid=each.pid, memory_used=memory, job_id=key.job_id, epoch=key.epoch, rank=key.rank)
            for key, each in processes
        )
        sample = GpuSample(index=GPU.index, uuid=GPU.uuid, model=GPU.model, provider="emulated", processes=seen)
        await self.backend.escaped([sample])
        return {key.job_id for key in await self.backend.escaped([sample])}


@pytest.fixture
async def node(built: Built) -> AsyncIterator[Node]:
    assert built.driver_folder.is_dir()
    folder = Path(tempfile.mkdtemp(prefix="wmps-"))  # a short path, as sockets need
    with swept(folder), no_daemon_is_left(folder):
        made = Node(folder / "h")
        yield made
        for process in made.processes:
            process.kill()
            process.communicate()
        await made.close()


async def test_each_gpu_has_a_daemon_of_its_own_that_sees_no_other_and_has_not_the_default_folder(node: Node) -> None:
    await node.open()
    assert daemons(node.home) == {}
    await node.run(ORDER)
    await node.run(BESIDE, OTHER_GPU)
    one, two = await node.daemon(), await node.daemon(OTHER_GPU)
    assert one != two
    assert len({pipe_of(one), pipe_of(two), Path("/tmp/nvidia-mps")}) == 3
    assert pipe_of(one).is_relative_to(node.home)
    assert pipe_of(one).stat().st_mode & 0o077 == 0


async def test_a_daemon_ends_with_the_last_share_of_its_gpu(node: Node) -> None:
    await node.open()
    for asked in (ORDER, BESIDE):
        await node.backend.attach(asked, GPU, contained=False)
    daemon = await node.daemon()
    node.backend.detach(KEY)
    await asyncio.sleep(2 * mps.LOOK_SECONDS)
    assert daemons(node.home) == {GPU.uuid: daemon}
    node.backend.detach(BESIDE_KEY)
    await until(lambda: daemons(node.home) == {})
    await node.backend.attach(ORDER, GPU, contained=False)
    assert await node.daemon() != daemon


async def test_the_next_executor_finds_the_daemon_of_the_runs_that_are_left_and_they_go_on(node: Node) -> None:
    await node.open()
    job = await node.run(ORDER)
    daemon = await node.daemon()
    await node.close()
    assert daemons(node.home) == {GPU.uuid: daemon}
    await node.open(KEY)
    await node.backend.attach(BESIDE, GPU, contained=False)
    assert daemons(node.home) == {GPU.uuid: daemon}
    assert (job.poll(), node.backend.broke(KEY)) == (None, "")
    assert await node.escaped(MIB, (KEY, job)) == set()
    job.kill()
    job.wait()
    await node.close()
    await until(lambda: not daemons(node.home))  # no run uses it


async def test_a_daemon_that_dies_is_started_again_and_is_told_of_by_those_alone_that_were_its_clients(
    node: Node,
) -> None:
    await node.open()
    job = await node.run(ORDER)
    await node.backend.attach(BESIDE, GPU, contained=False)
    daemon = await node.daemon()
    await asyncio.sleep(2 * mps.LOOK_SECONDS)
    os.kill(daemon, signal.SIGKILL)
    assert await asyncio.to_thread(job.wait, 10) != 0
    assert node.backend.broke(KEY) == mps.LOST, "as soon as it ends"
    await until(lambda: daemons(node.home).get(GPU.uuid, daemon) != daemon)
    assert (node.backend.broke(KEY), node.backend.broke(BESIDE_KEY)) == (mps.LOST, "")
    again = await node.run(BESIDE)
    assert await node.escaped(MIB, (BESIDE_KEY, again)) == set()
    node.backend.detach(KEY)
    assert node.backend.broke(KEY) == ""


async def test_an_error_that_nobody_expects_ends_the_care_for_no_other_daemon(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await node.open()
    job = await node.run(ORDER)
    daemon = await node.daemon()
    clients, errors = mps_daemon.MpsDaemon.clients, 1

    async def once_odd(self: mps_daemon.MpsDaemon) -> Mapping[int, frozenset[int]]:
        nonlocal errors
        if errors:
            errors -= 1
            raise ZeroDivisionError("odd")
        return await clients(self)

    monkeypatch.setattr(mps_daemon.MpsDaemon, "clients", once_odd)
    await until(lambda: "was not looked after" in caplog.text)
    os.kill(daemon, signal.SIGKILL)
    assert await asyncio.to_thread(job.wait, 10) != 0
    await until(lambda: daemons(node.home).get(GPU.uuid, daemon) != daemon)


async def test_a_daemon_that_hangs_delays_the_care_for_no_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.open()
    await node.run(ORDER)
    job = await node.run(BESIDE, OTHER_GPU)
    daemon, hung_pipe = await node.daemon(OTHER_GPU), pipe_of(await node.daemon())
    clients, asked = mps_daemon.MpsDaemon.clients, asyncio.Event()

    async def hangs(self: mps_daemon.MpsDaemon) -> Mapping[int, frozenset[int]]:
        if self.pipe == hung_pipe:
            asked.set()
            await asyncio.Event().wait()
        return await clients(self)

    monkeypatch.setattr(mps_daemon.MpsDaemon, "clients", hangs)
    await asyncio.wait_for(asked.wait(), 10)
    os.kill(daemon, signal.SIGKILL)
    assert await asyncio.to_thread(job.wait, 10) != 0
    await until(lambda: daemons(node.home).get(OTHER_GPU.uuid, daemon) != daemon)


async def test_a_pid_of_thousands_of_digits_is_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    says = ("sh", "-c", f"printf {'9' * 5000}")
    daemon = mps_daemon.MpsDaemon(says, gpu=GPU.uuid, pipe=tmp_path / "pipe", log=tmp_path / "log")
    with pytest.raises(mps_daemon.DaemonSilentError, match="said to get_server_list: 9999"):
        await daemon.clients()


async def test_a_daemon_that_died_while_there_was_no_executor_is_started_again_and_told_of(node: Node) -> None:
    await node.open()
    job = await node.run(ORDER)
    daemon = await node.daemon()
    await node.close()
    job.send_signal(signal.SIGSTOP)  # it has not noticed yet
    os.kill(daemon, signal.SIGKILL)
    await node.open(KEY)
    assert await node.daemon() != daemon
    assert node.backend.broke(KEY) == mps.LOST
    assert await node.escaped(MIB, (KEY, job)) == set(), "it is no fault of the job"


async def test_a_daemon_that_hangs_when_an_executor_begins_has_not_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.open()
    await node.run(ORDER)
    daemon = await node.daemon()
    await node.close()
    monkeypatch.setattr(mps_daemon, "SAY_SECONDS_MAX", 0.3)
    os.kill(daemon, signal.SIGSTOP)
    await node.open(KEY)
    os.kill(daemon, signal.SIGCONT)
    await asyncio.sleep(3 * mps.LOOK_SECONDS)
    assert (node.backend.broke(KEY), daemons(node.home)) == ("", {GPU.uuid: daemon})


async def test_a_daemon_that_hangs_is_waited_for_a_bounded_time_and_no_job_starts_beside_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.open()
    await node.backend.attach(ORDER, GPU, contained=False)
    daemon = await node.daemon()
    monkeypatch.setattr(mps_daemon, "SAY_SECONDS_MAX", 0.3)
    os.kill(daemon, signal.SIGSTOP)
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeUnavailableError, match=r"job-2.*the MPS daemon of GPU emulated-0 cannot be started"):
            await node.backend.attach(BESIDE, GPU, contained=False)
    os.kill(daemon, signal.SIGCONT)
    await until(lambda: daemons(node.home) == {GPU.uuid: daemon})
    await node.backend.attach(BESIDE, GPU, contained=False)


@pytest.mark.parametrize(
    "changed",
    [
        {"CUDA_MPS_PIPE_DIRECTORY": None},
        {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": None},
        {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": None},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "emulated-0=256M,emulated-9=1G"},
    ],
)
async def test_a_process_that_mps_does_not_hold_to_the_share_is_found_and_its_neighbours_are_not(
    node: Node, changed: dict[str, str | None]
) -> None:
    await node.open()
    out, held = await node.run(ORDER, **changed), await node.run(BESIDE)
    assert await node.escaped(MIB, (KEY, out), (BESIDE_KEY, held)) == {"job-1"}


async def test_less_than_the_share_is_nobodys_concern(node: Node) -> None:
    await node.open()
    job = await node.run(ORDER, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="20")
    assert await node.escaped(MIB, (KEY, job)) == set()


async def test_processes_that_have_more_memory_than_the_share_together_are_found(node: Node) -> None:
    await node.open()
    one, two = await node.run(ORDER), await node.run(ORDER)
    assert await node.escaped(SHARE.memory // 2, (KEY, one), (KEY, two)) == set()
    assert await node.escaped(SHARE.memory // 2 + MIB, (KEY, one), (KEY, two)) == {"job-1"}


async def test_a_process_that_has_ended_or_was_seen_once_is_nobodys_concern(node: Node) -> None:
    await node.open()
    out = await node.run(ORDER, CUDA_MPS_PIPE_DIRECTORY=None)
    out.kill()
    out.wait()
    assert await node.escaped(MIB, (KEY, out)) == set()
    again = await node.run(ORDER, CUDA_MPS_PIPE_DIRECTORY=None)
    seen = GpuProcess(pid=again.pid, job_id=KEY.job_id, epoch=KEY.epoch, rank=KEY.rank)
    sample = GpuSample(index=GPU.index, uuid=GPU.uuid, model=GPU.model, provider="emulated", processes=(seen,))
    assert await node.backend.escaped([sample]) == frozenset()
    assert await node.backend.escaped([replace(sample, processes=())]) == frozenset()
    assert await node.backend.escaped([sample]) == frozenset()
    assert await node.backend.escaped([sample]) == {KEY}


async def test_a_run_that_is_removed_while_its_daemon_is_asked_is_nobodys_concern(node: Node) -> None:
    await node.open()
    job = await node.run(ORDER, CUDA_MPS_PIPE_DIRECTORY=None)
    seen = GpuProcess(pid=job.pid, job_id=KEY.job_id, epoch=KEY.epoch, rank=KEY.rank)
    sample = GpuSample(index=GPU.index, uuid=GPU.uuid, model=GPU.model, provider="emulated", processes=(seen,))
    asking = asyncio.create_task(node.backend.escaped([sample]))
    await asyncio.sleep(0)
    node.backend.detach(KEY)
    assert await asking == frozenset()


async def test_real_gpus_need_nvidias_control_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SharesUnavailableError, match="need NVIDIA's nvidia-cuda-mps-control"):
        async with opened(MPS, Home(tmp_path / "h")):
            pass
