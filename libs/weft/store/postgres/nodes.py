"""Nodes on a real Postgres, how they join, and the measured speed of their GPUs."""

from collections.abc import Sequence

import msgspec

from weft.domain.cluster import Node
from weft.domain.lease import Lease
from weft.messages.signals import Curve, GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.store.asking import Asking
from weft.store.join_tokens import JoinTokenKept
from weft.store.rows import as_json, as_text, curve_of, node_of, penalty_of


class PostgresNodes:
    asking: Asking

    async def nodes(self, *, pool: str | None = None) -> list[Node]:
        return [node_of(row) for row in await self.asking.rows("nodes", pool)]

    async def save_node(
        self,
        lease: Lease,
        node: Node,
        *,
        event: str,
        cause: str,
        at: float | None = None,
        ask: int = 0,
        load: int | None = None,
    ) -> None:
        await self.asking.row(
            "save_node",
            lease.name,
            lease.holder,
            lease.epoch,
            node.id,
            node.pool,
            as_text(node.address),
            as_json(node.capacity),
            as_text(node.runtime),
            as_json(node.not_enforced),
            node.ready,
            None if node.drain is None else as_json(node.drain),
            node.seen_at,
            event,
            as_text(cause),
            ask,
            node.seen_at if at is None else at,
            as_text(node.rack),
            load,
            as_json(node.health),
            as_json(node.labels),
            as_json(node.taints),
            as_json(node.marking),
        )

    async def remove_node(self, lease: Lease, node_id: str, *, cause: str, at: float, load: int | None = None) -> None:
        await self.asking.row("remove_node", lease.name, lease.holder, lease.epoch, node_id, as_text(cause), at, load)

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        await self.asking.row("touch_nodes", lease.name, lease.holder, lease.epoch, list(node_ids), at)


class PostgresJoinTokens:
    """Implements `JoinTokenStore` on Postgres."""

    asking: Asking

    async def set_join_token(
        self, node_id: str, *, token_hash: bytes, sealed: str, at: float, expires_at: float, most: int
    ) -> bool:
        row = await self.asking.row("set_join_token", node_id, token_hash, sealed, at, expires_at, most)
        return row is not None

    async def use_join_token(self, token_hash: bytes, *, node_id: str, at: float) -> JoinTokenKept | None:
        row = await self.asking.row("use_join_token", token_hash, node_id, at)
        return None if row is None else JoinTokenKept(**dict(row))


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

    async def save_penalties(self, penalties: Sequence[WorkloadPenalty], *, pool: str) -> None:
        await self.asking.row(
            "save_penalties",
            pool,
            [one.workload for one in penalties],
            [one.penalty for one in penalties],
            [one.confidence for one in penalties],
            [msgspec.json.encode(one.points).decode() for one in penalties],
            [one.at for one in penalties],
        )

    async def penalties(self, *, pool: str, since: float = 0.0) -> list[WorkloadPenalty]:
        return [WorkloadPenalty(**row) for row in await self.asking.rows("penalties", pool, since)]

    async def penalties_of(self, *, pool: str, workloads: Sequence[str]) -> list[WorkloadPenalty]:
        return [penalty_of(row) for row in await self.asking.rows("penalties_of", pool, list(workloads))]

    async def forget_penalties(self, *, before: float) -> int:
        return await self.asking.count("forget_penalties", before)

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

    async def curves_of_models(self, *, pool: str, since: float = 0.0, limit: int) -> list[Curve]:
        return [curve_of(row) for row in await self.asking.rows("curves_of_models", pool, since, limit)]

    async def forget_curves(self, *, before: float) -> int:
        return await self.asking.count("forget_curves", before)
