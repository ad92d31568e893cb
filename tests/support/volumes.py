"""Nodes that offer volumes by name."""

from typing import Any

import msgspec
from msgspec import structs

from tests.support.builders import node
from weft.domain.cluster import Capacity, Node, OfferedVolume


def with_volumes(capacity: Capacity, *volumes: dict[str, Any]) -> Capacity:
    return structs.replace(capacity, volumes=tuple(msgspec.convert(each, OfferedVolume) for each in volumes))


def offering(node_id: str, *volumes: dict[str, Any], **fields: Any) -> Node:
    made = node(node_id, **{"runtime": "docker", **fields})
    return structs.replace(made, capacity=with_volumes(made.capacity, *volumes))
