"""Servers and jobs as a planner sees them, made of nodes, ranks and scores: by the reallocator and in a simulation."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from weft.domain.cluster import Node
from weft.domain.job import Allocation
from weft.planning.partition import ALIKE, ElasticJob, Server
from weft.planning.scores import GpuKey
from weft.planning.shares import Amounts


def amounts_of(node: Node) -> Amounts:
    return (float(len(node.capacity.gpus)), node.capacity.cpus, float(node.capacity.memory))


def model_of(node: Node) -> str:
    """The model of most of its GPUs: a planner takes all GPUs of a node for the same."""
    models = Counter(gpu.model for gpu in node.capacity.gpus)
    return max(models, key=lambda model: (models[model], model)) if models else ALIKE


def models_of(nodes: Iterable[Node]) -> dict[str, str]:
    """By node, the model of its GPUs; nodes without GPUs are left out."""
    return {node.id: model_of(node) for node in nodes if node.capacity.gpus}


def most_of(allocations: Iterable[Allocation], models: Mapping[str, str]) -> str:
    """The model of most of these GPUs; empty if there are none on known nodes. `models`: by node."""
    gpus = Counter[str]()
    for one in allocations:
        if one.gpus and one.node_id in models:
            gpus[models[one.node_id]] += len(one.gpus)
    return max(gpus, key=lambda model: (gpus[model], model)) if gpus else ALIKE


def speeds_on(models: Iterable[str], each: Amounts, speeds: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    """The same speeds on all models; of a job without GPUs, whatever models there are."""
    return dict.fromkeys(sorted(set(models)) if each[0] else (), speeds) or {ALIKE: speeds}


def server_of(node: Node, amounts: Amounts, gpus: Iterable[int], binned: Mapping[GpuKey, float]) -> Server:
    """The node with these amounts to divide, and its GPUs among `gpus` by how fast they are. `binned`: the bin of each
    GPU for the most sensitive class; empty if all GPUs are typical."""
    bins = Counter(binned[node.id, gpu] for gpu in gpus) if binned else Counter[float]()
    return Server(id=node.id, amounts=amounts, bins=tuple(sorted(bins.items())), model=model_of(node))


def placed(
    job: ElasticJob, ranks: Sequence[Allocation], binned: Mapping[GpuKey, float], models: Mapping[str, str]
) -> ElasticJob:
    """The job with these ranks: how many, on which servers and model of GPUs, and the score of its slowest GPU.

    `models`: by node. Where its GPUs are of several models, that of most of them counts.
    """
    score = max((binned.get((one.node_id, gpu), 0.0) for one in ranks for gpu in one.gpus), default=0.0)
    held = Counter(models[one.node_id] for one in ranks if job.each[0] and models.get(one.node_id) in job.speeds)
    model = max(held, key=lambda model: (held[model], model)) if held else next(iter(job.speeds))
    return structs.replace(
        job, now=len(ranks), on=Counter(one.node_id for one in ranks), score=score, model=model if ranks else ALIKE
    )
