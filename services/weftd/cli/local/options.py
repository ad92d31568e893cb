"""The options of a local cluster."""

import os
from collections.abc import Mapping

from msgspec import Struct

from weft.domain.quantity import size_text
from weft.domain.spec import TuningMode
from weft.domain.text import plural


class Options(Struct, frozen=True, kw_only=True):
    """`emulated_gpus` 0 offers the machine's real ones, which only one node can.
    `port` is the gateway's, `router_port` the router's; 0 is any that is free, None the usual one unless it is taken.

    A URL or DSN that is given is used, and that server is neither started nor stopped. `settings` go to every service.
    `benchmarks`: whether GPUs that are idle are measured, by jobs; `partition`: whether the sizes of elastic jobs are
    planned together; None: as REALLOCATOR_PARTITION says.
    """

    nodes: int = 2
    emulated_gpus: int = 8
    cpus: float | None = None  # per node
    memory: int | None = None  # bytes per node
    port: int | None = None
    router_port: int | None = None
    pool: str = "default"
    nats_url: str | None = None
    pg_dsn: str | None = None
    benchmarks: bool = False
    partition: TuningMode | None = None
    settings: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"a cluster of {self.nodes} nodes runs nothing")
        if self.nodes > 1 and not self.emulated_gpus:
            raise ValueError("the real GPUs of one machine belong to one node: ask for 1 node, or for emulated GPUs")

    @property
    def node_ids(self) -> list[str]:
        return [f"node-{number}" for number in range(1, self.nodes + 1)]

    @property
    def node_cpus(self) -> float:
        """Each emulated GPU comes with a CPU core for its job, whether the machine has it or not."""
        share = machine_cpus() / self.nodes
        return self.cpus or max(share, 2.0 * self.emulated_gpus)

    @property
    def node_memory(self) -> int:
        return self.memory or machine_memory() // self.nodes

    def in_words(self) -> str:
        """The cluster in one line, with the emulated part of it."""
        gpus = f"{self.emulated_gpus} emulated GPUs" if self.emulated_gpus else "the GPUs of this machine"
        nodes = f"{self.nodes} nodes, each" if self.nodes > 1 else "1 node"
        return f"{nodes} with {gpus}, {plural(self.node_cpus, 'CPU')}, {size_text(self.node_memory)}"

    def pretended(self) -> str:
        """The emulated part of it; empty if all is real."""
        pretended = ["no hardware is behind an emulated GPU"] if self.emulated_gpus else []
        if self.node_cpus * self.nodes > machine_cpus():
            pretended.append(f"this machine has {plural(machine_cpus(), 'CPU')} in all")
        return "; ".join(pretended)


def machine_cpus() -> float:
    return float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
