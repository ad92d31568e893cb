"""The future events of the event-driven simulator, by time."""

from enum import IntEnum
from heapq import heappop, heappush
from math import inf


class What(IntEnum):
    """The kinds of events, in their order at one moment."""

    ENDS = 0
    ARRIVES = 1
    CHANGES = 2  # its place in the order
    IS_PROMOTED = 3
    MAY_LEAVE = 4  # it has run for long enough to be preempted
    IS_GONE = 5  # it has stopped, to give way
    RANKS_GONE = 6  # ranks of it have stopped, to give way
    MAY_GROW = 7
    DRIFTS = 8
    IS_MEASURED = 9
    FAILS = 10
    IS_REPAIRED = 11
    PARTITIONS = 12
    SERVES = 13
    MAY_MOVE = 14  # it is looked which jobs gain by a move, or a place is kept no longer
    IS_ASKED = 15  # a service should have another size or revision
    CLOSES = 16  # a service ends


class EventQueue:
    """The events to come. `number` is a job's or a node's; a job's event counts while its `version` is current."""

    def __init__(self) -> None:
        self._events: list[tuple[float, What, int, int]] = []

    def add(self, at: float, what: What, number: int = -1, version: int = 0) -> None:
        heappush(self._events, (at, what, number, version))

    @property
    def next_at(self) -> float:
        return self._events[0][0] if self._events else inf

    def take(self) -> tuple[float, What, int, int]:
        return heappop(self._events)
