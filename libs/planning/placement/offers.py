"""The best node for a need, kept up to date: only nodes that changed are looked at again."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libs.planning.room import NodeRoom, Room

STALE_MAX = 64  # costs of earlier times that the heap may hold, besides as many as there are nodes

Cost = Callable[["NodeRoom"], tuple[float, ...] | None]
"""What a need costs on a node, compared part by part; None: it does not fit there. Must depend on the node (and scores)
alone."""


class Offers:
    """One need's nodes by what it costs there. `room` writes down in `changed` which nodes did."""

    __slots__ = ("_at", "_cost", "_costs", "_heap")

    def __init__(self, room: Room, cost: Cost) -> None:
        self._cost = cost
        self._costs: dict[str, tuple[float, ...]] = {}
        self._heap: list[tuple[tuple[float, ...], str]] = []
        self._at = -1
        self._look_at_all(room)

    def best(self, room: Room) -> tuple[tuple[float, ...], str] | None:
        """What it costs where it costs least, and the node's id; of nodes alike, the first by id."""
        changed = room.changed
        if len(changed) != self._at:
            nodes = set(changed[self._at :])
            if len(nodes) > len(room.nodes) // 2:
                self._look_at_all(room)
            else:
                for node_id in nodes:
                    self._look_at(room, node_id)
            self._at = len(changed)
        heap, costs = self._heap, self._costs
        while heap and costs.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def _look_at(self, room: Room, node_id: str) -> None:
        cost = self._cost(room.nodes[node_id]) if room.is_open(node_id) else None
        if cost is None:
            self._costs.pop(node_id, None)
        elif self._costs.get(node_id) != cost:
            self._costs[node_id] = cost
            if len(self._heap) > 2 * len(self._costs) + STALE_MAX:
                self._order()
            else:
                heappush(self._heap, (cost, node_id))

    def _look_at_all(self, room: Room) -> None:
        found = ((self._cost(node), node.node.id) for node in room.open_nodes)
        self._costs = {node_id: cost for cost, node_id in found if cost is not None}
        self._order()
        self._at = len(room.changed)

    def _order(self) -> None:
        """Without what costs of earlier times have left in the heap."""
        self._heap = [(cost, node_id) for node_id, cost in self._costs.items()]
        heapify(self._heap)
