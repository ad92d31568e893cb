"""PM-First (PAL, SC'24): the fastest GPUs that are free, wherever they are.

Free GPUs are sorted by the score of their bin, then by how near the number of equally fast ones on their node is to the
number asked for; the first ones are taken.
"""

from collections.abc import Mapping

from weft.planning.capacity import FreeCapacity, NodeCapacity, Picks
from weft.planning.placement.chunks import chunks
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import GpuKey


def pm_first(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    return fastest(
        free_capacity,
        want,
        count,
        bins_of(free_capacity, asked.job_class),
        name_of_bins(free_capacity, asked.job_class),
    )


def bins_of(free_capacity: FreeCapacity, job_class: str) -> Mapping[GpuKey, float]:
    """By GPU, the score of its bin, over all GPUs of the pool."""
    everything = (
        (node_id, gpu) for node_id in sorted(free_capacity.nodes) for gpu in free_capacity.nodes[node_id].gpus.models
    )
    return free_capacity.scores.binned(job_class, everything)


def name_of_bins(free_capacity: FreeCapacity, job_class: str) -> str:
    """A name for the bins, another one whenever they may have changed."""
    return f"{free_capacity.scores.known(job_class)} in bins, {free_capacity.scores.changes}"


def fastest(
    free_capacity: FreeCapacity,
    want: RoleRequest,
    count: int,
    bins: Mapping[GpuKey, float],
    name: str,
    *,
    most: float = float("inf"),
) -> Picks | None:
    """The `count` best by (bin, how well the group fits, node, index), of those in bins up to `most`."""
    if count == 1:
        return _fastest_one(free_capacity, want, bins, name, most)
    groups: list[tuple[float, int, str, NodeCapacity, list[tuple[int, ...]]]] = []
    for node in free_capacity.open_nodes:
        alike: dict[float, list[tuple[int, ...]]] = {}
        for bin_score, gpus in chunks(node, want.request, bins, name):
            if bin_score <= most:
                alike.setdefault(bin_score, []).append(gpus)
        for bin_score, found in alike.items():
            groups.append((bin_score, abs(len(found) - count), node.node.id, node, found))
    groups.sort(key=lambda group: group[:3])
    taken: dict[str, tuple[NodeCapacity, list[tuple[int, ...]]]] = {}
    left = count
    for _, _, node_id, node, found in groups:
        part = found[:left]
        taken.setdefault(node_id, (node, []))[1].extend(part)
        left -= len(part)
        if not left:
            return list(taken.values())
    return None


def _fastest_one(
    free_capacity: FreeCapacity, want: RoleRequest, bins: Mapping[GpuKey, float], name: str, most: float
) -> Picks | None:
    """The same for a single replica, without a look at every node."""

    def cost(node: NodeCapacity) -> tuple[float, ...] | None:
        found = chunks(node, want.request, bins, name)
        if not found or found[0][0] > most:
            return None
        return (found[0][0], sum(score == found[0][0] for score, _ in found) - 1)

    best = free_capacity.best_node((want.request, name, "fastest one", most), cost)
    if best is None:
        return None
    node = best[1]
    return [(node, [chunks(node, want.request, bins, name)[0][1]])]
