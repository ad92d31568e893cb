"""The GPUs of one node that a job takes, by their links, their NUMA nodes and their scores together.

A group costs what a place costs in `weft_best`: its slowest GPU times its locality (PAL's V × L, with the class of its
slowest link as L), less what other jobs gain from GPUs that it leaves. Beside that, a group that spans NUMA nodes costs
a little, and so does one that breaks whole NVLink groups and sockets, which larger jobs need.
"""

from weft.planning.capacity import FreeCapacity, NodeCapacity
from weft.planning.capacity.near import Near, locality_of, places_of
from weft.planning.resource_request import RoleRequest
from weft.planning.scores import TYPICAL

SPARING = 0.3  # weight of other jobs' gain from a GPU, against this job's own
NUMA_NODES = 0.02  # the cost of each further NUMA node, as a part of the job's time
WHOLE_GROUPS = 0.1  # the most that it costs to break the groups of one level


def inside(
    free_capacity: FreeCapacity,
    node: NodeCapacity,
    near: Near,
    want: RoleRequest,
    count: int,
    name: str,
    penalty: float,
) -> list[tuple[int, ...]]:
    """The GPUs of `count` replicas of the role; as many must be free. `name`: the class whose scores count;
    `penalty`: what the job loses across nodes."""
    size, node_id = want.request.gpus, node.node.id
    of_class, of_worst = free_capacity.scores.of(name), free_capacity.scores.worst.get(node_id, {})
    own = [of_class.get((node_id, gpu), TYPICAL) for gpu in near.gpus]
    worst = [of_worst.get(gpu, TYPICAL) for gpu in near.gpus]
    numa = near.topology.numa
    whole = near.mask(node.gpus.whole)

    def cost(group: int) -> tuple[float, int]:
        places = places_of(group)
        time = max([own[place] for place in places]) * locality_of(near.bandwidth(group), penalty)
        spared = 1.0 - sum([worst[place] for place in places]) / len(places)
        spans = len({numa[place] for place in places}) - 1 if numa else 0
        return (time + SPARING * spared + NUMA_NODES * spans + WHOLE_GROUPS * near.broken(whole, group), group)

    best = min(near.candidates(near.mask(node.gpus_for(want.request)), count * size, own), key=cost)
    gpus = near.named(best)
    return [(gpu,) for gpu in gpus] if size == 1 else near.split(gpus, size)


def links_cost(node: NodeCapacity, want: RoleRequest, count: int, penalty: float) -> float:
    """The part of its time that such a job loses by the links of the nearest GPUs that are free there."""
    near, gpus = node.near, count * want.request.gpus
    if near is None or gpus < 2:
        return 0.0
    bandwidth = near.best(near.mask(node.gpus_for(want.request)), gpus)
    return locality_of(bandwidth, penalty) - 1.0


def in_parts(node: NodeCapacity, replicas: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The same GPUs of one node, with those of each replica near to each other."""
    near, size = node.near, len(replicas[0]) if replicas else 0
    if near is None or size < 2 or len(replicas) < 2:
        return replicas
    return near.split([gpu for gpus in replicas for gpu in gpus], size)
