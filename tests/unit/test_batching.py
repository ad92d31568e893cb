"""Calls that share a statement: none is lost, mixed up, or harmed by another."""

import asyncio
from collections.abc import Sequence

import pytest

from weft.store import StoreUnavailableError, UnlawfulError
from weft.store.postgres.batching import COUNT_MAX, Batching


class Carrier:
    """Answers each item with ten times itself, when it is let go; refuses a batch with a negative one."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.away = False
        self.let_go = asyncio.Event()

    async def carry(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.let_go.wait()
        if self.away:
            raise StoreUnavailableError("away")
        if min(items) < 0:
            raise UnlawfulError("negative")
        return [10 * item for item in items]

    def batching(self) -> Batching[int, int]:
        return Batching(self.carry, alone_on=(UnlawfulError,))


async def _all_waiting() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_of_one_moment_go_together_and_each_has_its_own_answer() -> None:
    carrier = Carrier()
    carrier.let_go.set()
    batching = carrier.batching()
    assert await asyncio.gather(*map(batching.one, range(5))) == [0, 10, 20, 30, 40]
    assert carrier.batches == [[0, 1, 2, 3, 4]]


async def test_calls_wait_only_while_two_batches_are_on_their_way() -> None:
    carrier = Carrier()
    batching = carrier.batching()
    calls = []
    for number in range(COUNT_MAX + 4):
        calls.append(asyncio.create_task(batching.one(number)))
        if number < 3:
            await _all_waiting()
    await _all_waiting()
    assert carrier.batches == [[0], [1]]
    carrier.let_go.set()
    assert await asyncio.gather(*calls) == [10 * number for number in range(COUNT_MAX + 4)]
    assert [len(batch) for batch in carrier.batches] == [1, 1, COUNT_MAX, 2]


async def test_an_item_that_is_refused_harms_no_other() -> None:
    carrier = Carrier()
    carrier.let_go.set()
    batching = carrier.batching()
    answers = await asyncio.gather(*map(batching.one, (1, -1, 2)), return_exceptions=True)
    assert (answers[0], answers[2]) == (10, 20)
    assert isinstance(answers[1], UnlawfulError)


async def test_all_are_told_at_once_that_the_store_is_away() -> None:
    carrier = Carrier()
    batching = carrier.batching()
    calls = []
    for number in range(4):
        calls.append(asyncio.create_task(batching.one(number)))
        await _all_waiting()
    carrier.away = True
    carrier.let_go.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailableError) for answer in answers)
    assert carrier.batches == [[0], [1]]


async def test_a_caller_that_leaves_takes_nobody_along() -> None:
    carrier = Carrier()
    batching = carrier.batching()
    leaving, staying = (asyncio.create_task(batching.one(number)) for number in range(2))
    await _all_waiting()
    leaving.cancel()
    carrier.let_go.set()
    assert await staying == 10
    with pytest.raises(asyncio.CancelledError):
        await leaving
