"""How tenants share what is costly: each has its turns, and none waits behind another's queue."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from weftd.gateway.errors import RejectedError
from weftd.gateway.limits.concurrency import ConcurrencyLimit


def turns(
    *, at_once: int = 2, per_tenant: int = 1, waiting_max: int = 4, wait_seconds: float = 20.0
) -> ConcurrencyLimit:
    return ConcurrencyLimit(
        "reads", at_once=at_once, per_tenant=per_tenant, waiting_max=waiting_max, wait_seconds=wait_seconds
    )


async def settled() -> None:
    """Everybody who can go on has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


class Reader:
    """One request, which has its turn until it is let go."""

    def __init__(self, share: ConcurrencyLimit, tenant: str, *, patient: bool = False) -> None:
        self.has_turn = False
        self.go = asyncio.Event()
        self.task = asyncio.create_task(self._run(share, tenant, patient))

    async def _run(self, share: ConcurrencyLimit, tenant: str, patient: bool) -> None:
        async with share.one(tenant, patient=patient):
            self.has_turn = True
            await self.go.wait()


async def test_one_tenants_queue_delays_another_by_nothing() -> None:
    share = turns()
    alices = [Reader(share, "alice") for _ in range(5)]
    await settled()
    bobs = Reader(share, "bob")
    await settled()
    assert [reader.has_turn for reader in alices] == [True, False, False, False, False]
    assert bobs.has_turn
    for reader in (bobs, *alices):
        reader.go.set()
    await asyncio.gather(bobs.task, *(reader.task for reader in alices))
    assert all(reader.has_turn for reader in alices)


async def test_with_one_turn_for_all_tenants_take_it_in_turn() -> None:
    share = turns(at_once=1)
    alices = [Reader(share, "alice") for _ in range(3)]
    bobs = Reader(share, "bob")
    await settled()
    assert (alices[0].has_turn, bobs.has_turn) == (True, False)
    alices[0].go.set()
    await settled()
    assert (alices[1].has_turn, bobs.has_turn) == (False, True)
    for reader in (bobs, *alices):
        reader.go.set()
    await asyncio.gather(bobs.task, *(reader.task for reader in alices))


async def test_more_than_may_wait_are_refused_at_once_and_another_tenant_is_not() -> None:
    share = turns(waiting_max=2)
    readers = [Reader(share, "alice") for _ in range(3)]
    await settled()
    with pytest.raises(RejectedError) as caught:
        async with share.one("alice"):
            pass
    assert (caught.value.status, "tenant alice may have 1 reads at once" in caught.value.reason) == (429, True)
    patient = Reader(share, "alice", patient=True)
    async with share.one("bob"):
        pass
    for reader in (*readers, patient):
        reader.go.set()
    await asyncio.gather(*(reader.task for reader in (*readers, patient)))


async def test_who_waits_too_long_is_refused_and_takes_nothing_with_it() -> None:
    share = turns(at_once=1, wait_seconds=0.01)
    async with share.one("alice"):
        for tenant in ("alice", "bob"):
            with pytest.raises(RejectedError):
                async with share.one(tenant):
                    pass
    for tenant in ("alice", "bob"):
        async with share.one(tenant):
            pass


async def test_who_leaves_while_it_waits_gives_its_place_back() -> None:
    share = turns(at_once=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(share.one("alice"))
        waiting = [Reader(share, tenant) for tenant in ("alice", "bob")]
        await settled()
        for reader in waiting:
            reader.task.cancel()
        await asyncio.wait([reader.task for reader in waiting])
    for tenant in ("alice", "bob"):
        async with share.one(tenant):
            pass


async def test_where_no_request_may_wait_one_without_a_free_turn_is_refused_and_leaves_nothing() -> None:
    share = turns(at_once=2, per_tenant=1, wait_seconds=0)
    async with share.one("alice"), share.one("bob"):
        for tenant in ("alice", "carol"):
            with pytest.raises(RejectedError, match="too many reads are open; end some, or ask again later") as caught:
                await share.take(tenant)
            assert caught.value.status == 503
    async with share.one("carol"), share.one("alice"):
        pass
