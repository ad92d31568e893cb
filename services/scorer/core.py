"""Which scores are due. The scale is PAL's (SC'24): time relative to the typical GPU, lower is faster.

What is not here yet: measuring. A GPU gets what the profile has of it, or counts as typical until somebody knows.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from libs.domain.classes import JOB_CLASSES
from libs.domain.cluster import Node
from libs.messages.signals import GpuScore, NodeSampled
from libs.planning.scores import TYPICAL, GpuKey

PROFILED, ASSUMED = 0.9, 0.1  # how sure: it was measured once; nobody knows better

ByClass = Mapping[str, float]


class MeasuredGpus(Struct, frozen=True, kw_only=True):
    """The scores of GPUs that were measured before. `measured_at`: not later than that."""

    by_uuid: Mapping[str, ByClass] = {}
    by_place: Mapping[GpuKey, ByClass] = {}
    measured_at: float | None = None

    def of(self, place: GpuKey, uuid: str) -> ByClass | None:
        return self.by_uuid.get(uuid) or self.by_place.get(place)


class Scorer:
    """`observe` which GPUs there are, then `decide` which scores to store."""

    def __init__(self, profile: MeasuredGpus | None = None) -> None:
        self._profile = profile or MeasuredGpus()
        self._gpus: dict[GpuKey, tuple[str, str]] = {}  # pool and uuid
        self._scored: dict[GpuKey, str] = {}  # by its uuid: in the same place there may be another one day

    def observe_nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            for gpu in node.capacity.gpus:
                self._gpus[node.id, gpu.index] = (node.pool, gpu.uuid)

    def observe(self, sampled: NodeSampled) -> None:
        for gpu in sampled.gpus:
            self._gpus[sampled.node_id, gpu.index] = (sampled.pool, gpu.uuid)

    def decide(self) -> dict[str, list[GpuScore]]:
        """By pool, a score for each class of each GPU that has none yet; say `stored` once they are."""
        due: dict[str, list[GpuScore]] = {}
        for place, (pool, uuid) in sorted(self._gpus.items()):
            if self._scored.get(place) != uuid:
                due.setdefault(pool, []).extend(self._score(place, uuid))
        return due

    def stored(self, scores: Iterable[GpuScore]) -> None:
        for score in scores:
            place = (score.node_id, score.gpu_index)
            self._scored[place] = self._gpus[place][1]

    @property
    def gpus_scored(self) -> int:
        return len(self._scored)

    def _score(self, place: GpuKey, uuid: str) -> list[GpuScore]:
        node_id, index = place
        measured = self._profile.of(place, uuid)
        return [
            GpuScore(
                node_id=node_id,
                gpu_index=index,
                job_class=job_class,
                score=measured[job_class] if measured else TYPICAL,
                confidence=PROFILED if measured else ASSUMED,
                source="profile" if measured else "assumed",
                measured_at=self._profile.measured_at if measured else None,
            )
            for job_class in JOB_CLASSES
        ]
