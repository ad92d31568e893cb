"""What every store promises of early stopping: a value is stored once, with the ask that follows from it."""

from tests.support.builders import spec
from tests.support.steps import go
from tests.support.stores import AT, World
from weft.domain.decoding.elements import elements_of
from weft.domain.job import Cause, CauseCode, JobEvent
from weft.domain.sweeps import RungReached
from weft.messages.asks import AskKind

RULE = {"metric": "loss", "after": 10}
WHY = Cause(code=CauseCode.STOPPED_EARLY, sentence="loss 2 at step 10", numbers={"value": 2.0})


def reached(index: int, rung: int = 0, value: float = 2.5, *, array: str = "a-1") -> RungReached:
    return RungReached(array=array, job_id=f"j-1-{index}", rung=rung, value=value)


async def test_a_value_is_stored_once_and_its_ask_with_it(world: World) -> None:
    given = spec("part", array="0-2", early_stop=RULE)
    await world.gateway.submit_array(
        elements_of(given, "a-1"), given=given, array="a-1", tenant="alice", key=None, at=AT, allowance=None
    )
    lease = await world.lead()
    jobs = await world.scheduler.admit(lease, load=0, pool="default", limit=10)
    assert jobs[1].spec.early_stop == given.early_stop
    store = world.reallocator
    assert await store.reach_rung(reached(0), pool="default", why=None, at=AT)
    assert await store.reach_rung(reached(1, value=2.0), pool="default", why=WHY, at=AT)
    assert not await store.reach_rung(reached(1, value=3.0), pool="default", why=WHY, at=AT), "it is known"
    assert await store.reach_rung(reached(1, rung=1), pool="default", why=None, at=AT)
    for wrong in (reached(7), reached(2, array="a-2")):
        assert not await store.reach_rung(wrong, pool="default", why=WHY, at=AT)
    assert not await store.reach_rung(reached(2), pool="other", why=WHY, at=AT)
    assert await store.rungs(["a-1", "a-2"]) == [reached(0), reached(1, value=2.0), reached(1, rung=1)]
    assert await store.rungs(["a-2"]) == []
    [ask] = await world.scheduler.asks(pool="default", limit=10)
    assert (ask.kind, ask.subject_id, ask.tenant, ask.why) == (AskKind.CANCEL, "j-1-1", "weft", WHY)


async def test_what_is_over_is_not_asked_to_end(world: World) -> None:
    given = spec("part", array="0-1", early_stop=RULE)
    await world.gateway.submit_array(
        elements_of(given, "a-1"), given=given, array="a-1", tenant="alice", key=None, at=AT, allowance=None
    )
    lease = await world.lead()
    [first, _] = await world.scheduler.admit(lease, load=0, pool="default", limit=10)
    await go(world.scheduler, lease, first, JobEvent.CANCELLED, at=AT)
    assert await world.reallocator.reach_rung(reached(0), pool="default", why=WHY, at=AT)
    assert await world.scheduler.asks(pool="default", limit=10) == []


async def test_a_cancel_of_a_user_has_no_other_cause(world: World) -> None:
    await world.gateway.ask(AskKind.CANCEL, subject_id="j-1", pool="default", tenant="alice", at=AT)
    [ask] = await world.scheduler.asks(pool="default", limit=10)
    assert ask.why is None
