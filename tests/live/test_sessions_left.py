"""Ends of sessions as nodes tell them to a gateway: once, of their own runs, and only where the story lacks them."""

from typing import Any

from tests.support.gateway_world import World
from weft.domain.job import Cause, CauseCode, Job, JobEvent
from weft.messages.asks import AskKind
from weft.messages.sessions import SessionLeft, SessionLeftNoted
from weftd.gateway.sessions.records import number_of

NAME = "a-session-as-a-gateway-drew-it"


async def tells(world: World, job: Job, *, node: str = "node-1", **fields: Any) -> None:
    left = SessionLeft(**{"node_id": node, "session_id": NAME, "job_id": job.id, "epoch": 0, "rank": 0, **fields})
    async with world.place.bus(f"executor-{node}") as bus:
        assert await bus.request(left, SessionLeftNoted, seconds_max=10) == SessionLeftNoted()


async def noted(world: World) -> list[str]:
    asks = await world.place.stores.scheduler.asks(pool="default", limit=10)
    entries = [ask.entry for ask in asks if ask.kind is AskKind.ENTER]
    return [entry.cause.sentence for entry in entries if entry is not None and entry.cause.code is CauseCode.LEFT]


def of(code: CauseCode, name: str = NAME) -> Cause:
    words = "alice opened a shell in rank 0" if code is CauseCode.ENTERED else "a shell in rank 0: alice left"
    return Cause(code=code, sentence=words, by="alice", numbers={"rank": 0.0, "session": float(number_of(name))})


async def test_an_end_is_told_once_by_the_node_of_the_run_and_of_a_session_that_the_story_has(world: World) -> None:
    job = await world.running()
    await tells(world, job)
    assert await noted(world) == [], "nobody entered"
    job = await world.go(job, JobEvent.ENTERED, cause=of(CauseCode.ENTERED))
    for wrong in ({"node": "node-2"}, {"epoch": 1}, {"rank": 1}, {"session_id": "another"}, {"session_id": ""}):
        await tells(world, job, **wrong)
    assert await noted(world) == []
    await tells(world, job, status=7)
    (sentence,) = await noted(world)
    assert sentence.startswith("a shell in rank 0: alice left after ")
    assert sentence.endswith(", with status 7")
    await tells(world, job, status=7)
    assert len(await noted(world)) == 1, "a repeat, whose ask the scheduler has not done yet"


async def test_what_the_story_has_already_is_not_told_again(world: World) -> None:
    job = await world.running()
    for code in (CauseCode.ENTERED, CauseCode.LEFT):
        job = await world.go(job, JobEvent.ENTERED, cause=of(code))
    await tells(world, job)
    assert await noted(world) == []


async def test_connections_to_a_port_are_told_together(world: World) -> None:
    job = await world.running()
    cause = of(CauseCode.ENTERED, f"{job.id} 0 0 8888 alice")
    job = await world.go(job, JobEvent.ENTERED, cause=cause)
    for name in ("one", "two"):
        await tells(world, job, session_id=name, port=8888)
    await tells(world, job, session_id="three", port=9999)
    assert len(await noted(world)) == 1


async def test_the_end_of_a_persons_session_names_the_person_and_is_asked_by_the_tenant(world: World) -> None:
    job = await world.running()
    by = "ada of examples@example.org of alice"
    entered = Cause(
        code=CauseCode.ENTERED,
        sentence=f"{by} opened a shell in rank 0",
        by=by,
        numbers={"rank": 0.0, "session": float(number_of(NAME))},
    )
    job = await world.go(job, JobEvent.ENTERED, cause=entered)
    await tells(world, job, status=0)
    (asked,) = await world.place.stores.scheduler.asks(pool="default", limit=10)
    assert asked.tenant == "alice"
    assert asked.entry is not None
    assert asked.entry.cause.by == by
    assert asked.entry.cause.sentence.startswith(f"a shell in rank 0: {by} left after ")
