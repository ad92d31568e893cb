"""Which of GPUs, CPUs and memory keeps replicas from fitting, where one of them alone does; and amounts in words."""

from collections.abc import Iterable, Mapping, Sequence

from weft.domain.cluster import Node, Request, models_text
from weft.domain.quantity import size_text
from weft.domain.shares import WHOLE
from weft.domain.text import plural
from weft.planning.capacity import CPU_GRAIN, FreeCapacity, NodeCapacity
from weft.planning.capacity.gpus_left import Left
from weft.planning.resource_request import ResourceRequest, with_gpus


def cpus_text(cpus: float) -> str:
    """`1 CPU`, `2.5 CPUs`."""
    return plural(cpus, "CPU")


def gpus_text(request: Request) -> str:
    """`2 GPUs of A100`; of a share `0.5 of a GPU with 8GiB`."""
    share = request.share
    if share is None:
        return plural(request.gpus, "GPU") + make_text(request)
    return part_text(share.request, share.memory, f"GPU{make_text(request)}")


def make_text(request: Request) -> str:
    """Return ` of A100 or H100 of 40GiB or more`: the models and the memory that its GPUs may have; empty: any."""
    models = models_text(request.models, request.excluded)
    models = f" of {models}" if models else ""
    return f"{models} of {size_text(request.gpu_memory)} or more" if request.gpu_memory else models


def models_considered(resource_request: ResourceRequest, nodes: Iterable[Node]) -> str:
    """Return ` (models of GPUs considered: A100, H100)`; empty for a job without GPUs or in a pool of one model."""
    gpus = {(gpu.model, gpu.memory) for node in nodes for gpu in node.capacity.gpus}
    requests = [want.request for want in resource_request if with_gpus(want.request)]
    suited = {model for model, memory in gpus if any(request.suits(model, memory) for request in requests)}
    if not suited or len({model for model, _ in gpus}) < 2:
        return ""
    return f" (models of GPUs considered: {', '.join(sorted(suited))})"


def part_text(part: int, memory: int, what: str = "") -> str:
    """Text for `part` thousandths of a GPU with this number of bytes of its memory."""
    of = f" of a {what}" if what else ""
    return f"{part / WHOLE:g}{of} with {size_text(memory)}"


def most_left(nodes: Iterable[NodeCapacity], request: Request) -> Left | None:
    """What is left of the shared GPU that comes nearest to what one replica asks for, its context taken off; None where
    no GPU is shared that comes into question."""
    share = request.share
    assert share is not None, "only shares are given of a GPU that is shared"
    nearest, part, memory = float("-inf"), max(1, share.request), max(1, share.memory)
    found: Left | None = None
    for node in nodes:
        for _, make, left in node.gpus.begun(request):
            near = min(1.0, left.time / part, (left.memory - make.context) / memory)
            if near > nearest or (near == nearest and found is not None and left > found):
                nearest = near
                found = left._replace(time=max(0, left.time), memory=max(0, left.memory - make.context))
    return found


def share_numbers(request: Request, nodes: Sequence[NodeCapacity]) -> dict[str, float]:
    """The GPU request of one replica, and the most that a shared GPU has free: GPUs and bytes."""
    share, left = request.share, most_left(nodes, request)
    assert share is not None, "only shares are told of so"
    numbers = {"share_wanted": share.request / WHOLE, "share_memory_wanted": float(share.memory)}
    if left is not None:
        numbers |= {"share_left_max": left.time / WHOLE, "share_memory_left_max": float(left.memory)}
    return numbers


def short_in_all(nodes: Sequence[NodeCapacity], request: Request, count: int) -> str:
    """Resources that are short on all nodes together for `count` replicas; empty if none alone is short."""
    fitting = [_fitting(request, node.cpus, node.memory, _replicas_by_gpus(node, request, count)) for node in nodes]
    return _short({name: sum(of_node[name] for of_node in fitting) for name in fitting[0]} if fitting else {}, count)


def short_on_each(free_capacity: FreeCapacity, request: Request, count: int) -> str:
    """Resources that are short on every open node for `count` replicas; empty if none is short everywhere."""
    nodes = free_capacity.open_nodes
    if not nodes:
        return ""
    cpus, memory = max([node.cpus for node in nodes]), max([node.memory for node in nodes])
    gpus = max([_replicas_by_gpus(node, request, count) for node in nodes]) if with_gpus(request) else 0
    return _short(_fitting(request, cpus, memory, gpus), count)


def each_asks(request: Request, short: str) -> str:
    """The request of one replica for the named resources: `4GiB each`."""
    asked = {"CPUs": cpus_text(request.cpus), "memory": size_text(request.memory)}
    gpus = plural(request.gpus, "GPU") if request.share is None else gpus_text(request)
    return " and ".join(asked.get(name, gpus) for name in short.split(" and ")) + " each"


def _replicas_by_gpus(node: NodeCapacity, request: Request, most: int) -> int:
    """The number of replicas for which the node's GPUs alone are enough, up to `most` shares."""
    if request.share is not None:
        return node.gpus.count_shares(request, most)
    return len(node.gpus_for(request)) // request.gpus if request.gpus else 0


def _fitting(request: Request, cpus: float, memory: int, by_gpus: int) -> dict[str, int]:
    """For each of these amounts: the number of replicas for which it is enough."""
    found = {"CPUs": int((cpus + CPU_GRAIN) / request.cpus), "memory": memory // request.memory}
    if with_gpus(request):
        found[f"GPUs{make_text(request)}"] = by_gpus
    return {name: max(0, count) for name, count in found.items()}


def _short(fitting: Mapping[str, int], count: int) -> str:
    return " and ".join(sorted(name for name, fits in fitting.items() if fits < count))
