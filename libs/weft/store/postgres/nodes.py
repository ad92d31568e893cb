"""Nodes on a real Postgres."""

from collections.abc import Sequence

from weft.domain.cluster import Node
from weft.domain.lease import Lease
from weft.store.asking import Asking
from weft.store.rows import as_json, as_text, node_of


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
            node.drained,
            node.seen_at,
            event,
            as_text(cause),
            ask,
            node.seen_at if at is None else at,
            as_text(node.rack),
            load,
        )

    async def remove_node(self, lease: Lease, node_id: str, *, cause: str, at: float, load: int | None = None) -> None:
        await self.asking.row("remove_node", lease.name, lease.holder, lease.epoch, node_id, as_text(cause), at, load)

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        await self.asking.row("touch_nodes", lease.name, lease.holder, lease.epoch, list(node_ids), at)
