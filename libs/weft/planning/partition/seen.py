"""Servers and jobs as a planner sees them, made of nodes, ranks and scores: by the reallocator and in a simulation."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from weft.domain.cluster import Node
from weft.domain.job import Allocation
from weft.planning.partition import ElasticJob, Server
from weft.planning.scores import GpuKey
from weft.planning.shares import Amounts


def amounts_of(node: Node) -> Amounts:
    return (float(len(node.capacity.gpus)), node.capacity.cpus, float(node.capacity.memory))


def server_of(node: Node, amounts: Amounts, gpus: Iterable[int], binned: Mapping[GpuKey, float]) -> Server:
    """The node with these amounts to divide, and its GPUs among `gpus` by how fast they are. `binned`: the bin of each
    GPU for the most sensitive class; empty if all GPUs are typical."""
    bins = Counter(binned[node.id, gpu] for gpu in gpus) if binned else Counter[float]()
    return Server(id=node.id, amounts=amounts, bins=tuple(sorted(bins.items())))


def placed(job: ElasticJob, ranks: Sequence[Allocation], binned: Mapping[GpuKey, float]) -> ElasticJob:
    """The job with these ranks: how many, on which servers, and the score of its slowest GPU."""
    score = max((binned.get((one.node_id, gpu), 0.0) for one in ranks for gpu in one.gpus), default=0.0)
    return structs.replace(job, now=len(ranks), on=Counter(one.node_id for one in ranks), score=score)
