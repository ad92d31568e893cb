"""Fractional jobs of the openb trace on openb's own GPUs: how much of the demand each way of placing shares places.

The jobs are drawn from the trace's 3,078 fractional pods, with their GPU time, CPUs and memory of the node, until they
ask for as much GPU time as all 6,212 GPUs have: the pods of the trace alone would fill little more than a quarter. The
trace does not tell how much GPU memory a pod needs, nor how much the GPUs of undisclosed models have: both are assumed
here (`GPU_MEMORY`, `MEMORY_FOR`), the same for all. Once all have come, jobs leave and others come: holes appear.

First fit takes the first GPU, in the order of nodes, that has enough left. KubeShare's best fit (HPDC'20, algorithm 1,
for jobs without affinity) takes, of the GPUs that are shared already, the one with least time left that has enough, and
a GPU of its own where there is none. Nothing runs here: places are planned, by production code in the case of ours.
"""

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Protocol

import numpy
import pytest
from msgspec import Struct

from tests.bench.fairness.aims import Aim
from tests.bench.figures import quantile
from tests.support.data import measured
from weft.domain.cluster import Capacity, Gpu, Node, Request
from weft.domain.job import Allocation
from weft.domain.shares import CONTEXT_BYTES, WHOLE, Share
from weft.domain.spec import Kind
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.resource_request import RoleRequest

GIB = 1 << 30
GPU_MEMORY = {"P100": 16, "T4": 16, "V100M16": 16, "V100M32": 32, "A10": 24, "G2": 32, "G3": 32}  # GiB
MEMORY_FOR = (0.4, 1.6)  # of 15 GiB times the part of the GPU's time, evenly drawn
MEMORY_OF = 15 * GIB
CHURN = 0.5  # as many jobs leave and come again, of those that came
QUICK = 0.15  # of the nodes
DECISION_MS = 1.0


class Pod(Struct, frozen=True):
    """One job: thousandths of a GPU's time, bytes of its memory; CPU cores and bytes of memory of the node."""

    part: int
    gpu_memory: int
    cpus: float
    memory: int


class Server(Struct, frozen=True):
    id: str
    gpus: int
    model: str
    cpus: float
    memory: int


class Placing(Protocol):
    """One way of placing jobs. `start` returns whether there was a place."""

    def start(self, number: int, pod: Pod) -> bool: ...

    def end(self, number: int, pod: Pod) -> None: ...

    def used(self) -> int:
        """How many GPUs have jobs."""


class Ours:
    """`seconds`: how long each decision took, of processor time."""

    def __init__(self, servers: Sequence[Server], kind: Kind = Kind.BATCH) -> None:
        self.seconds: list[float] = []
        self._kind = kind
        self._free_capacity = FreeCapacity()
        self.places: dict[int, tuple[Allocation, ...]] = {}
        for server in servers:
            self._free_capacity.add(_node(server))

    def start(self, number: int, pod: Pod) -> bool:
        share = Share(request=pod.part, memory=pod.gpu_memory, kind=str(self._kind))
        resource_request = (
            RoleRequest("worker", 1, 1, Request(gpus=0, cpus=pod.cpus, memory=pod.memory, share=share)),
        )
        began = time.thread_time()
        place = find(self._free_capacity, resource_request)
        self.seconds.append(time.thread_time() - began)
        if place is None:
            return False
        self._free_capacity.take_all(place)
        self.places[number] = place
        return True

    def end(self, number: int, pod: Pod) -> None:
        del pod  # not used
        self._free_capacity.give_back_all(self.places.pop(number))

    def used(self) -> int:
        return sum(len(node.gpus.shared) for node in self._free_capacity.nodes.values())


