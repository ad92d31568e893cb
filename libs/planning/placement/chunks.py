"""What a node has to offer one role: its free GPUs in groups as large as one replica needs."""

from collections.abc import Mapping

from libs.domain.cluster import Request
from libs.planning.capacity import Chunks, NodeRoom
from libs.planning.scores import GpuKey

TYPICAL = 1.0
KEPT_MAX = 32  # of a node: a job may ask for any model, also for one that no node has


def chunks(node: NodeRoom, request: Request, scores: Mapping[GpuKey, float], name: str) -> Chunks:
    """The fastest first, by index among equals; no more than CPUs and memory allow. `name` says which scores these are.

    Each chunk is as fast as the slowest GPU in it. What was found is kept until the node changes.
    """
    key = (name, request.gpus, request.model)
    found = node.chunked.get(key)
    if found is None:
        node_id, size = node.node.id, request.gpus
        gpus = sorted((scores.get((node_id, gpu), TYPICAL), gpu) for gpu in node.gpus_for(request))
        found = [
            (gpus[at + size - 1][0], tuple(gpu for _, gpu in gpus[at : at + size]))
            for at in range(0, len(gpus) - size + 1, size)
        ]
        if len(node.chunked) >= KEPT_MAX:
            node.chunked.clear()
        node.chunked[key] = found
    most = len(found)
    if node.cpus >= most * request.cpus and node.memory >= most * request.memory:
        return found
    return found[: node.count(request, most)]
