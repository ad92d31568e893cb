"""What every store promises of leases: who leads, and that nobody else writes."""

import asyncio

import pytest
from msgspec import structs

from tests.support.builders import node, spec
from tests.support.steps import step
from tests.support.stores import AT, World
from weft.domain.job import JobEvent, changed
from weft.domain.lease import Lease, Pledge
from weft.messages.asks import AskKind
from weft.store import LeaseLostError, LoadedSinceError

_E = JobEvent


async def test_of_two_who_take_a_lease_one_has_it(world: World) -> None:
    assert await world.scheduler.lease("default") is None
    taken = await asyncio.gather(
        *(world.scheduler.take_lease("default", holder=f"s-{number}", seen=None) for number in range(10))
    )
    (lease,) = filter(None, taken)
    assert (lease.name, lease.epoch, lease.seq) == ("default", 1, 0)
    assert await world.scheduler.lease("default") == lease


async def test_an_abandoned_lease_is_taken_only_if_it_did_not_change(world: World) -> None:
    seen = await world.lead(holder="old")
    renewed = await world.scheduler.renew_lease(seen)
    assert renewed is not None
    assert (renewed.holder, renewed.epoch, renewed.seq) == ("old", 1, 1)
    assert await world.scheduler.take_lease("default", holder="new", seen=seen) is None
    taken = await world.scheduler.take_lease("default", holder="new", seen=renewed)
    assert taken is not None
    assert (taken.holder, taken.epoch, taken.seq) == ("new", 2, 0)
    assert await world.scheduler.renew_lease(renewed) is None


async def test_a_released_lease_is_free_and_only_its_owner_releases_it(world: World) -> None:
    old = await world.lead(holder="old")
    new = await world.scheduler.take_lease("default", holder="new", seen=old)
    assert new is not None
    await world.scheduler.release_lease(old)
    assert await world.scheduler.lease("default") == new
    await world.scheduler.release_lease(new)
    free = await world.scheduler.lease("default")
    assert free is not None
    assert (free.holder, free.epoch) == ("", 2)
    with pytest.raises(LeaseLostError):
        await world.scheduler.admit(new, load=0, pool="default", limit=1)
    third = await world.scheduler.take_lease("default", holder="third", seen=None)
    assert third is not None
    assert third.epoch == 3


async def test_how_earlier_leaderships_ended_is_kept_whoever_ended_them(world: World) -> None:
    first = await world.lead(holder="first")
    renewed = await world.scheduler.renew_lease(first)
    second = await world.scheduler.take_lease("default", holder="second", seen=renewed)
    assert second is not None
    assert await world.scheduler.leaderships("default") == [renewed]
    await world.scheduler.release_lease(second)
    await world.lead(holder="third")
    assert await world.scheduler.leaderships("default") == [renewed, second]
    assert await world.scheduler.leaderships("other") == []


async def test_a_lease_is_raised_above_what_was_heard_and_marked_until_it_is_settled(world: World) -> None:
    first = await world.lead(holder="first")
    lease = await world.scheduler.take_lease("default", holder="second", seen=first)
    assert lease is not None
    raised = await world.scheduler.raise_lease(lease, above=40)
    assert raised == Lease(name="default", holder="second", epoch=41, seq=0, went_back=True)
    assert await world.scheduler.lease("default") == raised
    assert await world.scheduler.leaderships("default") == []  # they were of another past
    with pytest.raises(LeaseLostError):
        await world.scheduler.admit(lease, load=0, pool="default", limit=1)
    assert await world.scheduler.raise_lease(lease, above=100) is None
    assert await world.scheduler.settle_lease(lease) is None

    third = await world.scheduler.take_lease("default", holder="third", seen=raised)
    assert third is not None
    assert (third.epoch, third.went_back) == (42, True)  # the next leader has to wait, too
    renewed = await world.scheduler.renew_lease(third)
    assert renewed is not None
    assert renewed.went_back
    settled = await world.scheduler.settle_lease(renewed)
    assert settled == structs.replace(renewed, went_back=False)
    assert await world.scheduler.lease("default") == settled
    assert await world.scheduler.leaderships("default") == [structs.replace(raised, went_back=False)]
    low = await world.scheduler.raise_lease(settled, above=3)
    assert low is not None
    assert low.epoch == 43


async def test_what_a_former_leader_writes_is_refused_whole(world: World) -> None:
    stale = await world.lead(holder="old")
    (job,) = await world.admitted(stale, "j-1")
    await world.scheduler.save_node(stale, node(), event="joined", cause="")
    await world.gateway.submit(spec(), job_id="j-2", tenant="alice", key=None, at=AT)
    await world.gateway.ask(AskKind.CANCEL, subject_id="j-1", pool="default", tenant="alice", at=AT)
    asks = await world.scheduler.asks(pool="default", limit=10)
    nodes, events = await world.scheduler.nodes(), await world.gateway.events()
    lease = await world.scheduler.take_lease("default", holder="new", seen=stale)
    assert lease is not None
    forged = structs.replace(lease, holder="old")
    store = world.scheduler
    for former in (stale, forged, Lease(name="nobodys", holder="old", epoch=1, seq=0)):
        for writing in (
            store.take(former, [changed(job, step(job, _E.WAITING, at=AT))]),
            store.admit(former, load=0, pool="default", limit=1),
            store.drop_asks(former, [asks[0].id]),
            store.save_node(former, node(drained=True), event="drained", cause=""),
            store.save_node(former, node("node-2"), event="", cause=""),
            store.touch_nodes(former, ["node-1"], at=AT + 100),
        ):
            with pytest.raises(LeaseLostError):
                await writing
    assert await store.open_jobs(pool="default") == [job]
    assert await store.asks(pool="default", limit=10) == asks
    assert (await store.nodes(), await world.gateway.events()) == (nodes, events)
    assert await world.take(lease, step(job, _E.WAITING, at=AT)) == [True]


