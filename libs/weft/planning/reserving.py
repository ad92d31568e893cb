"""Which nodes are kept for a job that has waited long, so that smaller jobs do not fill them for ever.

Kept nodes do nothing until all of them are free. So a job has to earn them: the GPU time that it has waited is set
against the GPU time that would be idle. How long a job without a time limit still runs is not known: as long again as
it has run.
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
    idle = sum(len(free_capacity.nodes[node].gpus.whole) for node in nodes) * max(map(left_on, nodes), default=0.0)
    earned = waited_s * gpus_least(resource_request) >= WORTH * idle or waited_s >= LONGEST_SECONDS
    return nodes if earned else ()


def emptiest(free_capacity: FreeCapacity, resource_request: ResourceRequest) -> tuple[str, ...]:
    """The nodes that would hold the smallest gang of the job if empty, those with most free GPUs first."""
    if is_pinned(resource_request):
        return tuple(
            sorted({want.request.node for want in resource_request if want.request.node in free_capacity.nodes})
        )
    wanted = gpus_least(resource_request)
    nodes = sorted(free_capacity.open_nodes, key=lambda node: (-len(node.gpus.whole), node.node.id))
    claimed: list[str] = []
    for node in nodes:
        if wanted <= 0:
            break
        if node.gpus.models and any(node.starts(want.request) for want in resource_request):
            claimed.append(node.node.id)
            wanted -= len(node.gpus.models)
    return tuple(claimed)
