"""Which running jobs give way to one that may pre-empt them: few, the least important, with the least work lost."""

from collections.abc import Sequence

from msgspec import Struct

from libs.domain.job import Allocation
from libs.planning.room import NoRoom, Room, Shape


class Holder(Struct, frozen=True, kw_only=True):
    """A running job that may be asked to give way."""

    job_id: str
    priority: int
    started_at: float  # later: less work is lost with it
    allocations: tuple[Allocation, ...]


class Clearing(Struct, frozen=True):
    """Who must go, and the nodes that are then needed, those that are free already among them."""

    victims: tuple[Holder, ...]
    nodes: tuple[str, ...]


def clearing_for(shape: Shape, *, priority: int, room: Room, holders: Sequence[Holder]) -> Clearing | None:
    """The holders of lower priority without which `shape` fits; None if it would not fit without all of them.

    `room` is left as it was found.
    """
    willing = sorted(
        (holder for holder in holders if holder.priority < priority and _open_somewhere(holder, room)),
        key=lambda holder: (holder.priority, -holder.started_at, holder.job_id),
    )
    given_up: list[Holder] = []
    grown = room.grown
    chunk = 1
    while not _fits(shape, room):
        if not willing:
            _take(given_up, room)
            room.grown = grown
            return None
        leaving, willing = willing[:chunk], willing[chunk:]
        _give_back(leaving, room)
        given_up += leaving
        chunk *= 2
    needed: list[Holder] = []
    for holder in reversed(given_up):  # the most important first: may it stay?
        _take([holder], room)
        if not _fits(shape, room):
            _give_back([holder], room)
            needed.append(holder)
    placed = room.place(shape)
    assert not isinstance(placed, NoRoom), "it fitted a moment ago"
    _take(needed, room)
    room.grown = grown
    return Clearing(
        tuple(sorted(needed, key=lambda holder: holder.job_id)),
        tuple(sorted({allocation.node_id for allocation in placed})),
    )


def _fits(shape: Shape, room: Room) -> bool:
    return not isinstance(room.place(shape), NoRoom)


def _open_somewhere(holder: Holder, room: Room) -> bool:
    return any(room.is_open(allocation.node_id) for allocation in holder.allocations)


def _give_back(holders: Sequence[Holder], room: Room) -> None:
    for holder in holders:
        for allocation in holder.allocations:
            room.give_back(allocation)


def _take(holders: Sequence[Holder], room: Room) -> None:
    for holder in holders:
        for allocation in holder.allocations:
            room.take(allocation)