async def test_by_what_a_pool_is_led_is_what_its_leader_said_last(world: World) -> None:
    assert await world.gateway.policy(pool="default") == ""
    lease = await world.lead()
    assert await world.gateway.policy(pool="default") == ""
    assert await world.gateway.preemption_after(pool="default") == 0.0
    assert await world.gateway.spares(pool="default") == 0
    await world.scheduler.lead_by(lease, "las+weft-best+easy", preemption_after=300.0, spares=2)
    assert await world.gateway.policy(pool="default") == "las+weft-best+easy"
    assert await world.gateway.preemption_after(pool="default") == 300.0
    assert await world.gateway.spares(pool="default") == 2
    assert await world.gateway.policy(pool="other") == ""
    other = await world.lead(holder="other")
    with pytest.raises(LeaseLostError):
        await world.scheduler.lead_by(lease, "fifo+packed+none")
    await world.scheduler.lead_by(other, "fifo+packed+easy")
    assert await world.gateway.policy(pool="default") == "fifo+packed+easy"


async def test_what_an_earlier_load_of_a_pool_would_admit_is_left_to_the_latest(world: World) -> None:
    lease = await world.lead()
    await world.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
    store = world.scheduler
    early = await store.lead_by(lease, "fifo+packed+none")
    latest = await store.lead_by(lease, "fifo+packed+none")
    assert latest == early + 1
    for load in (0, early, latest + 1):
        with pytest.raises(LoadedSinceError):
            await store.admit(lease, load=load, pool="default", limit=1)
    assert await store.open_jobs(pool="default") == []
    assert await store.renew_lease(lease) is not None  # who loaded anew leads on
    (job,) = await store.admit(lease, load=latest, pool="default", limit=1)
    assert await store.open_jobs(pool="default") == [job]


async def test_what_an_earlier_load_of_a_pool_would_write_of_a_node_is_left_to_the_latest(world: World) -> None:
    lease = await world.lead()
    store = world.scheduler
    early = await store.lead_by(lease, "fifo+packed+none")
    await store.save_node(lease, node(), event="joined", cause="", load=early)
    await world.gateway.ask(AskKind.DRAIN, subject_id="node-1", pool="default", tenant="ops", at=AT)
    (ask,) = await store.asks(pool="default", limit=10)
    latest = await store.lead_by(lease, "fifo+packed+none")
    nodes, events = await store.nodes(), await world.gateway.events()
    for load in (0, early, latest + 1):
        for writing in (
            store.save_node(lease, node(drained=True), event="drained", cause="", ask=ask.id, load=load),
            store.save_node(lease, node("node-2"), event="joined", cause="", load=load),
            store.remove_node(lease, "node-1", cause="gone", at=AT, load=load),
        ):
            with pytest.raises(LoadedSinceError):
                await writing
    assert (await store.nodes(), await world.gateway.events()) == (nodes, events)
    assert await store.asks(pool="default", limit=10) == [ask]
    with pytest.raises(LeaseLostError):
        await store.remove_node(structs.replace(lease, holder="other"), "node-1", cause="gone", at=AT, load=latest)
    await store.save_node(lease, node(drained=True), event="drained", cause="", ask=ask.id, load=latest)
    assert await store.asks(pool="default", limit=10) == []
    await store.remove_node(lease, "node-1", cause="gone", at=AT, load=latest)
    assert await store.nodes() == []


async def test_the_loads_of_a_pool_are_counted_on_by_its_next_leader_and_apart_from_another_pools(world: World) -> None:
    first = await world.lead()
    other = await world.lead("other")
    load = await world.scheduler.lead_by(first, "")
    new = await world.lead(holder="new")
    with pytest.raises(LeaseLostError):
        await world.scheduler.lead_by(first, "")
    with pytest.raises(LeaseLostError):
        await world.scheduler.admit(first, load=load, pool="default", limit=1)
    assert await world.scheduler.lead_by(new, "") == load + 1
    assert await world.scheduler.lead_by(other, "") == load


async def test_a_pledge_is_kept_until_another_is_given_or_it_is_taken_back(world: World) -> None:
    pledge = Pledge(seconds=3600.0, members=("new", "old"), nats="nats-1")
    old = await world.lead(holder="old")
    assert old.pledge == Pledge()
    renewed = await world.scheduler.renew_lease(old, pledge=pledge)
    assert renewed is not None
    assert renewed.pledge == pledge
    again = await world.scheduler.renew_lease(renewed)
    assert again is not None
    new = await world.scheduler.take_lease("default", holder="new", seen=again)
    assert new is not None
    assert new.pledge == pledge, "the next leader reads what the one before it has pledged"
    await world.scheduler.release_lease(new)
    free = await world.scheduler.lease("default")
    assert free is not None
    assert free.pledge == pledge
    third = await world.scheduler.take_lease("default", holder="third", seen=None)
    assert third is not None
    await world.scheduler.release_lease(third, pledge_ends=True)
    free = await world.scheduler.lease("default")
    assert free is not None
    assert free.pledge.seconds == 0.0
