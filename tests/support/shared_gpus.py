"""Nodes whose GPUs differ, and needs of shares of them."""

from tests.support.builders import GIB
from weft.domain.cluster import Capacity, Gpu, Node, Request
from weft.domain.shares import Share
from weft.planning.capacity import FreeCapacity
from weft.planning.resource_request import ResourceRequest, RoleRequest

MODELS = ("A", "B")
MEMORY = {"A": 16 * GIB, "B": 24 * GIB}
NAMES = [f"node-{number}" for number in range(4)]


def node_of(name: str, *, gpus: int = 3, cpus: float = 1000.0, real: bool = True, model: str = "") -> Node:
    models = [model or MODELS[index % 2] for index in range(gpus)]
    made = tuple(
        Gpu(index=index, uuid=f"{name}-{index}", model=model, memory=MEMORY[model], emulated=not real)
        for index, model in enumerate(models)
    )
    return Node(id=name, pool="default", address="", capacity=Capacity(cpus=cpus, memory=1 << 40, gpus=made))


def shape(
    part: int = 0, gib: float = 1, *, count: int = 1, gpus: int = 0, kind: str = "batch", **more: object
) -> ResourceRequest:
    share = Share(request=part, memory=int(gib * GIB), kind=kind) if part else None
    request = Request(gpus=gpus, cpus=1, memory=1, share=share, **more)  # type: ignore[arg-type]
    return (RoleRequest("worker", count, count, request),)


def single(*sizes: int, real: bool = False, cpus: float = 1000.0) -> FreeCapacity:
    """Nodes with so many GPUs of 16 GiB."""
    free_capacity = FreeCapacity()
    for at, gpus in enumerate(sizes):
        free_capacity.add(node_of(NAMES[at], gpus=gpus, model="A", real=real, cpus=cpus))
    return free_capacity
