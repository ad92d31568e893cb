"""No answer of a Docker engine ends an executor: it fails one action, which is tried again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fake_engine import RESET, FakeEngine, fake_engine
from tests.support.hands import made_hands
from tests.support.runs import find, in_state, order
from weft.messages.nodes import RunState, StartRun
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runs import Limits, Run, RunKey, RuntimeUnavailableError
from weftd.executor.runtime.docker.runtime import DockerRuntime
from weftd.executor.runtime.docker.settings import ContainerSettings
from weftd.executor.thinking.core import Action, Kill, Remove, Resize, Start, Terminate

KEY = RunKey("job-1", 1, 0)
ORDER = order("job-1", image="an-image")

AMISS = {
    "500": (500, b'{"message": "the engine has a problem"}'),
    "409": (409, b'{"message": "a conflict"}'),
    "garbage": (200, b"<html>"),
    "an error that is no object": (500, b"[]"),
    "an empty object": (200, b"{}"),
    "another shape": (200, b'[{"Id": 5}, 7, null]'),
    "reset": (200, RESET),
}
# What is asked while the action is under way. An answer to a create, start or kill itself may end the run.
ASKED = [
    ("start", "GET", "/networks"),
    ("start", "POST", "/networks/create"),
    ("start", "POST", "/containers/create"),
    ("start", "POST", "/containers/[^/]+/start"),
    ("start", "GET", "/containers/json"),
    ("start", "GET", "/containers/[^/]+/json"),
    ("terminate", "POST", "/containers/[^/]+/kill"),
    ("kill", "POST", "/containers/[^/]+/kill"),
    ("kill", "GET", "/containers/json"),
    ("remove", "DELETE", "/containers/[^/]+"),
    ("remove", "GET", "/networks"),
    ("resize", "POST", "/containers/[^/]+/update"),
    ("resize", "GET", "/containers/[^/]+/json"),
    ("resize", "GET", "/containers/[^/]+/stats"),
]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as (engine, address):
        monkeypatch.setenv("DOCKER_HOST", address)
        yield engine


@pytest.fixture
async def runtime(engine: FakeEngine, tmp_path: Path) -> AsyncIterator[DockerRuntime]:
    node = NodeFacts(node_id="node-1", checkpoints=str(tmp_path / "checkpoints"), results=str(tmp_path / "results"))
    settings = ContainerSettings(egress_by="off", engine_files=False)
    opened = await DockerRuntime.open(Home(tmp_path / "home"), node, settings)
    yield opened
    engine.amiss.clear()
    await opened.close()


async def unasked(order: StartRun) -> StartRun:
    raise AssertionError(f"{order.job_id} has no secrets")


async def carry_out(runtime: DockerRuntime, action: Action) -> None:
    """As the executor does. An exception that gets out of it would end the executor, and fails the test."""
    done = asyncio.Event()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        actions = made_hands(
            runtime,
            tasks,
            with_secrets=unasked,
            done=done.set,
            failed=lambda _: done.set(),
            not_applied=lambda _, __: done.set(),
        )
        actions.take([action])
        await done.wait()
        actions.drop()


async def in_place(runtime: DockerRuntime, engine: FakeEngine, action: str) -> Action:
    """Everything as the action finds it."""
    if action == "start":
        return Start(ORDER)
    await runtime.start(ORDER)
    await in_state(runtime, KEY, RunState.RUNNING)
    match action:
        case "terminate":
            return Terminate(KEY)
        case "kill":
            return Kill(KEY)
        case "resize":
            return Resize(KEY, Limits(cpus=2.0, memory=64 << 20))
    await runtime.signal(KEY, kill=True)
    await in_state(runtime, KEY, RunState.EXITED)
    return Remove(KEY)


@pytest.mark.parametrize("amiss", AMISS)
@pytest.mark.parametrize(("action", "method", "path"), ASKED)
async def test_no_answer_of_the_engine_ends_an_executor(
    runtime: DockerRuntime, engine: FakeEngine, action: str, method: str, path: str, amiss: str
) -> None:
    deed = await in_place(runtime, engine, action)
    engine.amiss[method, path] = AMISS[amiss]
    await carry_out(runtime, deed)
    with suppress(RuntimeUnavailableError):
        await runtime.runs()
    engine.amiss.clear()
    await until_done(runtime, deed)


async def until_done(runtime: DockerRuntime, deed: Action) -> None:
    """It is tried again until the run is as it should be."""
    async with asyncio.timeout(30):
        while True:
            await carry_out(runtime, deed)
            with suppress(RuntimeUnavailableError):
                if is_done(deed, await find(runtime, KEY)):
                    return
            await runtime.changed()


def is_done(deed: Action, run: Run | None) -> bool:
    match deed:
        case Start():
            return run is not None
        case Remove():
            return run is None
        case Resize():
            return run is not None and run.live
        case _:
            return run is not None and not run.live


async def test_a_run_starts_once_the_engine_tells_of_its_networks_again(
    runtime: DockerRuntime, engine: FakeEngine
) -> None:
    engine.amiss["GET", "/networks"] = AMISS["500"]
    with pytest.raises(RuntimeUnavailableError, match="the engine has a problem"):
        await runtime.start(ORDER)
    assert await runtime.runs() == []
    engine.amiss.clear()
    await runtime.start(ORDER)
    assert (await in_state(runtime, KEY, RunState.RUNNING)).live


async def test_a_list_of_containers_that_is_none_does_not_mean_that_all_are_gone(
    runtime: DockerRuntime, engine: FakeEngine
) -> None:
    await runtime.start(ORDER)
    await in_state(runtime, KEY, RunState.RUNNING)
    engine.amiss["GET", "/containers/json"] = AMISS["an empty object"]
    with pytest.raises(RuntimeUnavailableError):
        await live_for_ever(runtime)
    engine.amiss.clear()
    await until_live(runtime)


async def live_for_ever(runtime: DockerRuntime) -> None:
    async with asyncio.timeout(10):
        while True:
            assert [run.live for run in await runtime.runs()] == [True]
            await runtime.changed()


async def until_live(runtime: DockerRuntime) -> None:
    async with asyncio.timeout(10):
        while True:
            with suppress(RuntimeUnavailableError):
                assert [run.live for run in await runtime.runs()] == [True]
                return
            await runtime.changed()


async def test_a_status_that_no_process_ends_with_is_told_as_255(runtime: DockerRuntime, engine: FakeEngine) -> None:
    await runtime.start(ORDER)
    await in_state(runtime, KEY, RunState.RUNNING)
    with engine.lock:
        (container,) = engine.containers.values()
        engine.end(container, 1 << 40)
    assert (await in_state(runtime, KEY, RunState.EXITED)).exit_code == 255
