"""PAL (SC'24): the speed of GPUs, weighed against how near they are to each other.

For every bin of scores there are two offers: that score within one node, and the same times the locality penalty across
nodes. They are tried from the smallest product on. A gang that needs one GPU, or fits no node, goes by PM-First alone.
"""

from collections.abc import Mapping

from weft.planning.capacity import FreeCapacity, NodeCapacity, Picks
from weft.planning.placement.chunks import chunks
from weft.planning.placement.pm_first import bins_of, fastest, name_of_bins
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import GpuKey


def pal(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    bins, name = bins_of(free_capacity, asked.job_class), name_of_bins(free_capacity, asked.job_class)
    if not _could_be_in_one_node(free_capacity, want, count):
        return fastest(free_capacity, want, count, bins, name)
    for bin_score, within in offers(bins, free_capacity.locality.across(asked.workload)):
        found = (
            in_one_node(free_capacity, want, count, bins, name, most=bin_score)
            if within
            else fastest(free_capacity, want, count, bins, name, most=bin_score)
        )
        if found is not None:
            return found
    return None


def offers(bins: Mapping[GpuKey, float], penalty: float) -> list[tuple[float, bool]]:
    """(bin's score, whether within one node), the smallest product of score and penalty first."""
    both = [(score * factor, score, factor == 1.0) for score in sorted(set(bins.values())) for factor in (1.0, penalty)]
    if penalty == 1.0:
        both = [(score, score, within) for score in sorted(set(bins.values())) for within in (True, False)]
    both.sort(key=lambda offer: offer[0])
    return [(score, within) for _, score, within in both]


def in_one_node(
    free_capacity: FreeCapacity, want: RoleRequest, count: int, bins: Mapping[GpuKey, float], name: str, *, most: float
) -> Picks | None:
    """Pick the node whose slowest GPU is fastest; among equal nodes, the one with most candidate GPUs."""

    def cost(node: NodeCapacity) -> tuple[float, ...] | None:
        if len(node.gpus.whole) < count * want.request.gpus:
            return None
        found = [score for score, _ in chunks(node, want.request, bins, name) if score <= most]
        return (found[count - 1], -len(found)) if len(found) >= count else None

    best = free_capacity.best_node((want.request, count, name, "one node", most), cost)
    if best is None:
        return None
    slowest, node = best[0][0], best[1]
    by_index = sorted(gpus for score, gpus in chunks(node, want.request, bins, name) if score <= slowest)
    return [(node, by_index[:count])]


def _could_be_in_one_node(free_capacity: FreeCapacity, want: RoleRequest, count: int) -> bool:
    return 1 < count * want.request.gpus <= free_capacity.largest
