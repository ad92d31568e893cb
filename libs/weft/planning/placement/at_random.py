"""Random: any free GPUs, each set equally likely. The dice are a digest of the job's key: the same each time."""

from hashlib import blake2b

from weft.planning.capacity import NodeRoom, Picks, Room
from weft.planning.shape import PlacementRequest, Want


def at_random(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    size = want.request.gpus
    offers: list[tuple[bytes, str, tuple[int, ...]]] = []
    for node in room.open_nodes:
        gpus = sorted(node.gpus_for(want.request), key=lambda gpu, node=node: _die(asked.key, node, gpu))  # type: ignore[misc]
        for at in range(node.count(want.request, count)):
            part = tuple(gpus[at * size : (at + 1) * size])
            offers.append((_die(asked.key, node, part[0]), node.node.id, part))
    if len(offers) < count:
        return None
    picks: dict[str, list[tuple[int, ...]]] = {}
    for _, node_id, part in sorted(offers)[:count]:
        picks.setdefault(node_id, []).append(part)
    return [(room.nodes[node_id], parts) for node_id, parts in picks.items()]


def _die(key: str, node: NodeRoom, gpu: int) -> bytes:
    return blake2b(f"{key}/{node.node.id}/{gpu}".encode(), digest_size=8).digest()
