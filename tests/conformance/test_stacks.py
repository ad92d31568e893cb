"""The stacks of a run that hangs, or the reason why there are none, come into its log, with every runtime."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.rig import Rig, opened
from tests.support.runs import logged
from weft.domain.spec import ResizeSignal
from weftd.executor.runs import RunKey

USR1 = ResizeSignal.USR1
WRITES = "trap 'echo my stacks' USR1; echo up; while :; do sleep 0.05; done"
HEEDS_NOTHING = "echo up; while :; do sleep 0.05; done"
LOOPS = "import time; print('up', flush=True); [time.sleep(0.05) for _ in iter(int, 1)]"
PY_SPY = "#!/bin/sh\necho stacks of $*\n"


@pytest.fixture(
    params=["fake", "simulated", "process", "process-cgroups", pytest.param("docker", marks=pytest.mark.docker)]
)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened(request.param, tmp_path) as built:
        yield built


async def begun(rig: Rig, script: str) -> RunKey:
    asked = rig.shell(("sh", "-c", script))
    await rig.runtime.start(asked)
    await logged(rig.runtime, RunKey.of(asked), b"up\n")
    return RunKey.of(asked)


async def test_a_program_that_handles_the_signal_writes_its_stacks_itself(rig: Rig) -> None:
    rig.needs("commands")
    key = await begun(rig, WRITES)
    await rig.runtime.dump_stacks(key, USR1)
    await logged(rig.runtime, key, b"my stacks\n")
    assert b"weft:" not in (await rig.runtime.read_log(key, offset=0, limit=1 << 16)).data


async def test_a_program_that_does_not_handle_it_goes_on_and_its_log_says_so(rig: Rig) -> None:
    rig.needs("commands")
    key = await begun(rig, HEEDS_NOTHING)
    await rig.runtime.dump_stacks(key, USR1)
    await logged(rig.runtime, key, b"SIGUSR1: the main process does not handle it")
    (run,) = await rig.runtime.runs()
    assert run.live


async def test_py_spy_is_used_for_the_python_programs_of_a_run(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.needs("commands")
    program = tmp_path / "bin" / "py-spy"
    program.parent.mkdir()
    program.write_text(PY_SPY)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    key = await begun(rig, HEEDS_NOTHING if rig.docker else f'exec {sys.executable} -c "{LOOPS}"')
    await rig.runtime.dump_stacks(key, None)
    expected = b"no stacks: it runs no Python program" if rig.docker else b"stacks of dump --pid"
    await logged(rig.runtime, key, expected)


async def test_a_run_that_is_not_there_has_no_stacks(rig: Rig) -> None:
    async with asyncio.timeout(5):
        await rig.runtime.dump_stacks(RunKey("j-none", 1, 0), USR1)
