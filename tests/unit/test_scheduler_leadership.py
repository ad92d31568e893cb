"""Who leads, as one scheduler sees it: by what the store said to it, and never by what it failed to hear."""

import pytest

from tests.support.doubles.store import MemoryStore
from weft.domain.lease import Lease, Pledge
from weft.store import StoreUnavailableError
from weftd.scheduler.leadership import Leadership

LEADER_SECONDS = 6.0


class Flaky(MemoryStore):
    readable = True
    writable = True

    async def lease(self, name: str) -> Lease | None:
        if not self.readable:
            raise StoreUnavailableError("cannot be read")
        return await super().lease(name)

    async def renew_lease(self, lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        if not self.writable:
            raise StoreUnavailableError("cannot be written")
        return await super().renew_lease(lease, pledge=pledge)


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.store = Flaky()

    def join(self, holder: str) -> Leadership:
        return Leadership(
            name="default", holder=holder, store=self.store, clock=lambda: self.now, leader_seconds=LEADER_SECONDS
        )


async def test_nothing_is_abandoned_before_the_first_look() -> None:
    world = World()
    leader, standby = world.join("leader"), world.join("standby")
    await leader.beat()
    world.now += 100.0
    assert not standby.abandoned


async def test_a_lease_is_not_abandoned_because_we_could_not_look() -> None:
    """A standby that could not read the store for a while answered nodes in place of a leader in good health."""
    world = World()
    leader, standby = world.join("leader"), world.join("standby")
    await leader.beat()
    await standby.beat()
    world.store.readable = False
    for _ in range(10):
        world.now += 1.0
        await leader.beat()
        with pytest.raises(StoreUnavailableError):
            await standby.beat()
        assert not standby.abandoned
    world.store.readable = True
    await standby.beat()
    assert not standby.abandoned
    assert leader.lease is not None


async def test_a_standby_answers_no_node_while_it_knows_that_another_leads() -> None:
    world = World()
    leader, standby = world.join("leader"), world.join("standby")
    assert leader.may_answer
    assert standby.may_answer, "it has not looked"
    await leader.beat()
    await standby.beat()
    assert (leader.may_answer, standby.may_answer) == (True, False)
    world.store.readable = False
    world.now += LEADER_SECONDS + 0.1
    assert standby.may_answer, "what it knows is too old"
    world.store.readable = True
    await leader.beat()
    await standby.beat()
    assert not standby.may_answer
    await leader.resign()
    await standby.beat()
    assert (leader.may_answer, standby.may_answer) == (True, True), "the one that resigned has not looked since"
    world.now += 1.0
    await leader.beat()
    assert (leader.may_answer, standby.may_answer) == (False, True)


async def test_a_pool_is_taken_only_by_a_scheduler_that_may() -> None:
    world = World()
    one = world.join("one")
    await one.beat(may_take=lambda: False)
    assert one.leader is None
    assert one.abandoned
    await one.beat()
    assert one.leader is not None
    await one.give_up()
    assert one.leader is None
    assert (await world.store.lease("default")).holder == ""


async def test_a_lease_that_is_not_renewed_between_two_looks_is_taken() -> None:
    world = World()
    leader, standby = world.join("leader"), world.join("standby")
    await leader.beat()
    await standby.beat()
    world.now += LEADER_SECONDS + 0.1
    assert not standby.abandoned
    await standby.beat()
    assert standby.lease is not None
    assert leader.lease is None


async def test_a_leader_whose_store_takes_no_writes_sees_that_nobody_leads() -> None:
    world = World()
    leader = world.join("leader")
    await leader.beat()
    world.store.writable = False
    for _ in range(8):
        world.now += 1.0
        with pytest.raises(StoreUnavailableError):
            await leader.beat()
    assert leader.lease is None
    assert leader.abandoned


async def test_a_lease_that_is_lost_while_it_is_renewed_is_watched_again() -> None:
    """The scheduler loop heard first that it was lost: the scheduler died of the answer to its renewal."""
    world = World()
    leader, other = world.join("leader"), world.join("other")
    await leader.beat()
    held = leader.lease
    assert held is not None
    renew = world.store.renew_lease

    async def renew_slowly(lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        leader.lost()
        await world.store.take_lease("default", holder="other", seen=held)
        return await renew(lease)

    world.store.renew_lease = renew_slowly  # type: ignore[method-assign]
    await leader.beat()
    assert leader.lease is None
    await leader.beat()
    assert not leader.abandoned
    assert other.lease is None


async def test_only_the_time_between_two_looks_counts() -> None:
    world = World()
    leader, standby = world.join("leader"), world.join("standby")
    await leader.beat()
    await standby.beat()
    world.now += 3.0
    await standby.beat()  # it was not renewed meanwhile
    await leader.beat()
    world.now += 4.0
    assert not standby.abandoned
