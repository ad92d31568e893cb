"""A job that runs as a process may truncate its own log: `echo x > /dev/stdout` opens the file anew.

The bytes before are then gone, as docs/faults.md says; no other log, no reader and no limit of the node is harmed.
"""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.messages.nodes import ReadLog, RunState, StartRun
from services.executor.home import Home
from services.executor.logs.retention import Retention, RetentionLimits
from services.executor.node import NodeFacts
from services.executor.runs import RunKey
from services.executor.runtime.process.runtime import ProcessRuntime
from services.executor.service import read_log
from tests.support.runs import in_state, logged, order, until, whole_log

LINES = 20_000
BEFORE = "".join(f"before {number:06}\n" for number in range(LINES)).encode()
JOB = f"""
i=0; while [ $i -lt {LINES} ]; do printf 'before %06d\\n' $i; i=$((i+1)); done
until [ -e go ]; do sleep 0.02; done
echo anew > /dev/stdout
echo appended
until [ -e end ]; do sleep 0.02; done
echo last
"""


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    node = NodeFacts(node_id="node-1", checkpoints=str(tmp_path / "checkpoints"))
    made = await ProcessRuntime.open(Home(tmp_path / "home"), node, inherited=os.environ)
    yield made
    await made.close()


def shell(job_id: str) -> StartRun:
    return replace(order(job_id), command=("sh", "-c", JOB))


async def test_a_job_that_truncates_its_own_log_loses_what_it_wrote_before_and_harms_nobody(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    home, one, other = Home(tmp_path / "home"), shell("job-1"), shell("job-2")
    key, beside = RunKey.of(one), RunKey.of(other)
    await runtime.start(one)
    await runtime.start(other)
    for each in (key, beside):
        log = Path(home.log(each))
        await until(lambda: log.stat().st_size == len(BEFORE))  # noqa: B023 - called before the next one
    assert (await runtime.read_log(key, offset=0, limit=1 << 20)).data == BEFORE

    (tmp_path / "checkpoints" / "job-1" / "go").touch()
    await logged(runtime, key, b"anew\nappended\n")
    began = time.monotonic()
    ask = ReadLog(node_id="node-1", job_id="job-1", epoch=1, rank=0, offset=len(BEFORE), wait=0.2)
    told = await read_log(runtime, ask)  # of a reader that had all there was
    assert (told.data, told.ended, told.missing, told.size) == (b"", False, False, len(b"anew\nappended\n"))
    assert time.monotonic() - began < 5.0
    Retention(home, RetentionLimits(log_bytes_max=1)).look({key, beside}, now=time.time())
    assert (await runtime.read_log(beside, offset=0, limit=1 << 20)).data == BEFORE

    for name in ("job-1/end", "job-2/go", "job-2/end"):
        (tmp_path / "checkpoints" / name).touch()
    await in_state(runtime, key, RunState.EXITED)
    assert await whole_log(runtime, key) == b"anew\nappended\nlast\n"
    told = await read_log(runtime, ask)
    assert (told.data, told.ended) == (b"", True)
    await in_state(runtime, beside, RunState.EXITED)
    await runtime.remove(key)
    assert await whole_log(runtime, key) == b"anew\nappended\nlast\n"
