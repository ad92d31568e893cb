"""Slot folders go with their runs, whatever a run left in them and however far its start came."""

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.fake_engine import RESET, FakeEngine, fake_engine
from tests.support.odd_folders import make_deep, swept
from tests.support.runs import in_state, order, until
from tests.support.tier import of_tier
from weft.domain.cluster import Gpu
from weft.domain.shares import Share
from weft.emulation.device import EmulatedDriver
from weft.messages.nodes import RunState
from weft.sharing.places import slot_of
from weft.sharing.slots import JOB, LIMITS, SOCKET, USE, slot_names
from weftd.executor.files.home import Home
from weftd.executor.leave import LeaveFile
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.runtime.docker.runtime import DockerRuntime
from weftd.executor.runtime.docker.settings import ContainerSettings
from weftd.executor.runtime.process import starter as process
from weftd.executor.runtime.process.runtime import ProcessRuntime
from weftd.executor.shares import hook
from weftd.executor.shares.hook import DISCARDED, HookBackend, PlacedDriver

GIB = 1 << 30
DEPTH = of_tier(1_100, 10_000)  # folders; Python's own removal recurses, and raises at a thousand
GPU = Gpu(index=0, uuid="GPU-0", model="A100", memory=80 * GIB)
ORDER = replace(order("job-1", gpus=(0,)), share=Share(request=500, memory=GIB, kind="batch"))
KEY = RunKey.of(ORDER)


@pytest.fixture
def root() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="wsl-"))  # a short path, as sockets need
    with swept(folder):
        yield folder / "s"


@pytest.fixture
async def backend(root: Path, tmp_path: Path) -> AsyncIterator[HookBackend]:
    """With an arbiter that does no more than to serve every slot."""

    async def serve() -> None:
        while True:
            for name in slots(root):
                for file in (LIMITS, USE, SOCKET):
                    (root / name / JOB / file).touch()
            await asyncio.sleep(0.005)

    serving = asyncio.create_task(serve())
    made = backend_of(root, tmp_path)
    yield made
    made.close()
    serving.cancel()


def backend_of(root: Path, tmp_path: Path) -> HookBackend:
    own = PlacedDriver(EmulatedDriver(), folder=tmp_path / "driver", devices=tmp_path / "devices")
    return HookBackend(root, hook=tmp_path / "hook.so", own=own, needed=lambda: None)


def node(tmp_path: Path) -> NodeFacts:
    return NodeFacts(
        node_id="node-1",
        address="127.0.0.1",
        checkpoints=str(tmp_path / "checkpoints"),
        results=str(tmp_path / "results"),
        gpus=(GPU,),
    )


def slots(root: Path) -> list[str]:
    return slot_names(root) if root.is_dir() else []


def emptied(root: Path) -> bool:
    return os.listdir(root) == [DISCARDED] and not os.listdir(root / DISCARDED)


async def attached(backend: HookBackend, root: Path) -> Path:
    await backend.attach(ORDER, GPU, contained=False)
    return root / slot_of(KEY.job_id, KEY.epoch, KEY.rank) / JOB


async def test_a_slot_deeper_than_python_recurses_goes_with_its_run(backend: HookBackend, root: Path) -> None:
    make_deep(await attached(backend, root) / "deep", DEPTH)
    backend.detach(KEY)
    assert slots(root) == []
    assert backend.held(KEY) is None
    await until(lambda: emptied(root))


async def test_the_next_executor_removes_a_deep_slot_of_a_run_that_has_ended(
    backend: HookBackend, root: Path, tmp_path: Path
) -> None:
    make_deep(await attached(backend, root) / "deep", DEPTH)
    following = backend_of(root, tmp_path)
    await following.keep([])
    assert slots(root) == []
    await until(lambda: emptied(root))
    following.close()


async def test_a_slot_that_no_arbiter_serves_is_not_left(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "SERVED_SECONDS_MAX", 0.05)
    backend = backend_of(root, tmp_path)
    with pytest.raises(RuntimeUnavailableError, match="the arbiter of this node does not answer"):
        await backend.attach(ORDER, GPU, contained=False)
    assert slots(root) == []
    backend.close()


async def test_a_process_that_cannot_be_spawned_leaves_no_slot(
    backend: HookBackend, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EAGAIN, "no process left")

    monkeypatch.setattr(process, "spawn", refuse)
    runtime = await ProcessRuntime.open(Home(tmp_path / "home"), node(tmp_path), inherited=os.environ, shares=backend)
    with pytest.raises(RuntimeUnavailableError, match="no process left"):
        await runtime.start(ORDER)
    assert slots(root) == []
    await runtime.close()


async def test_a_process_whose_leave_to_start_has_run_out_leaves_no_slot(
    backend: HookBackend, root: Path, tmp_path: Path
) -> None:
    fallen = LeaveFile(tmp_path / "leave", fence_seconds=1.0)
    fallen.renew(0.0)
    runtime = await ProcessRuntime.open(
        Home(tmp_path / "home"), node(tmp_path), inherited=os.environ, shares=backend, leave=fallen.now
    )
    await runtime.start(ORDER)
    await until(lambda: not slots(root))
    assert await runtime.runs() == []
    await runtime.close()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as (engine, address):
        monkeypatch.setenv("DOCKER_HOST", address)
        yield engine


async def test_the_slot_of_a_container_goes_only_if_there_is_none_that_could_begin(
    backend: HookBackend, root: Path, tmp_path: Path, engine: FakeEngine
) -> None:
    settings = ContainerSettings(egress_by="off", engine_files=False)
    runtime = await DockerRuntime.open(Home(tmp_path / "home"), node(tmp_path), settings, shares=backend)
    ordered = replace(ORDER, image="an-image")
    for refused, stays in (("/containers/create", False), ("/containers/[^/]+/start", True)):
        engine.amiss["POST", refused] = (200, RESET)
        with pytest.raises(RuntimeUnavailableError):
            await runtime.start(ordered)
        engine.amiss.clear()
        engine.asked.clear()
        await until(lambda: engine.asked.count(("GET", "/containers/json")) > 2)
        assert bool(slots(root)) is stays, refused
    await runtime.start(ordered)
    await in_state(runtime, KEY, RunState.RUNNING)
    assert len(slots(root)) == 1
    await runtime.signal(KEY, kill=True)
    await in_state(runtime, KEY, RunState.EXITED)
    await runtime.remove(KEY)
    assert slots(root) == []
    await runtime.close()
