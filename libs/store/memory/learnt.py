"""What the scorer learnt of workloads, in memory: their classes and curves."""

from collections.abc import Sequence

from msgspec import structs

from libs.messages.signals import Curve, WorkloadClass
from libs.store.memory.times import micro


class LearntTables:
    def __init__(self) -> None:
        super().__init__()
        self._classes: dict[tuple[str, str], WorkloadClass] = {}  # by pool and workload
        self._curves: dict[tuple[str, str], Curve] = {}  # by pool and subject

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
