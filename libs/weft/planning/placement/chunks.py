"""A node's free GPUs for one role, in groups as large as one replica needs."""

from collections.abc import Mapping

from weft.domain.cluster import Request
from weft.planning.capacity import Chunks, NodeCapacity
from weft.planning.scores import TYPICAL, GpuKey

KEPT_MAX = 32  # entries per node: a job may ask for any model, even one that no node has


def chunks(node: NodeCapacity, request: Request, scores: Mapping[GpuKey, float], name: str) -> Chunks:
    """The chunks, fastest first, by index among equals; as many as CPUs and memory allow. `name` identifies `scores`.

    Each chunk is as fast as the slowest GPU in it. The result is kept until the node changes; do not change it.
    """
    if not node.starts(request):
        return []
    size = request.gpus
    key = (name, size, *request.gpu_kind)
    found = node.chunked.get(key)
    if found is None:
        if len(node.chunked) >= KEPT_MAX:
            node.chunked.clear()
        found = node.chunked[key] = _grouped(_free(node, request, scores, name), size)
    most = len(found)
    if node.cpus >= most * request.cpus and node.memory >= most * request.memory:
        return found
    return found[: node.count(request, most)]


def _free(node: NodeCapacity, request: Request, scores: Mapping[GpuKey, float], name: str) -> Chunks:
    """Each free GPU by itself."""
    ranked = node.ranked.get(name)
    if ranked is None:
        if len(node.ranked) >= KEPT_MAX:
            node.ranked.clear()
        node_id = node.node.id
        ranked = sorted((scores.get((node_id, gpu), TYPICAL), (gpu,)) for gpu in node.gpus.models)
        node.ranked[name] = ranked
    free = node.gpus.suited(request)
    if len(free) == len(ranked):
        return ranked
    return [chunk for chunk in ranked if chunk[1][0] in free] if free else []


def _grouped(free: Chunks, size: int) -> Chunks:
    if size == 1:
        return free
    return [
        (free[at + size - 1][0], tuple([gpu for _, (gpu,) in free[at : at + size]]))
        for at in range(0, len(free) - size + 1, size)
    ]
