"""What the scorer learnt, on a real Postgres: scores of GPUs, classes and curves of workloads."""

from collections.abc import Sequence

import msgspec

from weft.messages.signals import Curve, GpuScore, PairSlowdown, WorkloadClass
from weft.store.asking import Asking
from weft.store.rows import curve_of


class PostgresLearnt:
    asking: Asking

    async def save_scores(self, scores: Sequence[GpuScore], *, at: float) -> None:
        await self.asking.row(
            "save_scores",
            [score.node_id for score in scores],
            [score.gpu_index for score in scores],
            [score.job_class for score in scores],
            [score.score for score in scores],
            [score.confidence for score in scores],
            [score.source for score in scores],
            [score.measured_at for score in scores],
            [score.samples for score in scores],
            [score.quarantined_until for score in scores],
            at,
        )

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]:
        return [GpuScore(**row) for row in await self.asking.rows("scores", pool, since, list(nodes))]

    async def forget_scores(self, *, before: float) -> int:
        return await self.asking.count("forget_scores", before)

    async def save_classes(self, classes: Sequence[WorkloadClass], *, pool: str) -> None:
        await self.asking.row(
            "save_classes",
            pool,
            [one.workload for one in classes],
            [one.job_class for one in classes],
            [one.compute for one in classes],
            [one.memory for one in classes],
            [one.samples for one in classes],
            [one.at for one in classes],
        )

    async def classes(self, *, pool: str, since: float = 0.0) -> list[WorkloadClass]:
        return [WorkloadClass(**row) for row in await self.asking.rows("classes", pool, since)]

    async def forget_classes(self, *, pool: str, before: float) -> None:
        await self.asking.row("forget_classes", pool, before)

    async def save_slowdowns(self, slowdowns: Sequence[PairSlowdown]) -> None:
        await self.asking.row(
            "save_slowdowns",
            [one.job_class for one in slowdowns],
            [one.beside for one in slowdowns],
            [one.slowdown for one in slowdowns],
            [one.confidence for one in slowdowns],
            [one.workloads for one in slowdowns],
            [one.at for one in slowdowns],
        )

    async def slowdowns(self) -> list[PairSlowdown]:
        return [PairSlowdown(**row) for row in await self.asking.rows("slowdowns")]

    async def forget_slowdowns(self, *, before: float) -> int:
        return await self.asking.count("forget_slowdowns", before)

    async def save_curves(self, curves: Sequence[Curve]) -> None:
        await self.asking.row(
            "save_curves",
            [curve.pool for curve in curves],
            [curve.subject for curve in curves],
            [msgspec.json.encode(curve.points).decode() for curve in curves],
            [curve.at for curve in curves],
        )

    async def curves(self, *, pool: str, subjects: Sequence[str]) -> list[Curve]:
        return [curve_of(row) for row in await self.asking.rows("curves", pool, list(subjects))]

    async def forget_curves(self, *, before: float) -> int:
        return await self.asking.count("forget_curves", before)
