"""Which scores are due. The scale is PAL's (SC'24): time relative to the typical GPU, lower is faster.

What is not here yet: measuring. Every GPU seen for the first time gets 1.0 in every class, and keeps it.
"""

from collections.abc import Iterable

from libs.domain.cluster import Node
from libs.messages.signals import GpuScore, NodeSampled

JOB_CLASSES = ("compute", "mixed", "memory")
TYPICAL = 1.0


class Scorer:
    """`observe` which GPUs there are, then `decide` which scores to store."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, int], str] = {}
        self._scored: set[tuple[str, int]] = set()

    def observe_nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            for gpu in node.capacity.gpus:
                self._pools[node.id, gpu.index] = node.pool

    def observe(self, sampled: NodeSampled) -> None:
        for gpu in sampled.gpus:
            self._pools[sampled.node_id, gpu.index] = sampled.pool

    def decide(self) -> dict[str, list[GpuScore]]:
        """By pool, a score for each class of each GPU that has none yet; say `stored` once they are."""
        due: dict[str, list[GpuScore]] = {}
        for node_id, index in sorted(self._pools.keys() - self._scored):
            due.setdefault(self._pools[node_id, index], []).extend(
                GpuScore(node_id=node_id, gpu_index=index, job_class=job_class, score=TYPICAL)
                for job_class in JOB_CLASSES
            )
        return due

    def stored(self, scores: Iterable[GpuScore]) -> None:
        self._scored.update((score.node_id, score.gpu_index) for score in scores)

    @property
    def gpus_scored(self) -> int:
        return len(self._scored)
