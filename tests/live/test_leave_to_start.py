"""A run begins only while its node's fence stands, and has stood since it was permitted: its shell sees to that."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.guarded import KEY
from tests.support.runs import in_state, order
from weft.messages.nodes import RunState
from weftd.executor.files.home import Home
from weftd.executor.leave import LeaveFile
from weftd.executor.machine.boot import boot_clock
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runs import Limits
from weftd.executor.runtime.limits.cgroup import NoCgroups
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.runtime import ProcessRuntime
from weftd.executor.thinking.pinning import Pin

FENCE = 60.0


class Gate(NoCgroups):
    """A stand-in for a cgroup: its `cgroup.procs` is a pipe. A shell that joins it blocks until `open` is called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        os.mkfifo(folder / "cgroup.procs")

    def create(self, name: str, limits: Limits, pin: Pin | None = None) -> dict[str, str]:
        return {"gate": str(self._folder)}

    def open(self) -> None:
        with (self._folder / "cgroup.procs").open() as pipe:
            pipe.read()


@pytest.fixture
def leave(tmp_path: Path) -> LeaveFile:
    return LeaveFile(tmp_path / "leave", FENCE)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
async def runtime(tmp_path: Path, leave: LeaveFile, gate: Gate) -> AsyncIterator[ProcessRuntime]:
    node = NodeFacts(
        node_id="node-1", gpus=(), checkpoints=str(tmp_path / "checkpoints"), results=str(tmp_path / "results")
    )
    opened = await ProcessRuntime.open(
        Home(tmp_path), node, inherited=os.environ, cgroups=gate, leave=lambda: leave.now()
    )
    yield opened
    await opened.close()


async def none_is_left(runtime: ProcessRuntime) -> None:
    async with asyncio.timeout(30):
        while await runtime.runs():
            await runtime.changed()


async def test_a_run_starts_until_its_shell_has_begun(runtime: ProcessRuntime, leave: LeaveFile, gate: Gate) -> None:
    leave.renew(boot_clock())
    await runtime.start(order(command=("sleep", "300")))
    await asyncio.sleep(0.2)
    [run] = await runtime.runs()
    assert (run.state, run.started_at) == (RunState.STARTING, None)
    await asyncio.to_thread(gate.open)
    begun = await in_state(runtime, KEY, RunState.RUNNING)
    assert begun.started_at is not None
    await runtime.signal(KEY, kill=True)
    await in_state(runtime, KEY, RunState.EXITED)


@pytest.mark.parametrize(
    "spoils", ["rm -f pid", "rm -f pid; mkfifo pid", "rm -f pid; mkdir pid", "echo 999999999999 >pid"]
)
async def test_a_job_that_spoils_its_pid_file_is_running_all_the_same(
    runtime: ProcessRuntime, leave: LeaveFile, gate: Gate, monkeypatch: pytest.MonkeyPatch, spoils: str
) -> None:
    """As one that has spoilt it before the executor looks."""
    looked = records.shim_pid
    spoilt = asyncio.Event()
    monkeypatch.setattr(records, "shim_pid", lambda folder: looked(folder) if spoilt.is_set() else None)
    leave.renew(boot_clock())
    script = f'cd "$(dirname "$WEFT_PROGRESS")"; {spoils}; sleep 300'
    await runtime.start(order(command=("sh", "-c", script)))
    await asyncio.to_thread(gate.open)
    await asyncio.sleep(0.3)
    spoilt.set()
    await in_state(runtime, KEY, RunState.RUNNING)
    await runtime.signal(KEY, kill=True)
    await in_state(runtime, KEY, RunState.EXITED)


async def test_a_shell_that_comes_after_the_fence_does_not_begin_its_command(
    runtime: ProcessRuntime, leave: LeaveFile, gate: Gate, tmp_path: Path
) -> None:
    leave.renew(boot_clock() - FENCE - 1.0)
    asked = order(command=("sh", "-c", f"echo ran >>{tmp_path}/ran"))
    await runtime.start(asked)
    await asyncio.to_thread(gate.open)
    await none_is_left(runtime)
    assert not (tmp_path / "ran").exists()
    assert list(Home(tmp_path).runs.iterdir()) == []
    leave.renew(boot_clock())
    await runtime.start(asked)
    await asyncio.to_thread(gate.open)
    await in_state(runtime, KEY, RunState.EXITED)
    assert (tmp_path / "ran").read_text() == "ran\n"


async def test_a_shell_that_was_slow_begins_by_the_leave_of_then(
    runtime: ProcessRuntime, leave: LeaveFile, gate: Gate
) -> None:
    leave.renew(boot_clock() - FENCE + 0.3)
    await runtime.start(order(command=("true",)))
    leave.renew(boot_clock())
    await asyncio.sleep(0.5)  # until after the fence as it was when the run was permitted
    await asyncio.to_thread(gate.open)
    ended = await in_state(runtime, KEY, RunState.EXITED)
    assert ended.exit_code == 0


async def test_a_shell_that_slept_through_a_fall_of_the_fence_does_not_begin_under_the_next_leave(
    runtime: ProcessRuntime, leave: LeaveFile, gate: Gate
) -> None:
    """Its job may run somewhere else by now."""
    leave.renew(boot_clock() - FENCE)
    await runtime.start(order(command=("sleep", "300")))
    leave.renew(boot_clock())
    await asyncio.to_thread(gate.open)
    await none_is_left(runtime)


def test_a_leave_is_without_a_gap_while_each_sync_comes_before_the_fence_of_the_last(tmp_path: Path) -> None:
    def said() -> tuple[int, int]:
        until, since = (tmp_path / "leave").read_text().split()
        return int(until), int(since)

    leave = LeaveFile(tmp_path / "leave", 4.0)
    assert (said(), leave.now()) == ((0, 0), None)
    for at in (100.0, 103.99, 107.5):
        leave.renew(at)
        assert said() == (int(at * 100) + 400, 10000)
    leave.renew(111.5)
    assert said() == (11550, 11150)
    now = leave.now()
    assert now is not None
    assert now.at == 11150
    leave.close()
    LeaveFile(tmp_path / "leave", 4.0).close()
    assert said() == (0, 0), "what an executor before it, or one before the boot, was allowed says nothing"
