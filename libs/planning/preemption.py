"""Which running jobs give way to a waiting one: few, those that come last in the order, with the least work lost."""

from collections.abc import Sequence

from msgspec import Struct

from libs.domain.job import Allocation
from libs.planning.order.standing import Key
from libs.planning.room import NOBODY, PlacementRequest, Room, Shape


class Holder(Struct, frozen=True, kw_only=True):
    """A running job that may be asked to give way. `worth` sorts: who is worth least leaves first."""

    job_id: str
    worth: Key
    allocations: tuple[Allocation, ...]


class Clearing(Struct, frozen=True):
    """Who must go, and the nodes that are then needed, those that are free already among them."""

    victims: tuple[Holder, ...]
    nodes: tuple[str, ...]


def clearing_for(
    shape: Shape, *, room: Room, holders: Sequence[Holder], asked: PlacementRequest = NOBODY
) -> Clearing | None:
    """Those of `holders` without whom `shape` fits; None if it would not fit without all of them.

    `room` is left as it was found.
    """
    willing = sorted(
        (holder for holder in holders if _open_somewhere(holder, room)),
        key=lambda holder: (holder.worth, holder.job_id),
    )
    given_up: list[Holder] = []
    grown = room.grown
    chunk = 1
    while not _fits(shape, room, asked):
        if not willing:
            _take(given_up, room)
            room.grown = grown
            return None
        leaving, willing = willing[:chunk], willing[chunk:]
        _give_back(leaving, room)
        given_up += leaving
        chunk *= 2
    needed: list[Holder] = []
    for holder in reversed(given_up):  # those worth most first: may they stay?
        _take([holder], room)
        if not _fits(shape, room, asked):
            _give_back([holder], room)
            needed.append(holder)
    placed = room.find(shape, asked)
    assert placed is not None, "it fitted a moment ago"
    _take(needed, room)
    room.grown = grown
    return Clearing(
        tuple(sorted(needed, key=lambda holder: holder.job_id)),
        tuple(sorted({allocation.node_id for allocation in placed})),
    )


def _fits(shape: Shape, room: Room, asked: PlacementRequest) -> bool:
    return room.find(shape, asked) is not None


def _open_somewhere(holder: Holder, room: Room) -> bool:
    return any(room.is_open(allocation.node_id) for allocation in holder.allocations)


def _give_back(holders: Sequence[Holder], room: Room) -> None:
    for holder in holders:
        room.give_back_all(holder.allocations)


def _take(holders: Sequence[Holder], room: Room) -> None:
    for holder in holders:
        room.take_all(holder.allocations)
