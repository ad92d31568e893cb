"""A mistake of the core that shows with one job, ask or node: the scheduler goes on, and other jobs notice nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builders import capacity
from tests.support.nodes import ScriptedNode
from tests.unit.test_scheduler_loop import World
from weft.domain.job import CauseCode, Job, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import NodeReported
from weft.store import StoreUnavailableError
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.record.poison_messages import REFUSED_SECONDS, REMEMBERED_SECONDS, PoisonMessages
from weftd.scheduler.thinking.record.replay import Replay
from weftd.scheduler.thinking.state.cluster import PoolNow
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.pool import Pool
from weftd.scheduler.thinking.state.waitlist import Waitlist

BAD = "j-bad"


def _names(value: object) -> bool:
    return BAD in (value, getattr(value, "id", None), getattr(value, "job_id", None), getattr(value, "node_id", None))


def mistaken(patch: pytest.MonkeyPatch, owner: object, name: str, *, when: Callable[[], bool] = lambda: True) -> None:
    """The function has a mistake: it ends in an exception whenever it is called about what is called `j-bad`."""
    right = getattr(owner, name)

    def wrong(*arguments: Any, **named: Any) -> Any:
        job = next((one for one in arguments if _names(one)), None)
        if job is not None and when():
            raise KeyError("on purpose")
        return right(*arguments, **named)

    patch.setattr(owner, name, wrong)


async def stored(w: World, job_id: str) -> Job:
    job = await w.store.job(job_id)
    assert job is not None
    return job


async def causes(w: World, job_id: str) -> list[str]:
    return [bytes(told.data).decode() for told in await w.store.story(job_id)]


async def answered(w: World) -> str:
    """Why the node's report is refused; empty if it is not, or has no answer."""
    answer = asyncio.ensure_future(w.scheduler_loop.report(w.node.report()))
    await asyncio.sleep(0)
    await w.cycles()
    desired = await answer
    return "" if desired is None else desired.refused


async def replays(w: World) -> None:
    """The history of what happened is derived again without a difference, by the code without the mistake."""
    records = await w.store.history(pool="default", limit=100_000, bytes_max=1 << 40)
    replay = Replay()
    assert [replay.feed(record) for record in records] == [None] * len(records)


WHERE: dict[str, tuple[object, str]] = {
    "when it is loaded or admitted": (ClusterState, "keep"),
    "in the queue": (Waitlist, "group"),
    "when it is placed": (PoolNow, "find"),
    "when a report of its node is followed": (lifecycle, "follow"),
    "when it is applied to the picture": (ClusterState, "_apply"),
}


