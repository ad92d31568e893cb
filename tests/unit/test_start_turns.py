"""Starts on a node go in turn by tenant, and the slow ones of one tenant leave room for the others."""

import asyncio
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tests.support.doubles.runtime import FakeHost, FakeRuntime, Program
from tests.support.hands import made_hands
from tests.support.runs import order
from tests.support.virtual_time import run_virtually
from weft.messages.nodes import StartRun
from weftd.executor.actions import STARTS_AT_ONCE, STARTS_PER_TENANT_MAX
from weftd.executor.thinking.core import Start
from weftd.executor.turns import StartTurns


class SlowFor(FakeRuntime):
    """The starts of one tenant do not end, as those that pull an image from a registry that does not answer."""

    def __init__(self, host: FakeHost, tenant: str) -> None:
        super().__init__(host)
        self._tenant = tenant
        self.hangs = 0

    async def start(self, order: StartRun, *, permitted: object = None, why_not: str = "") -> None:
        if order.tenant == self._tenant:
            self.hangs += 1
            await asyncio.Event().wait()
        await super().start(order)


async def started(runtime: FakeRuntime, orders: list[StartRun], *, until: str) -> None:
    """Give all these orders at once, and wait until that job is started."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        done = asyncio.Event()
        actions = made_hands(runtime, tasks, done=done.set)
        actions.take([Start(one) for one in orders])
        while not any(run.key.job_id == until for run in await runtime.runs()):
            await done.wait()
            done.clear()
        actions.drop()


def many(tenant: str, count: int) -> list[StartRun]:
    return [order(f"job-{number:03}", tenant=tenant) for number in range(count)]


def test_a_job_starts_before_most_of_another_tenants_two_hundred_that_came_first() -> None:
    host = FakeHost(lambda _: Program(), now=lambda: 0.0)
    run_virtually(started(FakeRuntime(host), [*many("busy", 200), order("quiet", tenant="quiet")], until="quiet"))
    assert [key.job_id for key in host.starts].index("quiet") <= STARTS_AT_ONCE


def test_starts_of_one_tenant_that_hang_leave_room_for_those_of_another() -> None:
    runtime = SlowFor(FakeHost(lambda _: Program(), now=lambda: 0.0), "busy")
    run_virtually(started(runtime, [*many("busy", 20), order("quiet", tenant="quiet")], until="quiet"))
    assert runtime.hangs == STARTS_PER_TENANT_MAX


def test_a_start_that_is_given_up_leaves_its_turn_to_the_next() -> None:
    async def told() -> None:
        cycles = StartTurns(at_once=1, per_tenant=1)
        had: list[str] = []

        async def start(name: str) -> None:
            async with cycles.one("busy"):
                had.append(name)
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(start(name)) for name in ("first", "waits", "last")]
        await asyncio.sleep(1.0)
        assert had == ["first"]
        for task in (tasks[1], tasks[0]):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.sleep(1.0)
        assert had == ["first", "last"]
        tasks[2].cancel()

    run_virtually(told())


@given(
    tenants=st.lists(st.sampled_from("abcd"), max_size=40),
    given_up=st.sets(st.integers(0, 39)),
    at_once=st.integers(1, 5),
    per_tenant=st.integers(1, 5),
)
def test_whatever_comes_and_is_given_up_all_others_have_their_turn_within_the_bounds(
    tenants: list[str], given_up: set[int], at_once: int, per_tenant: int
) -> None:
    async def told() -> None:
        cycles = StartTurns(at_once=at_once, per_tenant=per_tenant)
        now: list[str] = []
        had: list[int] = []

        async def start(number: int, tenant: str) -> None:
            async with cycles.one(tenant):
                now.append(tenant)
                try:
                    assert len(now) <= at_once
                    assert now.count(tenant) <= per_tenant
                    await asyncio.sleep(0.1 * (number % 3))
                finally:
                    now.remove(tenant)
                had.append(number)

        tasks = [asyncio.create_task(start(number, tenant)) for number, tenant in enumerate(tenants)]
        await asyncio.sleep(0.05)
        left = [number for number in range(len(tenants)) if number in given_up and not tasks[number].done()]
        for number in left:
            tasks[number].cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [number for number, end in enumerate(ends) if isinstance(end, asyncio.CancelledError)] == left
        assert not any(isinstance(end, Exception) for end in ends)
        assert sorted([*had, *left]) == list(range(len(tenants)))

    run_virtually(told())
