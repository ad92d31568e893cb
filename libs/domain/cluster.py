"""Nodes, their GPUs, and what a replica asks of them."""

from msgspec import Struct


class Gpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a node. `memory` in bytes. An emulated one is no hardware and is called so everywhere."""

    index: int
    uuid: str
    model: str
    memory: int
    emulated: bool = False


class Capacity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node has to give: CPU cores, memory in bytes, GPUs."""

    cpus: float
    memory: int
    gpus: tuple[Gpu, ...] = ()


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node as the store has it."""

    id: str
    pool: str
    address: str
    capacity: Capacity
    runtime: str = "process"
    not_enforced: tuple[str, ...] = ()  # limits that this node's runtime cannot hold jobs to
    ready: bool = True  # False once it has been silent for longer than its lease
    drained: bool = False  # takes no new work
    seen_at: float = 0.0
    rack: str = ""  # nodes of one rack are nearer to each other than to all others


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one replica needs of a node. `memory` in bytes; `model` None takes any GPU."""

    gpus: int
    cpus: float
    memory: int
    model: str | None = None
    egress: int | None = None  # bytes per second that it may send; None: no limit
    node: str | None = None  # only there
    gpu: int | None = None  # only from this index on