@pytest.mark.parametrize("where", WHERE)
async def test_a_job_that_the_core_fails_to_decide_about_fails_and_others_run(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = World()
    owner, name = WHERE[where]
    await w.sync()
    with monkeypatch.context() as patch:
        mistaken(patch, owner, name)
        await w.submit(BAD)
        await w.submit("j-good")
        for _ in range(16):
            await w.sync()
        assert (await stored(w, "j-good")).state is JobState.RUNNING
        job = await stored(w, BAD)
        assert job.state is JobState.FAILED
        assert any(CauseCode.DECISION_FAILED in told and "KeyError" in told for told in await causes(w, BAD))
        assert "on purpose" not in "".join(await causes(w, BAD)), "the words of an exception may be another tenant's"
    w.scheduler_loop.core.cluster_state.check()
    await replays(w)


async def test_a_running_job_that_the_core_fails_to_decide_about_stops_before_its_gpus_are_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World()
    await w.submit(BAD, gpus=4)
    for _ in range(5):
        await w.sync()
    assert await w.state(BAD) is JobState.RUNNING
    await w.submit("j-good", gpus=4)
    mistaken(monkeypatch, lifecycle, "follow", when=lambda: bool(w.node.live))
    states = set()
    for _ in range(20):
        await w.sync()
        states.add(await w.state(BAD))
        assert len({key[0] for key in w.node.live}) <= 1
    assert await w.state(BAD) is JobState.FAILED
    assert JobState.STOPPING in states
    assert await w.state("j-good") is JobState.RUNNING


async def test_a_mistake_that_shows_once_costs_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World()
    await w.sync()
    left = [1]
    mistaken(monkeypatch, Waitlist, "group", when=lambda: bool(left) and bool(left.pop()))
    await w.submit(BAD)
    loads = w.store.reads
    for _ in range(6):
        await w.sync()
    assert w.store.reads == loads + 1
    assert await w.state(BAD) is JobState.RUNNING


async def test_a_job_that_was_set_aside_is_tried_again_when_its_user_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    w = World()
    await w.sync()
    with monkeypatch.context() as patch:
        mistaken(patch, Waitlist, "group")
        await w.submit(BAD)
        for _ in range(8):
            await w.sync()
        assert await w.state(BAD) is JobState.FAILED
    await w.ask(AskKind.REQUEUE, BAD)
    for _ in range(6):
        await w.sync()
    assert await w.state(BAD) is JobState.RUNNING


async def test_the_job_that_is_in_each_exception_is_set_aside_and_not_those_it_is_in_the_way_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exception while room is made is about the job that waits, and about the one that gives way."""
    w = World()
    await w.submit(BAD, gpus=4)
    for _ in range(5):
        await w.sync()
    mistaken(monkeypatch, lifecycle, "stop")
    for number in range(3):
        await w.store.submit((await stored(w, BAD)).spec, job_id=f"j-{number}", tenant="alice", key=None, at=w.now)
        await w.ask(AskKind.PRIORITISE, f"j-{number}", 10)
    for _ in range(30):
        await w.sync()
    assert await w.state(BAD) is JobState.FAILED
    assert sorted([str(await w.state(f"j-{number}")) for number in range(3)]) == ["queued", "queued", "running"]


async def test_an_ask_that_the_core_fails_to_take_in_is_dropped_and_its_job_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World()
    await w.submit(BAD)
    await w.submit("j-good")
    for _ in range(5):
        await w.sync()
    mistaken(monkeypatch, ClusterState, "go")
    await w.ask(AskKind.PRIORITISE, BAD, 7)
    await w.ask(AskKind.CANCEL, "j-good")
    for _ in range(8):
        await w.sync()
    assert await w.store.asks(pool="default", limit=10) == []
    assert await w.state(BAD) is JobState.RUNNING
    assert await w.state("j-good") is JobState.CANCELLED


async def test_the_reports_of_a_node_that_the_core_fails_to_take_in_are_refused_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = World()
    await w.sync()
    good, w.node = w.node, ScriptedNode(BAD, capacity(gpus=4))
    with monkeypatch.context() as patch:
        mistaken(patch, Pool, "see")
        refusals = [await answered(w) for _ in range(3)]
        assert [bool(refused) for refused in refusals] == [False, False, True]
        assert "KeyError" in refusals[-1]
        w.node = good
        await w.submit("j-good")
        for _ in range(5):
            await w.sync()
        assert await w.state("j-good") is JobState.RUNNING
    w.node = ScriptedNode(BAD, capacity(gpus=4))
    assert await answered(w)
    w.now += REFUSED_SECONDS
    assert await answered(w) == ""
    assert BAD in w.scheduler_loop.core.cluster_state.pool.nodes


async def test_an_exception_about_no_job_ends_the_scheduler_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be kept from the core, and another scheduler may be of another version."""
    w = World()
    await w.sync()

    def wrong(core: Scheduler, now: float) -> Any:
        raise KeyError("on purpose")

    monkeypatch.setattr(Scheduler, "_lose_nodes", wrong)
    with pytest.raises(KeyError):
        await w.cycles()


async def test_a_store_that_is_away_is_no_mistake() -> None:
    w = World()
    await w.sync()
    await w.submit("j-1")
    for _ in range(3):
        w.store.away = 1
        with pytest.raises(StoreUnavailableError):
            await w.sync()
    for _ in range(6):
        await w.sync()
    assert await w.state("j-1") is JobState.RUNNING


def _error(core: Scheduler, report: NodeReported) -> Exception:
    try:
        core.report(report, 0.0)
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def test_what_lies_long_back_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    core, poison_messages = World().scheduler_loop.core, PoisonMessages()
    report = ScriptedNode(BAD, capacity(gpus=1)).report()
    mistaken(monkeypatch, Pool, "see")
    assert poison_messages.blame(_error(core, report), 0.0)
    assert poison_messages.blame(_error(core, report), REMEMBERED_SECONDS + 1.0)
    assert not poison_messages.refuses(report, REMEMBERED_SECONDS + 1.0)
    assert poison_messages.blame(_error(core, report), REMEMBERED_SECONDS + 2.0)
    assert poison_messages.refuses(report, REMEMBERED_SECONDS + 2.0)
    assert not poison_messages.blame(MemoryError(), 0.0)
    assert not poison_messages.blame(ValueError("of the bus"), 0.0)


async def test_nothing_is_said_of_a_turn_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided before the exception is not stored, so no node hears of it."""
    w = World()
    await w.sync()
    await w.submit("j-good")
    left = [1]
    mistaken(monkeypatch, Waitlist, "group", when=lambda: bool(left) and bool(left.pop()))
    await w.submit(BAD, gpus=8)
    assert await w.sync() is None
    assert [event.event for event in await w.store.story("j-good")] == [JobEvent.SUBMITTED]
