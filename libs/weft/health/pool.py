"""The states of the GPUs of a node and of the node itself, within the bound of its pool."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from weft.domain.cluster import Node
from weft.domain.health import HealthRecord
from weft.health.state import HealthTimes, Reading, judged

PART_MAX = 10  # a tenth of the GPUs of a pool, and a tenth of its nodes, but one at least


def most_out(total: int) -> int:
    """The number of GPUs, or nodes, of `total` that may be out of use without a person's decision."""
    return max(1, total // PART_MAX)


class PoolBound:
    """Counts the GPUs and the nodes of a pool that are out of use, once somebody asks."""

    def __init__(self, nodes: Callable[[], Iterable[Node]]) -> None:
        self._nodes = nodes
        self._left: dict[bool, int] | None = None  # by: is it a node?

    def may_take(self, *, is_node: bool) -> bool:
        """May another one be taken out? True counts it as taken."""
        if self._left is None:
            self._left = _left(list(self._nodes()))
        if self._left[is_node] <= 0:
            return False
        self._left[is_node] -= 1
        return True


def _left(nodes: Sequence[Node]) -> dict[bool, int]:
    gpus_out = nodes_out = 0
    for node in nodes:
        if node.health:
            gpus_out += len(node.closed_gpus)
            nodes_out += node.own_health is not None and node.own_health.closed
    gpus = sum(len(node.capacity.gpus) for node in nodes)
    return {False: most_out(gpus) - gpus_out, True: most_out(len(nodes)) - nodes_out}


def judged_node(
    known: Sequence[HealthRecord], readings: Iterable[Reading], now: float, times: HealthTimes, bound: PoolBound
) -> tuple[HealthRecord, ...]:
    """The states after a report: the node's own first, then by GPU. `readings`: one of the node and one of each GPU."""
    before = {each.gpu: each for each in known}
    found = dict(before)
    for reading in readings:
        may_take = partial(bound.may_take, is_node=reading.gpu is None)
        after = judged(before.get(reading.gpu), reading, now, times, may_take=may_take)
        if after is not None:
            found[reading.gpu] = after
    return tuple(found[gpu] for gpu in sorted(found, key=lambda gpu: -1 if gpu is None else gpu))
