"""Notes of a node on a run, beside its status: processes killed for memory, a full /dev/shm, output that waits."""

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.disk import fill, small_disk
from tests.support.rig import Rig
from tests.support.runs import find, in_state, logged, whole_log
from weft.domain.job import CauseCode
from weft.messages.nodes import EndReason, RunState
from weftd.executor.files.home import Home
from weftd.executor.runs import Run, RunKey
from weftd.executor.runtime.process.runtime import ProcessRuntime

MIB = 1 << 20
KILLED_CHILD = "sh -c 'exec tail /dev/zero'; echo child gone"


def codes(run: Run | None) -> list[str]:
    return [] if run is None else [each.code for each in run.noted]


async def until_noted(rig: Rig, key: RunKey, code: CauseCode) -> Run:
    async with asyncio.timeout(20):
        while True:
            run = await find(rig.runtime, key)
            if run is not None and code in codes(run):
                return run
            await asyncio.sleep(0.05)


async def test_a_child_killed_for_memory_is_noted_while_the_run_goes_on_and_after_it_exits_with_0(rig: Rig) -> None:
    rig.needs("commands", "memory", "oom")
    wait = 'until [ -e "$WEFT_CHECKPOINT_DIR/go" ]; do sleep 0.05; done'
    asked = rig.shell(("sh", "-c", f"{KILLED_CHILD}; {wait}"), memory=64 * MIB)
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    run = await until_noted(rig, key, CauseCode.PROCESS_KILLED)
    assert run.live
    assert "of its processes was killed for memory: together they may use 64MiB" in run.noted[0].sentence
    (rig.checkpoints(asked) / "go").touch()
    run = await in_state(rig.runtime, key, RunState.EXITED)
    assert (run.exit_code, run.reason, codes(run)) == (0, EndReason.EXIT, [CauseCode.PROCESS_KILLED])


async def test_a_container_that_fills_its_shared_memory_is_told_to_raise_it(rig: Rig) -> None:
    if not rig.docker:
        pytest.skip("only containers have a /dev/shm of their own")
    asked = rig.shell(("sh", "-c", "dd if=/dev/zero of=/dev/shm/x bs=1M; sleep 2; kill -BUS $$"), shm=8 * MIB)
    await rig.runtime.start(asked)
    run = await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    assert run.exit_code == 135
    (noted,) = run.noted
    seen = ("was", "may have been")  # a node that is busy looks only after the run has ended
    assert noted.sentence in {f"its /dev/shm of 8MiB {how} full: raise `shm`" for how in seen}


async def test_a_run_waits_for_room_on_a_full_disk_and_none_of_its_output_is_missing(rig: Rig, tmp_path: Path) -> None:
    if rig.name != "process":
        pytest.skip("one runtime with a disk of its own is enough")
    with small_disk(tmp_path / "disk") as disk:
        runtime = await ProcessRuntime.open(Home(disk / "home"), rig.node, inherited=os.environ)
        script = 'echo up; until [ -e "$WEFT_CHECKPOINT_DIR/go" ]; do sleep 0.05; done; seq 300000'
        asked = rig.shell(("sh", "-c", script))
        key = RunKey.of(asked)
        await runtime.start(asked)
        await logged(runtime, key, b"up\n")
        fill(disk)
        (rig.checkpoints(asked) / "go").touch()
        watched = replace_runtime(rig, runtime)
        run = await until_noted(watched, key, CauseCode.OUTPUT_WAITS)
        assert run.live
        (disk / "filling").unlink()
        run = await in_state(runtime, key, RunState.EXITED)
        assert (run.exit_code, codes(run)) == (0, [])
        assert await whole_log(runtime, key) == b"up\n" + b"".join(b"%d\n" % n for n in range(1, 300001))
        await runtime.close()


def replace_runtime(rig: Rig, runtime: ProcessRuntime) -> Rig:
    return replace(rig, runtime=runtime)