class ByArrays:
    """GPUs in the order of nodes, as arrays: what is left of each, and of its node."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._of_node = numpy.repeat(numpy.arange(len(servers)), [server.gpus for server in servers])
        self._time = numpy.full(len(self._of_node), WHOLE)
        self._memory = numpy.array([GPU_MEMORY[server.model] * GIB for server in servers])[self._of_node]
        self._jobs = numpy.zeros(len(self._of_node), dtype=int)
        self._node_cpus = numpy.array([server.cpus for server in servers])
        self._node_memory = numpy.array([server.memory for server in servers])
        self.places: dict[int, int] = {}

    def start(self, number: int, pod: Pod) -> bool:
        nodes = (self._node_cpus + 1e-6 >= pod.cpus) & (self._node_memory >= pod.memory)
        fits = (self._time >= pod.part) & (self._memory >= pod.gpu_memory + CONTEXT_BYTES) & nodes[self._of_node]
        gpu = self._chosen(fits)
        if gpu is None:
            return False
        self.places[number] = gpu
        self._change(gpu, pod, 1)
        return True

    def end(self, number: int, pod: Pod) -> None:
        self._change(self.places.pop(number), pod, -1)

    def used(self) -> int:
        return int((self._jobs > 0).sum())

    @property
    def left(self) -> numpy.ndarray:
        """Of each GPU and node, the least that is left of anything."""
        of_gpus, of_nodes = numpy.minimum(self._time, self._memory), numpy.minimum(self._node_cpus, self._node_memory)
        return numpy.concatenate([of_gpus, of_nodes.round(6)])

    def _chosen(self, fits: numpy.ndarray) -> int | None:
        raise NotImplementedError

    def _change(self, gpu: int, pod: Pod, sign: int) -> None:
        self._jobs[gpu] += sign
        self._time[gpu] -= sign * pod.part
        self._memory[gpu] -= sign * (pod.gpu_memory + CONTEXT_BYTES)
        self._node_cpus[self._of_node[gpu]] -= sign * pod.cpus
        self._node_memory[self._of_node[gpu]] -= sign * pod.memory


class FirstFit(ByArrays):
    def _chosen(self, fits: numpy.ndarray) -> int | None:
        gpu = int(fits.argmax())
        return gpu if fits[gpu] else None


class KubeShareBestFit(ByArrays):
    def _chosen(self, fits: numpy.ndarray) -> int | None:
        shared = fits & (self._jobs > 0)
        if shared.any():
            return int(numpy.where(shared, self._time, WHOLE + 1).argmin())
        gpu = int(fits.argmax())
        return gpu if fits[gpu] else None


class Packed(Struct, frozen=True, kw_only=True):
    """Parts of the demand that were placed: as the jobs came, and of all, those among them that came later.

    `used_at_half`: how many GPUs have jobs once jobs came for half of all GPU time.
    """

    came: float
    placed: float
    used_at_half: int


def servers_of() -> list[Server]:
    with measured("traces/openb/openb_node_list_gpu_node.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [
        Server(row["sn"], int(row["gpu"]), row["model"], int(row["cpu_milli"]) / 1000, int(row["memory_mib"]) << 20)
        for row in rows
    ]


def pods_of(random: Random) -> Iterator[Pod]:
    """Fractional pods of the trace, drawn again and again."""
    with measured("traces/openb/openb_pod_list_default.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["num_gpu"] == "1" and int(row["gpu_milli"]) < WHOLE]
    while True:
        row = random.choice(rows)
        part = int(row["gpu_milli"])
        memory = int(MEMORY_OF * part / WHOLE * random.uniform(*MEMORY_FOR))
        yield Pod(
            part, min(MEMORY_OF, memory), max(0.001, int(row["cpu_milli"]) / 1000), int(row["memory_mib"]) << 20 or 1
        )


def pack(placing: Placing, servers: Sequence[Server], seed: int) -> Packed:
    """Jobs come until they asked for all GPU time; then some leave, and others come in their stead."""
    random = Random(seed)
    pods = pods_of(random)
    there = WHOLE * sum(server.gpus for server in servers)
    asked = placed = used_at_half = 0
    running: dict[int, Pod] = {}
    number = 0

    def come(pod: Pod) -> int:
        nonlocal number
        number += 1
        if not placing.start(number, pod):
            return 0
        running[number] = pod
        return pod.part

    while asked < there:
        pod = next(pods)
        asked += pod.part
        placed += come(pod)
        used_at_half = used_at_half or (placing.used() if 2 * asked >= there else 0)
    came, jobs = placed / asked, number
    order = Random(seed + 1)
    for _ in range(int(CHURN * jobs)):
        leaves = order.randint(1, number)  # one that has a place leaves, which is not the same job for every placing
        if leaves in running:
            placing.end(leaves, running.pop(leaves))
        pod = next(pods)
        asked += pod.part
        placed += come(pod)
    return Packed(came=came, placed=placed / asked, used_at_half=used_at_half)


def packing(seed: int, quick: bool) -> dict[str, Aim]:
    """The aims of packing; none where the trace is not there. Decisions are timed on all GPUs, also if `quick`."""
    try:
        servers = servers_of()
    except pytest.skip.Exception as reason:
        print(f"packing: left out, {reason}")
        return {}
    some = Random(seed).sample(servers, int(len(servers) * QUICK)) if quick else servers
    ours = Ours(some)
    ways: Mapping[str, Placing] = {"first_fit": FirstFit(some), "kubeshare": KubeShareBestFit(some), "ours": ours}
    found = {name: pack(way, some, seed) for name, way in ways.items()}
    for name, it in found.items():
        print(
            f"packing, {sum(server.gpus for server in some)} GPUs, {name}: {it.came:.2%} of the demand placed as it"
            f" comes, {it.placed:.2%} with jobs that come and go; {it.used_at_half} GPUs used at half of the demand"
        )
    seconds = ours.seconds
    if quick:
        large = Ours(servers)
        pack(large, servers, seed)
        seconds = large.seconds
    print(
        f"packing, {sum(server.gpus for server in servers)} GPUs: one decision takes {quantile(seconds, 0.5) * 1e6:.0f}"
        f" µs of processor time, p99 {quantile(seconds, 0.99) * 1e6:.0f} µs, at most {max(seconds) * 1e3:.1f} ms;"
        f" the first, which looks at every node, {seconds[0] * 1e3:.1f} ms"
    )
    return {
        "packing.placed_of_first_fit": _at_least(found["ours"].placed / found["first_fit"].placed, 1.0),
        "packing.placed_of_kubeshare": _at_least(found["ours"].placed / found["kubeshare"].placed, 1.0),
        "packing.decision_p99_ms": Aim(value=round(quantile(seconds, 0.99) * 1000, 3), aim=DECISION_MS),
    }


def _at_least(value: float, aim: float) -> Aim:
    return Aim(value=round(value, 4), aim=aim, at_least=True)


def _node(server: Server) -> Node:
    gpus = tuple(
        Gpu(index=at, uuid=f"{server.id}-{at}", model=server.model, memory=GPU_MEMORY[server.model] * GIB)
        for at in range(server.gpus)
    )
    return Node(
        id=server.id, pool="default", address="", capacity=Capacity(cpus=server.cpus, memory=server.memory, gpus=gpus)
    )
