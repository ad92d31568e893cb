"""The output of a run is whole in its log, whatever the run does with its stdout and whoever reads it meanwhile."""

import asyncio

from tests.support.rig import Rig
from tests.support.runs import in_state, logged, whole_log
from weft.messages.nodes import ReadLog, RunState
from weftd.executor.runs import RunKey
from weftd.executor.service import read_log

OPENS_AGAIN = """
echo early
echo one | tee /dev/stderr
echo two >/dev/stdout
until [ -e "$WEFT_CHECKPOINT_DIR/go" ]; do sleep 0.05; done
echo late
"""


async def test_a_job_that_opens_its_stdout_again_truncates_nothing(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", "echo early; : >/dev/stdout; echo mid >/dev/stderr; echo late | tee /dev/stderr"))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    lines = (await whole_log(rig.runtime, RunKey.of(asked))).split()
    assert sorted(lines) == [b"early", b"late", b"late", b"mid"]


async def test_a_follower_sees_what_comes_after_a_job_opened_its_stdout_again(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", OPENS_AGAIN))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    before = await logged(rig.runtime, key, b"two\n")
    ask = ReadLog(node_id="n", job_id=key.job_id, epoch=1, rank=0, offset=len(before), wait=10.0)
    following = asyncio.create_task(read_log(rig.runtime, ask))
    (rig.checkpoints(asked) / "go").touch()
    assert (await following).data == b"late\n"


async def test_output_written_while_no_executor_runs_is_in_the_log(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", 'echo up; until [ -e "$WEFT_CHECKPOINT_DIR/go" ]; do sleep 0.05; done; seq 2000'))
    key = RunKey.of(asked)
    await rig.runtime.start(asked)
    await logged(rig.runtime, key, b"up\n")
    await rig.runtime.close()
    (rig.checkpoints(asked) / "go").touch()
    await asyncio.sleep(0)
    runtime = await rig.reopen()
    run = await in_state(runtime, key, RunState.EXITED)
    assert run.exit_code == 0
    expected = b"up\n" + b"".join(b"%d\n" % number for number in range(1, 2001))
    assert await whole_log(runtime, key) == expected


async def test_a_run_that_goes_on_writing_in_the_background_ends_all_the_same(rig: Rig) -> None:
    rig.needs("commands")
    asked = rig.shell(("sh", "-c", "yes & sleep 0.2; echo over"))
    await rig.runtime.start(asked)
    await in_state(rig.runtime, RunKey.of(asked), RunState.EXITED)
    log = await rig.runtime.read_log(RunKey.of(asked), offset=0, limit=4)
    assert log.size > 4
