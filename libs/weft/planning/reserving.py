"""Chooses the nodes that are reserved for a job that has waited long, so that smaller jobs do not fill them for ever.

Reserved nodes idle until all of them are free, so a job must earn them: its waited GPU time is compared with the GPU
time that would be idle. A job without a time limit is assumed to run as long again as it has run.
"""

from collections.abc import Callable

from weft.planning.capacity import FreeCapacity
from weft.planning.resource_request import ResourceRequest, gpus_least, is_pinned

PATIENCE_SECONDS = 300.0  # the default of a pool: a job waits at least this long
WORTH = 32.0  # seconds that its GPUs were waited for, for each second that a GPU would be idle
LONGEST_SECONDS = 24 * 3600.0  # a job that waited so long has earned them, whatever is idle


def nodes_to_keep(
    free_capacity: FreeCapacity, resource_request: ResourceRequest, *, waited_s: float, left_on: Callable[[str], float]
) -> tuple[str, ...]:
    """The emptiest nodes that would hold the job's smallest gang; none if it has not waited long enough for them.
    `left_on(node)`: for how many seconds its jobs are expected to run on."""
    nodes = emptiest(free_capacity, resource_request)
    free = sum(len(free_capacity.nodes[node].gpus.whole) for node in nodes)
    waited_for = waited_s * gpus_least(resource_request)
    if not free or waited_s >= LONGEST_SECONDS or all(waited_for >= WORTH * free * left_on(node) for node in nodes):
        return nodes
    return ()


def emptiest(free_capacity: FreeCapacity, resource_request: ResourceRequest) -> tuple[str, ...]:
    """The nodes that would hold the smallest gang of the job if empty, those with most free GPUs first."""
    if is_pinned(resource_request):
        return tuple(
            sorted({want.request.node for want in resource_request if want.request.node in free_capacity.nodes})
        )
    wanted, requests = gpus_least(resource_request), [want.request for want in resource_request]
    claimed: list[str] = []
    for free in sorted(free_capacity.buckets, reverse=True):
        for node_id in free_capacity.buckets[free]:
            if wanted <= 0:
                return tuple(claimed)
            node = free_capacity.nodes[node_id]
            if node.gpus.models and any(map(node.starts, requests)):
                claimed.append(node_id)
                wanted -= len(node.gpus.models)
    return tuple(claimed)
