"""Each tenant's lane: what its work costs is charged to it, and who owes goes on later, others at once."""

import asyncio
from contextlib import suppress
from contextvars import copy_context

import pytest

from weftd.gateway.errors import RejectedError
from weftd.gateway.limits import cpu_budget as module
from weftd.gateway.limits.cpu_budget import PAYER, CpuBudgets, PaidThreads
from weftd.gateway.thinking.budgets import ProcessorBudget

BUDGET = ProcessorBudget(part=0.5, burst_seconds=0.1)


class Times:
    """A clock and a processor that go on when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.used = 0.0

    def cpu_budgets(self) -> CpuBudgets:
        return CpuBudgets(BUDGET, clock=lambda: self.now, processor=lambda: self.used)

    async def work(self, *steps: float) -> str:
        """Each step takes so much of the processor; between two the loop does other things."""
        for seconds in steps:
            self.used += seconds
            await asyncio.sleep(0)
        return "done"


async def is_held(cpu_budgets: CpuBudgets, tenant: str) -> bool:
    """Whether the tenant's next request has to wait."""
    going = asyncio.create_task(cpu_budgets.go(tenant))
    for _ in range(5):
        await asyncio.sleep(0)
    if going.done():
        return False
    going.cancel()
    with suppress(asyncio.CancelledError):
        await going
    return True


async def test_every_step_of_its_work_is_charged_to_a_tenant_and_others_pass() -> None:
    times = Times()
    cpu_budgets = times.cpu_budgets()
    await cpu_budgets.go("quiet")
    await cpu_budgets.go("busy")
    assert await cpu_budgets.paid("busy", times.work(0.04, 0.04)) == "done"
    assert not await is_held(cpu_budgets, "busy")
    await cpu_budgets.paid("busy", times.work(0.04))
    assert await is_held(cpu_budgets, "busy")
    assert not await is_held(cpu_budgets, "quiet")
    times.now += 10.0
    assert not await is_held(cpu_budgets, "busy")


async def test_what_others_do_between_two_steps_is_not_charged() -> None:
    times = Times()
    cpu_budgets = times.cpu_budgets()
    await cpu_budgets.go("quiet")
    await cpu_budgets.go("busy")
    await asyncio.gather(
        cpu_budgets.paid("quiet", times.work(0.0, 0.0)), cpu_budgets.paid("busy", times.work(0.5, 0.5))
    )
    assert not await is_held(cpu_budgets, "quiet")
    assert await is_held(cpu_budgets, "busy")


async def test_an_error_or_a_cancellation_comes_through_and_is_charged_too() -> None:
    times = Times()
    cpu_budgets = times.cpu_budgets()
    await cpu_budgets.go("quiet")
    await cpu_budgets.go("busy")

    async def fails() -> None:
        times.used += 0.2
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await cpu_budgets.paid("busy", fails())
    assert await is_held(cpu_budgets, "busy")

    stopped: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("in order")

    waiting = asyncio.create_task(cpu_budgets.paid("quiet", waits()))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert waiting.cancelled()
    assert stopped == ["in order"]


@pytest.mark.asyncio(loop_scope="function")  # its threads would stay those of the loop that other tests share
async def test_what_is_done_for_a_tenant_in_a_thread_is_charged_to_it() -> None:
    times = Times()
    cpu_budgets = times.cpu_budgets()
    await cpu_budgets.go("quiet")
    await cpu_budgets.go("busy")
    loop = asyncio.get_running_loop()
    loop.set_default_executor(PaidThreads(cpu_budgets, loop, lambda: times.used, most=1))

    def think() -> str:
        times.used += 0.3
        return PAYER.get()

    async def asks() -> str:
        return await asyncio.to_thread(think)

    assert await asyncio.to_thread(think) == ""
    assert not await is_held(cpu_budgets, "busy")
    before = times.used
    assert await cpu_budgets.paid("busy", asks()) == "busy"
    assert times.used == pytest.approx(before + 0.3)
    await asyncio.sleep(0)
    assert await is_held(cpu_budgets, "busy")
    assert PAYER.get() == ""


def test_paid_work_that_is_given_up_may_be_closed_from_elsewhere() -> None:
    """As when a loop that ends drops what still waits in it."""
    closed: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(PAYER.get())

    paid = Times().cpu_budgets().paid("busy", waits())
    copy_context().run(paid.send, None)
    paid.close()
    assert closed == ["busy"]
    assert PAYER.get() == ""


async def test_the_time_in_which_another_process_works_for_a_tenant_is_charged_to_it_even_if_that_fails() -> None:
    times = Times()
    cpu_budgets = times.cpu_budgets()
    await cpu_budgets.go("quiet")
    await cpu_budgets.go("busy")
    with suppress(ValueError), cpu_budgets.elsewhere("busy"):
        times.now += 0.5
        raise ValueError("no")
    assert await is_held(cpu_budgets, "busy")
    assert not await is_held(cpu_budgets, "quiet")


async def test_of_many_streams_of_a_tenant_one_is_written_in_one_go_of_the_loop() -> None:
    cpu_budgets = Times().cpu_budgets()
    wrote: list[int] = []

    async def stream(number: int) -> None:
        await cpu_budgets.write("busy")
        wrote.append(number)

    streams = [asyncio.create_task(stream(number)) for number in range(50)]
    seen = []
    while len(wrote) < 50:
        before = len(wrote)
        await asyncio.sleep(0)
        seen.append(len(wrote) - before)
    await asyncio.gather(*streams)
    assert max(seen) == 1
    assert wrote == list(range(50))


async def test_a_tenant_with_too_many_requests_in_its_lane_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    times = Times()
    cpu_budgets = times.cpu_budgets()
    await cpu_budgets.go("quiet")
    await cpu_budgets.go("busy")
    cpu_budgets.charge("busy", 1.0)
    waiting = [asyncio.create_task(cpu_budgets.go("busy")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RejectedError) as refused:
        await cpu_budgets.go("busy")
    assert refused.value.status == 429
    await cpu_budgets.go("quiet")
    times.now += 10.0
    await asyncio.gather(*waiting)
