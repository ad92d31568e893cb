"""Jobs that spoil what their runtime keeps of them: their end, their pid, their shell, the number of processes."""

import os
from pathlib import Path

import pytest

from tests.support.rig import Rig
from tests.support.runs import find, in_state, logged, processes_of, until, whole_log
from weft.messages.nodes import EndReason, RunState, StartRun
from weftd.executor.files.home import Home
from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits.cgroup import find_cgroups
from weftd.executor.runtime.process.runtime import ProcessRuntime


async def test_a_shell_killed_together_with_its_job_is_told_as_killed(rig: Rig) -> None:
    if not rig.name.startswith("process"):
        pytest.skip("only processes have that shell")
    asked = rig.shell(("sh", "-c", "kill -9 0"))
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert (run.exit_code, run.reason) == (137, EndReason.EXIT)


async def test_a_job_that_forges_its_own_end_harms_nobody_else(rig: Rig) -> None:
    if not rig.name.startswith("process"):
        pytest.skip("only processes have that shell")
    forger = rig.shell(("sh", "-c", 'echo garbage > "$(dirname "$WEFT_PROGRESS")/exit"; kill -9 $PPID; sleep 60'))
    await rig.runtime.start(forger)
    run = await in_state(rig.runtime, RunKey.of(forger), RunState.EXITED)
    assert run.exit_code != 0
    other = rig.shell(("true",), job_id="job-other")
    await rig.runtime.start(other)
    assert (await in_state(rig.runtime, RunKey.of(other), RunState.EXITED)).exit_code == 0


ODD_ENDS = (
    "echo 99999999999999 >exit",
    "echo 256 >exit",
    "rm exit; mkfifo exit",
    "rm exit; mkdir exit",
    "rm exit; ln -s /dev/zero exit",
    "rm exit pid; mkfifo exit pid",
    "rm -f run.json exit pid; mkdir run.json exit pid",
)


async def test_a_job_that_forks_without_end_meets_its_bound(rig: Rig, tmp_path: Path) -> None:
    if rig.name != "process-cgroups" or not os.path.exists("/sys/fs/cgroup/pids/cgroup.procs"):  # noqa: ASYNC240
        pytest.skip("only these have a bound that a test can set, where there is such a controller")
    await rig.runtime.close()
    home = Home(tmp_path / "bounded")
    cgroups = find_cgroups(f"{rig.node.node_id}-bounded", pids_max=20)
    runtime = await ProcessRuntime.open(home, rig.node, inherited=os.environ, cgroups=cgroups)
    try:
        asked = rig.shell(("sh", "-c", "for i in $(seq 60); do sleep 60 & done; echo all"))
        await runtime.start(asked)
        run = await in_state(runtime, RunKey.of(asked), RunState.EXITED)
        assert run.exit_code != 0
        assert b"all" not in await whole_log(runtime, RunKey.of(asked))
        await runtime.remove(run.key)
    finally:
        await runtime.close()
        rig.runtime = await rig.reopen()


async def started_beside_its_shell(rig: Rig, script: str) -> StartRun:
    """A run in the folder where the shell that watches it keeps its files."""
    if not rig.name.startswith("process"):
        pytest.skip("only processes have that shell")
    asked = rig.shell(("sh", "-c", f'cd "$(dirname "$WEFT_PROGRESS")"; {script}'))
    await rig.runtime.start(asked)
    return asked


@pytest.mark.parametrize("odd", ODD_ENDS)
async def test_a_job_that_spoils_its_status_and_kills_its_shell_ends_as_killed(rig: Rig, odd: str) -> None:
    asked = await started_beside_its_shell(rig, f"{odd}; kill -9 $PPID; sleep 60")
    key = RunKey.of(asked)
    run = await in_state(rig.runtime, key, RunState.EXITED)
    assert (run.exit_code, run.reason) == (137, EndReason.EXIT)
    runtime = await rig.reopen()
    for found in await runtime.runs():
        assert (found.live, found.exit_code) == (False, None)
    await runtime.remove(key)
    assert await find(runtime, key) is None


SPOILT_PIDS = (": >pid", "echo 99999999999999 >pid", "rm pid; mkdir pid", "rm pid; mkfifo pid")


@pytest.mark.parametrize("spoilt", SPOILT_PIDS)
async def test_a_job_that_hides_its_shell_does_not_keep_the_next_executor_away(rig: Rig, spoilt: str) -> None:
    """The run is ended instead, for nobody could watch it."""
    asked = await started_beside_its_shell(rig, f"{spoilt}; echo up; sleep 345")
    key = RunKey.of(asked)
    await logged(rig.runtime, key, b"up")
    runtime = await rig.reopen()
    run = await find(runtime, key)
    assert run is None or (not run.live and run.reason is EndReason.LOST)
    await until(lambda: not processes_of(asked))
    if rig.name == "process-cgroups":
        groups = find_cgroups(rig.node.node_id)
        await until(lambda: not groups.names())
