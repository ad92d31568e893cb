"""When a router looks at the store: not for each event of jobs that serve nothing."""

import pytest

from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.service_loads import service_job
from weft.domain.job import JobEvent
from weft.messages.events import EventTold
from weftd.router.service import MOVES, OPENS, Shell
from weftd.router.settings import RouterSettings


class Passing:
    """No request is under way."""

    async def count(self) -> int | None:
        return 0


async def shell() -> Shell:
    """Of a router that knows of one service, `j-serves`."""
    store = MemoryStore()
    lease = await store.take_lease("default", holder="me", seen=None)
    assert lease is not None
    await store.submit(service_job().spec, job_id="j-serves", tenant="alice", key=None, at=1.0)
    await store.admit(lease, load=0, pool="default", limit=10)
    made = Shell(
        RouterSettings(),
        bus=MemoryBus(),
        store=store,
        name="router-1",
        boot="a",
        now=lambda: 1.0,
        clock=lambda: 1.0,
        passing=Passing(),  # type: ignore[arg-type]
    )
    await made.read()
    return made


def event(job_id: str, what: str, topic: str = "jobs") -> EventTold:
    return EventTold(id=f"{topic}/{job_id}/7", type=f"weft.{topic}.{what}")


@pytest.mark.parametrize("what", sorted(MOVES - OPENS))
async def test_what_becomes_of_a_job_that_serves_nothing_is_no_reason_to_look(what: JobEvent) -> None:
    made = await shell()
    await made.hear_event(event("j-trains", what.value))
    assert not made.read_now.is_set()
    await made.hear_event(event("j-serves", what.value))
    assert made.read_now.is_set()


@pytest.mark.parametrize("what", sorted(OPENS))
async def test_a_job_of_which_a_router_has_not_heard_may_be_a_service(what: JobEvent) -> None:
    made = await shell()
    await made.hear_event(event("j-new", what.value))
    assert made.read_now.is_set()


async def test_a_node_that_comes_or_goes_may_have_another_address() -> None:
    made = await shell()
    await made.hear_event(event("node-1", "joined", topic="nodes"))
    assert made.read_now.is_set()


def test_an_event_tells_what_it_is_about() -> None:
    assert event("j-1", "placed").subject_id == "j-1"
    assert event("node/of/slashes", "lost", topic="nodes").subject_id == "node/of/slashes"
