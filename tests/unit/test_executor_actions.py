"""An action that fails is its run's failure alone, whatever the exception."""

import asyncio

import pytest

from tests.support.doubles.runtime import FakeHost, FakeRuntime, Program
from tests.support.hands import made_hands
from tests.support.runs import order
from tests.support.virtual_time import run_virtually
from weft.messages.nodes import StartRun
from weftd.executor.actions import RETRY_SECONDS, RETRY_SECONDS_MAX
from weftd.executor.runs import RunKey
from weftd.executor.thinking.core import Action, Start

ODD, EVEN = order("job-odd"), order("job-even")


class SpoiltRuntime(FakeRuntime):
    """One whose starts of job-odd end in an exception that nobody expects, as often as it is told."""

    def __init__(self, host: FakeHost, *, times: int) -> None:
        super().__init__(host)
        self.left = times
        self.tried_at: list[float] = []

    async def start(self, order: StartRun, *, permitted: object = None, why_not: str = "") -> None:
        if order.job_id == "job-odd":
            self.tried_at.append(asyncio.get_running_loop().time())
            if self.left:
                self.left -= 1
                raise ZeroDivisionError("nobody expects it")
        await super().start(order)


async def tried(runtime: SpoiltRuntime) -> list[Action]:
    """Both runs are started until they are there, as an executor does. What failed."""
    failed: list[Action] = []
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        woken = asyncio.Event()
        actions = made_hands(runtime, tasks, done=woken.set, failed=failed.append)
        while len(there := {run.key for run in await runtime.runs()}) < 2:
            actions.take([Start(asked) for asked in (ODD, EVEN) if RunKey.of(asked) not in there])
            await woken.wait()
            woken.clear()
        actions.drop()
    return failed


def test_an_exception_that_nobody_expects_fails_one_action_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def told() -> None:
        host = FakeHost(lambda _: Program(), now=lambda: 0.0)
        failed = await tried(SpoiltRuntime(host, times=3))
        assert failed == [Start(ODD)] * 3
        assert host.starts[0] == RunKey.of(EVEN)
        assert len([record for record in caplog.records if record.exc_info is not None]) == 3

    run_virtually(told())


def test_a_start_that_fails_again_and_again_is_tried_more_and_more_seldom() -> None:
    async def told() -> None:
        runtime = SpoiltRuntime(FakeHost(lambda _: Program(), now=lambda: 0.0), times=6)
        await tried(runtime)
        pauses = [later - sooner for sooner, later in zip(runtime.tried_at, runtime.tried_at[1:], strict=False)]
        assert pauses == sorted(pauses)
        assert pauses[0] == pytest.approx(RETRY_SECONDS)
        assert pauses[-1] == pytest.approx(RETRY_SECONDS_MAX)

    run_virtually(told())
