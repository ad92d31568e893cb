"""What the scorer learnt, in memory: scores of GPUs, classes and curves of workloads."""

from collections.abc import Sequence

from msgspec import structs

from tests.support.doubles.store.nodes import MemoryNodes
from tests.support.doubles.store.times import micro
from weft.messages.signals import Curve, GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty


class MemoryLearnt(MemoryNodes):
    def __init__(self) -> None:
        super().__init__()
        self._classes: dict[tuple[str, str], WorkloadClass] = {}  # by pool and workload
        self._curves: dict[tuple[str, str], Curve] = {}  # by pool and subject
        self._slowdowns: dict[tuple[str, str], PairSlowdown] = {}  # by the two classes
        self._penalties: dict[tuple[str, str], WorkloadPenalty] = {}  # by pool and workload
        self._scores: dict[tuple[str, int, str], tuple[GpuScore, float]] = {}  # with when it was stored

    async def save_classes(self, classes: Sequence[WorkloadClass], *, pool: str) -> None:
        for one in classes:
            known = self._classes.get((pool, one.workload))
            if known is None or known.at <= micro(one.at):
                self._classes[pool, one.workload] = structs.replace(one, at=micro(one.at))

    async def classes(self, *, pool: str, since: float = 0.0) -> list[WorkloadClass]:
        kept = sorted(self._classes.items(), key=lambda kept: kept[0])
        return [one for (of_pool, _), one in kept if of_pool == pool and one.at >= since]

    async def forget_classes(self, *, pool: str, before: float) -> None:
        self._classes = {kept: one for kept, one in self._classes.items() if kept[0] != pool or one.at >= micro(before)}

    async def save_slowdowns(self, slowdowns: Sequence[PairSlowdown]) -> None:
        for one in slowdowns:
            pair, at = (one.job_class, one.beside), micro(one.at)
            known = self._slowdowns.get(pair)
            if known is None or (
                known.at <= at and known.confidence * 0.5 ** ((at - known.at) / 86400.0) <= one.confidence
            ):
                self._slowdowns[pair] = structs.replace(one, at=at)

    async def slowdowns(self) -> list[PairSlowdown]:
        return [one for _, one in sorted(self._slowdowns.items())]

    async def forget_slowdowns(self, *, before: float) -> int:
        gone = [pair for pair, one in self._slowdowns.items() if one.at < micro(before)]
        for pair in gone:
            del self._slowdowns[pair]
        return len(gone)

    async def save_penalties(self, penalties: Sequence[WorkloadPenalty], *, pool: str) -> None:
        for one in penalties:
            known = self._penalties.get((pool, one.workload))
            if known is None or known.at <= micro(one.at):
                self._penalties[pool, one.workload] = structs.replace(one, at=micro(one.at))

    async def penalties(self, *, pool: str, since: float = 0.0) -> list[WorkloadPenalty]:
        kept = [one for (of_pool, _), one in self._penalties.items() if of_pool == pool]
        shown = [structs.replace(one, points=()) for one in kept if one.at >= since and one.confidence > 0]
        return sorted(shown, key=lambda one: (one.at, one.workload))

    async def penalties_of(self, *, pool: str, workloads: Sequence[str]) -> list[WorkloadPenalty]:
        return [self._penalties[pool, name] for name in sorted(set(workloads)) if (pool, name) in self._penalties]

    async def forget_penalties(self, *, before: float) -> int:
        gone = [key for key, one in self._penalties.items() if one.at < micro(before)]
        for key in gone:
            del self._penalties[key]
        return len(gone)

    async def forget_curves(self, *, before: float) -> int:
        gone = [key for key, curve in self._curves.items() if curve.at < micro(before)]
        for key in gone:
            del self._curves[key]
        return len(gone)

    async def save_curves(self, curves: Sequence[Curve]) -> None:
        for curve in curves:
            known = self._curves.get((curve.pool, curve.subject))
            if known is None or known.at <= micro(curve.at):
                self._curves[curve.pool, curve.subject] = structs.replace(curve, at=micro(curve.at))

    async def curves(self, *, pool: str, subjects: Sequence[str]) -> list[Curve]:
        return [self._curves[pool, subject] for subject in sorted(set(subjects)) if (pool, subject) in self._curves]

    async def curves_of_models(self, *, pool: str, since: float = 0.0, limit: int) -> list[Curve]:
        of_several = [
            curve
            for (of_pool, subject), curve in self._curves.items()
            if of_pool == pool and subject.startswith("workload:") and curve.at >= since
            if len({point.model for point in curve.points if point.model}) > 1
        ]
        return sorted(of_several, key=lambda curve: (curve.at, curve.subject))[-limit:]

    async def save_scores(self, scores: Sequence[GpuScore], *, at: float) -> None:
        for score in scores:
            key = (score.node_id, score.gpu_index, score.job_class)
            if key not in self._scores or self._scores[key][1] <= micro(at):
                measured_at = None if score.measured_at is None else micro(score.measured_at)
                until = None if score.quarantined_until is None else micro(score.quarantined_until)
                kept = structs.replace(score, measured_at=measured_at, quarantined_until=until)
                self._scores[key] = (kept, micro(at))

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]:
        known = {node.id for node in await self.nodes(pool=pool)}
        return [
            score
            for (node_id, _, _), (score, at) in sorted(self._scores.items(), key=lambda kept: kept[0])
            if node_id in known and (at >= since or node_id in nodes)
        ]

    async def forget_scores(self, *, before: float) -> int:
        gone = [key for key, (_, at) in self._scores.items() if at < micro(before) and key[0] not in self._nodes]
        for key in gone:
            del self._scores[key]
        return len(gone)
