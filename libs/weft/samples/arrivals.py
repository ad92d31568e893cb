"""Which samples are news: messages may come late, twice, in another order, or from a node whose clock is wrong.

A node's clock is never compared with ours. A sample counts from its arrival; its own `at` only distinguishes it from
the sample before, and a difference that no period explains is counted as a jump of the node's clock.
"""

from msgspec import Struct

from weft.messages.signals import NodeSampled

BEHIND_MOST = 1000  # a `seq` further behind than this is from a telemetry that was restarted
JUMP_SECONDS = 30.0
NODES_MAX = 16_384


class _Last(Struct):
    boot: str
    seq: int
    at: float
    heard_at: float


class Arrivals:
    """`take` each sample; `refused` counts samples that were no news, `jumped` clocks that jumped."""

    def __init__(self) -> None:
        self._last: dict[str, _Last] = {}
        self.refused = 0
        self.jumped = 0

    def take(self, sampled: NodeSampled, *, heard_at: float) -> bool:
        """True if the sample is news. `heard_at`: seconds on a clock of ours that does not jump."""
        last = self._last.get(sampled.node_id)
        if last is not None and not _follows(last, sampled):
            self.refused += 1
            return False
        if last is None:
            if len(self._last) >= NODES_MAX:
                self.forget(before=heard_at - JUMP_SECONDS)
        elif abs((sampled.at - last.at) - (heard_at - last.heard_at)) > JUMP_SECONDS:
            self.jumped += 1
        self._last[sampled.node_id] = _Last(sampled.boot, sampled.seq, sampled.at, heard_at)
        return True

    def heard_at(self, node_id: str) -> float | None:
        """When the last sample of that node arrived."""
        last = self._last.get(node_id)
        return None if last is None else last.heard_at

    def forget(self, *, before: float) -> None:
        """Drop the nodes without a sample since then."""
        self._last = {node_id: last for node_id, last in self._last.items() if last.heard_at >= before}


def _follows(last: _Last, sampled: NodeSampled) -> bool:
    if sampled.boot != last.boot:
        return True
    return sampled.seq > last.seq or last.seq - sampled.seq > BEHIND_MOST
