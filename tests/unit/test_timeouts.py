"""Ranks that waited for others in vain: their node reads that from the last lines of their logs, once."""

import pytest
from msgspec import structs

from tests.support.doubles.runtime import FakeHost, FakeRuntime, Program
from weft.messages.nodes import EndReason, RunState
from weftd.executor.runs import LogChunk, Run, RunKey
from weftd.executor.serving.logends import READ_BYTES, Timeouts
from weftd.executor.thinking.core import Reconciler, ReconcilerTimings

LINE = b"[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
TIMINGS = ReconcilerTimings(fence_seconds=90.0, fence_grace_max=30.0)
FAILED = Run(key=RunKey("j-1", 0, 1), state=RunState.EXITED, ended_at=5.0, exit_code=134, reason=EndReason.EXIT)


class Reads(FakeRuntime):
    def __init__(self, log: bytes) -> None:
        super().__init__(FakeHost(lambda _: Program(), now=lambda: 0.0))
        self.host.logs[FAILED.key] = log
        self.reads = 0

    async def read_log(self, key: RunKey, *, offset: int, limit: int) -> LogChunk:
        self.reads += 1
        return await super().read_log(key, offset=offset, limit=limit)


@pytest.mark.parametrize(
    ("log", "run", "shows"),
    [
        (LINE, FAILED, True),
        (b"x" * 3 * READ_BYTES + b"\n" + LINE, FAILED, True),
        (LINE + b"went on\n" * READ_BYTES, FAILED, False),  # it is not among the last lines
        (b"ValueError\n", FAILED, False),
        (LINE, structs.replace(FAILED, exit_code=0), False),
        (LINE, structs.replace(FAILED, reason=EndReason.STOPPED), False),
        (LINE, structs.replace(FAILED, state=RunState.RUNNING, exit_code=None, reason=None), False),
    ],
)
async def test_which_runs_waited_for_others_in_vain(log: bytes, run: Run, shows: bool) -> None:
    runtime = Reads(log)
    timeouts = Timeouts(runtime)
    assert await timeouts.of([run]) == (frozenset({run.key}) if shows else frozenset())
    reads = runtime.reads
    await timeouts.of([run])
    assert runtime.reads == reads


def test_the_report_says_so_of_a_run_that_ended_by_itself() -> None:
    core = Reconciler(TIMINGS)
    stopped = structs.replace(FAILED, key=RunKey("j-1", 0, 2), reason=EndReason.STOPPED)
    seen = core.report([FAILED, stopped], {}, timed_out={FAILED.key, stopped.key})
    assert {run.rank: run.timed_out for run in seen} == {1: True, 2: False}
