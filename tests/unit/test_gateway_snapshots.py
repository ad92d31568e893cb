"""Values that requests share: how old one may be, and what is read beside them."""

import asyncio

import pytest

from weft.store import StoreUnavailableError
from weftd.gateway.readmodel.snapshots import SECONDS, Fresh


class Counted:
    """Reads 1, 2, 3, …; `now` is the time of the test's clock."""

    def __init__(self) -> None:
        self.now, self.reads = 100.0, 0
        self.fresh: Fresh[int] = Fresh(self._read, clock=lambda: self.now)

    async def _read(self) -> int:
        self.reads += 1
        return self.reads


async def test_a_value_is_read_again_when_it_is_too_old() -> None:
    counted = Counted()
    assert [await counted.fresh.get(), await counted.fresh.get()] == [1, 1]
    counted.now += SECONDS
    assert await counted.fresh.get() == 2


async def test_what_is_read_aside_is_no_answer_to_a_request() -> None:
    counted = Counted()
    assert await counted.fresh.aside() == 1
    assert await counted.fresh.get() == 2
    assert await counted.fresh.get() == 2


async def test_what_a_request_has_read_serves_work_aside_and_other_requests() -> None:
    counted = Counted()
    assert [await counted.fresh.get(), await counted.fresh.aside(), await counted.fresh.get()] == [1, 1, 1]


class Slow:
    """Reads 1, 2, 3, … once it may; each read takes a tenth of the test's seconds."""

    def __init__(self, *, large: bool) -> None:
        self.now, self.reads, self.fails = 100.0, 0, False
        self.may = asyncio.Event()
        self.may.set()
        self.fresh: Fresh[int] = Fresh(self._read, clock=lambda: self.now, quick=True, is_large=lambda _: large)

    async def _read(self) -> int:
        await self.may.wait()
        if self.fails:
            raise StoreUnavailableError("it is away")
        self.now += 0.1
        self.reads += 1
        return self.reads


async def test_of_what_is_large_an_answer_that_is_still_new_enough_does_not_wait_for_the_next() -> None:
    slow = Slow(large=True)
    assert await slow.fresh.get() == 1
    slow.may.clear()
    slow.now += 0.5
    assert [await slow.fresh.get(), await slow.fresh.get()] == [1, 1]
    slow.may.set()
    await asyncio.sleep(0.01)
    assert (slow.reads, await slow.fresh.get()) == (2, 2)
    slow.now += SECONDS
    assert await slow.fresh.get() == 3


async def test_work_aside_takes_the_same_and_has_no_request_wait() -> None:
    slow = Slow(large=True)
    assert await slow.fresh.get() == 1
    slow.may.clear()
    slow.now += 0.5
    assert [await slow.fresh.aside(), await slow.fresh.get()] == [1, 1]


async def test_what_is_small_is_waited_for_and_what_cannot_be_read_is_said_at_once() -> None:
    slow = Slow(large=False)
    assert await slow.fresh.get() == 1
    slow.now += 0.5
    assert await slow.fresh.get() == 2
    away = Slow(large=True)
    assert await away.fresh.get() == 1
    away.fails = True
    away.now += 0.5
    assert await away.fresh.get() == 1
    await asyncio.sleep(0.01)
    with pytest.raises(StoreUnavailableError):
        await away.fresh.get()
