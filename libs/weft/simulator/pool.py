"""The simulated cluster as the scheduler's planning sees it: nodes, room, shapes."""

from collections.abc import Iterable, Mapping

from msgspec import structs

from weft.domain.cluster import Capacity, Gpu, Node, Request
from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity, Placer
from weft.planning.locality import Locality
from weft.planning.resource_request import ResourceRequest, RoleRequest
from weft.planning.scores import GpuKey, Scores
from weft.simulator.model import Cluster, World
from weft.simulator.workload import Elastic
from weft.variability.models import ModelSpeeds

ROLE = "worker"
SOME_CPU = 1e-6  # cores of a replica that needs none worth counting
GPU_MEMORY = 1 << 20  # bytes: never short for shares of one byte
PER_REPLICA = Request(gpus=1, cpus=1.0, memory=1)


def node_id(number: int) -> str:
    """Sorts as the numbers do."""
    return f"node-{number:06d}"


def node_number(name: str) -> int:
    return int(name[5:])


def nodes_of(cluster: Cluster) -> list[Node]:
    return [_node(number, cluster) for number in range(cluster.nodes)]


def _node(number: int, cluster: Cluster) -> Node:
    name, group = node_id(number), cluster.group_of(number)
    gpus = tuple(
        Gpu(index=index, uuid=f"{name}/{index}", model=group.model, memory=GPU_MEMORY, emulated=True)
        for index in range(group.gpus_per_node if cluster.gpu_nodes is None or number < cluster.gpu_nodes else 0)
    )
    rack = f"rack-{number // cluster.nodes_per_rack}" if cluster.nodes_per_rack else ""
    capacity = Capacity(
        cpus=cluster.cpus_per_node, memory=cluster.memory_per_node, gpus=gpus, topology=cluster.topology
    )
    labels = cluster.labels[number] if number < len(cluster.labels) else {}
    return Node(id=name, pool="simulated", address=name, rack=rack, capacity=capacity, labels=labels)


def room_of(
    cluster: Cluster,
    world: World,
    *,
    placer: Placer,
    scores: Mapping[str, Mapping[GpuKey, float]] | None = None,
    groups: int | None = None,
) -> FreeCapacity:
    """The whole cluster, free. `scores`: the assumed scores of its GPUs, if not the true ones; `groups`: as in
    `bins`."""
    free_capacity = FreeCapacity(
        Scores(scores_of(cluster) if scores is None else scores, groups=groups),
        placer=placer,
        locality=locality_of(world, known=world.penalties_known),
    )
    if world.model_ratios is not None:
        free_capacity.model_speeds = ModelSpeeds(world.model_ratios)
    for node in nodes_of(cluster):
        free_capacity.add(node)
    return free_capacity


def locality_of(world: World, *, known: bool = True) -> Locality:
    """The cost of distance: the true one, or the one that is known before any job ran."""
    penalties = dict(world.penalties) if known else {}
    return Locality(across_nodes=world.penalty, by_workload=penalties, across_racks=world.rack_penalty)


def scores_of(cluster: Cluster) -> dict[str, dict[GpuKey, float]]:
    return {name: by_gpu(scores, cluster.gpus_per_node) for name, scores in cluster.scores.items()}


def by_gpu(scores: tuple[float, ...], gpus_per_node: int) -> dict[GpuKey, float]:
    return {(node_id(number // gpus_per_node), number % gpus_per_node): score for number, score in enumerate(scores)}


def shape_of(gpus: int, *, models: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> ResourceRequest:
    """A gang of `gpus` ranks with one GPU each, wherever they are: of these models, or of any but the excluded."""
    each = PER_REPLICA
    if models or excluded:
        each = structs.replace(each, models=models, excluded=excluded)
    return (RoleRequest(ROLE, gpus, gpus, each),)


def choosing(resource_request: ResourceRequest, where: str) -> ResourceRequest:
    """The same request, for nodes whose labels match an expression."""
    if not where:
        return resource_request
    return tuple(structs.replace(want, request=structs.replace(want.request, where=where)) for want in resource_request)


def elastic_shape(elastic: Elastic, size: int, model: str = "", *, least: int | None = None) -> ResourceRequest:
    """The request of `size` replicas of an elastic job, or of `least` if no more fit; on GPUs of `model` if it names
    one."""
    gpus, cpus, memory = elastic.each
    request = Request(
        gpus=int(gpus), cpus=max(cpus, SOME_CPU), memory=max(int(memory), 1), models=(model,) if model else ()
    )
    return (RoleRequest(ROLE, size if least is None else least, size, request),)


def gpus_in(allocations: Iterable[Allocation]) -> tuple[tuple[int, int], ...]:
    """Each GPU by its node's number and its index there, as spells tell them."""
    return tuple((node_number(allocation.node_id), gpu) for allocation in allocations for gpu in allocation.gpus)
