"""Which of GPUs, CPUs and memory keeps replicas from fitting, where one of them alone does; and amounts in words."""

from collections.abc import Iterable

from libs.domain.cluster import Request
from libs.domain.quantity import count_text, size_text
from libs.planning.capacity import CPU_GRAIN, NodeRoom


def cpus_text(cpus: float) -> str:
    """`1 CPU`, `2.5 CPUs`."""
    return f"{cpus:g} CPU{'' if cpus == 1 else 's'}"


def gpus_text(request: Request) -> str:
    return count_text(request.gpus, "GPU") + (f" of {request.model}" if request.model else "")


def by_resource(node: NodeRoom, request: Request) -> dict[str, int]:
    """How many replicas each resource of a node alone has enough of."""
    found = {
        "CPUs": int((node.cpus + CPU_GRAIN) / request.cpus),
        "memory": node.memory // request.memory,
    }
    if request.gpus:
        name = f"GPUs of {request.model}" if request.model else "GPUs"
        found[name] = len(node.gpus_for(request)) // request.gpus
    return {name: max(0, count) for name, count in found.items()}


def short_in_all(nodes: Iterable[NodeRoom], request: Request, count: int) -> str:
    """What all nodes together have too little of for `count` replicas; empty if no resource alone is short."""
    return _short([by_resource(node, request) for node in nodes], count, together=True)


def short_on_each(nodes: Iterable[NodeRoom], request: Request, count: int) -> str:
    """What every single node has too little of for `count` replicas; empty if no resource alone is short everywhere."""
    return _short([by_resource(node, request) for node in nodes], count, together=False)


def each_asks(request: Request, short: str) -> str:
    """What one replica asks for of the resources named: `4GiB each`."""
    asked = {"CPUs": cpus_text(request.cpus), "memory": size_text(request.memory)}
    return " and ".join(asked.get(name, count_text(request.gpus, "GPU")) for name in short.split(" and ")) + " each"


def _short(counts: list[dict[str, int]], count: int, *, together: bool) -> str:
    names = counts[0] if counts else {}
    most = {name: (sum if together else max)(each[name] for each in counts) for name in names}
    return " and ".join(sorted(name for name in names if most[name] < count))
