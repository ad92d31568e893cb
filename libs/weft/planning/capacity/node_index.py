"""The cheapest node for a need, kept up to date: only nodes that changed are looked at again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

STALE_MAX = 64  # outdated costs that the heap may hold, besides as many as there are nodes

N = TypeVar("N")

Cost = tuple[float, ...]
"""Cost of a request on a node; two costs are compared part by part."""


class NodeIndex(Generic[N]):
    """The open nodes by what one need costs there.

    `cost` returns None where the need does not fit, and depends on the node (and on scores) alone. `changed` names
    every node that changed since the first call, in order, and only grows.
    """

    __slots__ = ("_at", "_cost", "_costs", "_heap")

    def __init__(self, cost: Callable[[N], Cost | None]) -> None:
        self._cost = cost
        self._costs: dict[str, Cost] = {}
        self._heap: list[tuple[Cost, str]] = []
        self._at = -1  # how many of the changes are known here; -1: no node was looked at yet

    def best(self, open_nodes: Mapping[str, N], changed: Sequence[str]) -> tuple[Cost, str] | None:
        """The least cost, and the id of the node; among equal costs, the first by id."""
        if len(changed) != self._at:
            node_ids = set(changed[self._at :])
            if self._at < 0 or len(node_ids) > len(open_nodes) // 2:
                self._look_at_all(open_nodes)
            else:
                self._look_at(node_ids, open_nodes)
            self._at = len(changed)
        heap, costs = self._heap, self._costs
        while heap and costs.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0] if heap else None

    def _look_at(self, node_ids: Iterable[str], open_nodes: Mapping[str, N]) -> None:
        costs, cost_of = self._costs, self._cost
        for node_id in node_ids:
            node = open_nodes.get(node_id)
            cost = None if node is None else cost_of(node)
            if cost is None:
                costs.pop(node_id, None)
            elif costs.get(node_id) != cost:
                costs[node_id] = cost
                heappush(self._heap, (cost, node_id))
        if len(self._heap) > 2 * len(costs) + STALE_MAX:
            self._order()

    def _look_at_all(self, open_nodes: Mapping[str, N]) -> None:
        found = ((self._cost(node), node_id) for node_id, node in open_nodes.items())
        self._costs = {node_id: cost for cost, node_id in found if cost is not None}
        self._order()

    def _order(self) -> None:
        """Rebuild the heap without outdated costs."""
        self._heap = [(cost, node_id) for node_id, cost in self._costs.items()]
        heapify(self._heap)
