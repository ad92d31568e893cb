"""Nodes, in memory."""

from collections.abc import Sequence

import msgspec
from msgspec import structs

from tests.support.doubles.store.asks import MemoryAsks
from tests.support.doubles.store.events import MemoryEvents
from tests.support.doubles.store.slots import Gpu
from tests.support.doubles.store.times import micro
from weft.domain.cluster import Node
from weft.domain.lease import Lease
from weft.messages.events import Event


class MemoryNodes(MemoryAsks, MemoryEvents):
    def __init__(self) -> None:
        super().__init__()
        self._nodes: dict[str, tuple[Node, int]] = {}  # with its version

    async def nodes(self, *, pool: str | None = None) -> list[Node]:
        return [node for _, (node, _) in sorted(self._nodes.items()) if pool in (None, node.pool)]

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
        self._must_hold(lease)
        self._must_have_loaded_last(lease, load)
        node = structs.replace(node, seen_at=micro(node.seen_at))
        known = self._nodes.get(node.id)
        version = self._first_version(node.id) if known is None else known[1] + bool(event)
        self._nodes[node.id] = (node, version)
        self._asks.pop(ask, None)
        if event:
            self._tell_node(node, version, event, cause, at=node.seen_at if at is None else at)

    async def remove_node(self, lease: Lease, node_id: str, *, cause: str, at: float, load: int | None = None) -> None:
        self._must_hold(lease)
        self._must_have_loaded_last(lease, load)
        if node_id in self._nodes:
            node, version = self._nodes.pop(node_id)
            self._tell_node(node, version + 1, "removed", cause, at=at)

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        self._must_hold(lease)
        for node_id in set(node_ids) & self._nodes.keys():
            node, version = self._nodes[node_id]
            self._nodes[node_id] = (structs.replace(node, seen_at=micro(at)), version)

    def _gpu_memory(self) -> dict[Gpu, int]:
        nodes = (node for node, _ in self._nodes.values())
        return {(node.id, gpu.index): gpu.memory for node in nodes for gpu in node.capacity.gpus}

    def _node_events_before(self, before: float, pool: str) -> list[Event]:
        """Node events that may be deleted: published, and not the last of a node that is still there."""
        told = [event for event in self._events if event.topic == "nodes" and event.at < before]
        last = {event.subject_id: event.version for event in told if event.subject_id in self._nodes}
        return [
            event
            for event in told
            if event.id not in self._outbox
            and last.get(event.subject_id) != event.version
            and msgspec.json.decode(event.data)["pool"] == pool
        ]
