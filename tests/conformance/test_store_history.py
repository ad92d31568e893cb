"""What every store keeps of how it was decided."""

from typing import Any

import pytest

from tests.support.steps import placement, step
from tests.support.stores import AT, World
from weft.domain.job import Cause, CauseCode, JobEvent, JobState, changed
from weft.messages.history import Record
from weft.store import DoubleAllocationError, LeaseLostError, RecordsLostError

_E, _S = JobEvent, JobState

# history


def record(number: int, *, begins: bool = False, size: int = 10, at: float = AT, epoch: int = 1) -> Record:
    body = bytes([number]) * size
    return Record(
        epoch=epoch, number=number, format=1, begins=begins, at=at, until=at + 1, cycles=2, steps=3, body=body
    )


async def numbers(world: World, **fields: Any) -> list[int]:
    return [one.number for one in await world.gateway.history(pool="default", **fields)]


async def test_a_history_is_kept_in_order_and_read_page_by_page(world: World) -> None:
    lease = await world.lead()
    for number in (1, 2, 4, 5, 3):  # one was long on its way
        await world.scheduler.record(lease, record(number, begins=number in (1, 4), at=AT + number / 4))
    await world.scheduler.record(lease, record(1, begins=True, epoch=2))
    first, second = await world.gateway.history(pool="default", limit=2)
    assert first == record(1, begins=True, at=AT + 0.25)
    assert second == record(2, at=AT + 0.5)
    assert await numbers(world, after=(1, 2)) == [3, 4, 5, 1]
    assert await numbers(world, after=(1, 5)) == [1]
    assert await numbers(world, after=(2, 1)) == []
    assert await numbers(world, bytes_max=21) == [1, 2, 3]
    assert await numbers(world, bytes_max=20) == [1, 2]
    assert await numbers(world, bytes_max=1) == [1]
    assert await world.gateway.history(pool="other") == []


async def test_steps_and_what_they_were_decided_from_are_stored_together_or_not_at_all(world: World) -> None:
    lease = await world.lead()
    first, second = await world.admitted(lease, "j-1", "j-2")
    fits = Cause(code=CauseCode.FITS)
    placed = changed(first, step(first, _E.PLACED, at=AT, cause=fits, placement=placement(("node-1", 0))))
    assert await world.scheduler.take(lease, [placed], record=record(1, begins=True)) == [True]
    assert await numbers(world) == [1]
    twice = changed(second, step(second, _E.PLACED, at=AT, cause=fits, placement=placement(("node-1", 0))))
    with pytest.raises(DoubleAllocationError):
        await world.scheduler.take(lease, [twice], record=record(2))
    assert await numbers(world) == [1]
    assert await world.scheduler.take(lease, [placed], record=record(2)) == [False]  # it was decided all the same
    assert await numbers(world) == [1, 2]


async def test_a_record_without_the_one_before_it_is_refused_with_its_steps(world: World) -> None:
    """The store went back in time, and who decided knows more than it."""
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    await world.scheduler.record(lease, record(1, begins=True))
    cancelled = changed(job, step(job, _E.CANCELLED, at=AT))
    for late in (record(3), record(2, epoch=2), record(1, epoch=2)):
        with pytest.raises(RecordsLostError):
            await world.scheduler.record(lease, late)
        with pytest.raises(RecordsLostError):
            await world.scheduler.take(lease, [cancelled], record=late)
    assert await numbers(world) == [1]
    assert await world.scheduler.take(lease, [cancelled], record=record(2)) == [True]
    await world.scheduler.record(lease, record(4, begins=True))
    assert await numbers(world) == [1, 2, 4]


async def test_who_lost_the_lease_writes_no_history(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    for number in (1, 2):
        await world.scheduler.record(lease, record(number, begins=True))
    await world.lead(holder="another")
    with pytest.raises(LeaseLostError):
        await world.scheduler.record(lease, record(3))
    with pytest.raises(LeaseLostError):
        await world.scheduler.take(lease, [changed(job, step(job, _E.CANCELLED, at=AT))], record=record(3))
    with pytest.raises(LeaseLostError):
        await world.scheduler.trim_history(lease, before=AT, bytes_max=0)
    assert await numbers(world) == [1, 2]


@pytest.mark.parametrize(
    ("before", "bytes_max", "left"),
    [
        (AT, 1000, [1, 2, 3, 4, 5, 6, 7]),
        (AT + 3.5, 1000, [3, 4, 5, 6, 7]),  # what follows the last beginning that is too old may be younger
        (AT + 100, 1000, [6, 7]),
        (AT, 60, [3, 4, 5, 6, 7]),
        (AT, 49, [6, 7]),
        (AT, 0, [6, 7]),  # there is always something to begin with
        (AT + 100, 60, [6, 7]),
    ],
)
async def test_what_is_left_of_a_history_begins_with_a_beginning(
    world: World, before: float, bytes_max: int, left: list[int]
) -> None:
    lease = await world.lead()
    other = await world.lead("other")
    await world.scheduler.record(other, record(1, begins=True))
    for number in range(1, 8):
        await world.scheduler.record(lease, record(number, begins=number in (1, 3, 6), at=AT + number))
    dropped = await world.scheduler.trim_history(lease, before=before, bytes_max=bytes_max)
    assert (dropped, await numbers(world)) == (7 - len(left), left)
    assert await world.scheduler.trim_history(lease, before=before, bytes_max=bytes_max) == 0
    assert len(await world.gateway.history(pool="other")) == 1


async def test_trimming_a_history_that_is_not_there_is_nothing(world: World) -> None:
    assert await world.scheduler.trim_history(await world.lead(), before=AT, bytes_max=0) == 0
