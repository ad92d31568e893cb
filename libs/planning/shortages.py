"""Which of GPUs, CPUs and memory keeps replicas from fitting, where one of them alone does; and amounts in words."""

from collections.abc import Mapping, Sequence

from libs.domain.cluster import Request
from libs.domain.quantity import count_text, size_text
from libs.planning.capacity import CPU_GRAIN, NodeRoom, Room


def cpus_text(cpus: float) -> str:
    """`1 CPU`, `2.5 CPUs`."""
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}"


def gpus_text(request: Request) -> str:
    return count_text(request.gpus, "GPU") + (f" of {request.model}" if request.model else "")


def short_in_all(nodes: Sequence[NodeRoom], request: Request, count: int) -> str:
    """What all nodes together have too little of for `count` replicas; empty if no resource alone is short."""
    fitting = [_fitting(request, node.cpus, node.memory, len(node.gpus_for(request))) for node in nodes]
    return _short({name: sum(of_node[name] for of_node in fitting) for name in fitting[0]} if fitting else {}, count)


def short_on_each(room: Room, request: Request, count: int) -> str:
    """What every open node has too little of for `count` replicas; empty if no resource alone is short everywhere."""
    nodes = room.open_nodes
    if not nodes:
        return ""
    cpus, memory, gpus = max([node.cpus for node in nodes]), max([node.memory for node in nodes]), max(room.buckets)
    if request.model is not None:
        gpus = max([len(node.gpus_for(request)) for node in nodes])
    return _short(_fitting(request, cpus, memory, gpus), count)


def each_asks(request: Request, short: str) -> str:
    """What one replica asks for of the resources named: `4GiB each`."""
    asked = {"CPUs": cpus_text(request.cpus), "memory": size_text(request.memory)}
    return " and ".join(asked.get(name, count_text(request.gpus, "GPU")) for name in short.split(" and ")) + " each"


def _fitting(request: Request, cpus: float, memory: int, gpus: int) -> dict[str, int]:
    """How many replicas each of these amounts alone is enough for."""
    found = {"CPUs": int((cpus + CPU_GRAIN) / request.cpus), "memory": memory // request.memory}
    if request.gpus:
        found[f"GPUs of {request.model}" if request.model else "GPUs"] = gpus // request.gpus
    return {name: max(0, count) for name, count in found.items()}


def _short(fitting: Mapping[str, int], count: int) -> str:
    return " and ".join(sorted(name for name, fits in fitting.items() if fits < count))
