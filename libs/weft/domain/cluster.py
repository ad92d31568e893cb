"""Nodes, their GPUs, and the requests of replicas."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.health import HealthRecord
from weft.domain.labels import NOT_MARKED, Marking, tolerates
from weft.domain.labels.where import matches
from weft.domain.shares import Share
from weft.domain.spec import Token
from weft.domain.topology import Topology

MEMORY_BYTES_MAX = 1 << 50
CPUS_MAX = 65_536
GPUS_MAX = 1024
VOLUMES_MAX = 256
TENANTS_OF_VOLUME_MAX = 256

Memory = Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)]
Word = Annotated[str, Meta(max_length=255)]


class Gpu(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU of a node. `memory` in bytes. An emulated GPU is no hardware, and is marked so everywhere."""

    index: Annotated[int, Meta(ge=0, lt=GPUS_MAX)]
    uuid: Word
    model: Word
    memory: Memory
    emulated: bool = False


class OfferedVolume(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A folder that the owner of a node offers to jobs by its name. `tenants`: the tenants
    whose jobs may have it; empty: all."""

    name: Token
    read_only: bool = False
    tenants: Annotated[tuple[Word, ...], Meta(max_length=TENANTS_OF_VOLUME_MAX)] = ()

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants


class Capacity(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """CPU cores, bytes of memory, GPUs and volumes that a node offers to jobs. Each GPU index and volume name is there
    once.

    `topology`: the links of its GPUs; None: it could not be read, and all of them count as equally near.
    """

    cpus: Annotated[float, Meta(ge=0, le=CPUS_MAX)]
    memory: Memory
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=GPUS_MAX)] = ()
    volumes: Annotated[tuple[OfferedVolume, ...], Meta(max_length=VOLUMES_MAX)] = ()
    topology: Topology | None = None

    def __post_init__(self) -> None:
        if len({gpu.index for gpu in self.gpus}) != len(self.gpus):
            raise ValueError("two GPUs have one index")
        if len({volume.name for volume in self.volumes}) != len(self.volumes):
            raise ValueError("two volumes have one name")


NOT_HELD_TO_SHARES = "shares"
"""In `Node.not_enforced`: a job is not held to its share of a GPU there."""

PROCESS, DOCKER = "process", "docker"  # runtimes
IGNORES_IMAGES = "image"  # a node of processes that says so starts jobs with an image all the same
NO_SHARES = "shares (none are given)"
"""In `Node.not_enforced`: no job gets a share of a GPU there."""

NO_STOPPING = "stopping (a stopped container ends with its main process: there is no C compiler)"
"""In `Node.not_enforced`: the engine's own first process is used, which ends everything with the main process."""


class NeededVolume(Struct, frozen=True):
    """A volume that a replica needs of its node, as one of this tenant's jobs. `writes`: not only to read it."""

    name: str
    tenant: str
    writes: bool


class Drain(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a node takes no new work, by the person who said so. `until`: when it takes work again by itself, in seconds
    since 1970; None: when a person says so. `evicts`: its runs stop, and start again elsewhere. `announced`: by the
    node itself, which is about to end; the drain ends when the node takes that back."""

    reason: str = ""
    until: float | None = None
    evicts: bool = False
    announced: bool = False

    @property
    def text(self) -> str:
        """Such as ` (new memory, until 2026-05-01 08:00:00 UTC)`; empty for a drain without a reason or an end."""
        end = "" if self.until is None else f"until {datetime.fromtimestamp(self.until, UTC):%Y-%m-%d %H:%M:%S} UTC"
        said = ", ".join(part for part in (self.reason, end) if part)
        return f" ({said})" if said else ""


class Node(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node as the store has it."""

    id: str
    pool: str
    address: str
    capacity: Capacity
    runtime: str = "process"
    not_enforced: tuple[str, ...] = ()  # limits that this node's runtime cannot hold jobs to
    ready: bool = True  # False once it has been silent for longer than its lease
    drain: Drain | None = None  # takes no new work
    seen_at: float = 0.0
    rack: str = ""  # nodes of one rack are nearer to each other than to all others
    health: tuple[HealthRecord, ...] = ()  # states of the node and of its GPUs, as far as they were ever sick
    labels: dict[str, str] = {}  # as they are now
    taints: dict[str, str] = {}  # likewise
    marking: Marking = NOT_MARKED  # changes by operators, which win over the labels and taints of its own settings

    @property
    def own_health(self) -> HealthRecord | None:
        """The health of the node itself; None: it was never sick."""
        return next((each for each in self.health if each.gpu is None), None)

    @property
    def drained(self) -> bool:
        return self.drain is not None

    @property
    def takes_work(self) -> bool:
        """Is it there, not drained, and not out of use as a whole?"""
        own = self.own_health
        return self.ready and not self.drained and (own is None or not own.closed)

    @property
    def takes_any(self) -> bool:
        """Does it take work of a job that tolerates no taint?"""
        return self.takes_work and not self.taints

    @property
    def closed_gpus(self) -> frozenset[int]:
        """The GPUs that take no new run."""
        return frozenset(each.gpu for each in self.health if each.gpu is not None and each.closed)

    @property
    def lost_gpus(self) -> frozenset[int]:
        """The GPUs on which no run can go on."""
        return frozenset(each.gpu for each in self.health if each.gpu is not None and each.closed and each.lost)

    def health_of(self, gpu: int) -> HealthRecord | None:
        """The health of a GPU; None: it was never sick."""
        return next((each for each in self.health if each.gpu == gpu), None)

    @property
    def gives_shares(self) -> bool:
        return NO_SHARES not in self.not_enforced

    def offers(self, needed: NeededVolume) -> bool:
        """Does its owner offer that volume to such a job?"""
        return any(
            volume.name == needed.name and volume.is_for(needed.tenant) and not (needed.writes and volume.read_only)
            for volume in self.capacity.volumes
        )

    def runs(self, *, image: bool | None) -> bool:
        """Can its runtime start jobs with an image, or without one? A container needs an image; a process has none,
        unless the node is set to ignore images."""
        if image is None or self.runtime not in (PROCESS, DOCKER):
            return True
        return self.runtime == DOCKER or IGNORES_IMAGES in self.not_enforced if image else self.runtime != DOCKER

    def starts(self, request: "Request") -> bool:
        """Can it start such a replica, whatever room it has?"""
        return (
            self.runs(image=request.image)
            and all(map(self.offers, request.volumes))
            and self.matches(request)
            and self.is_tolerated(request)
        )

    def matches(self, request: "Request") -> bool:
        """Are its labels such as the replica asks for?"""
        return matches(request.where, self.labels)

    def is_tolerated(self, request: "Request") -> bool:
        """Does the replica tolerate each of its taints?"""
        return all(tolerates(request.tolerates, *taint) for taint in self.taints.items())


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The needs of one replica on a node. `memory` in bytes.

    `models`: the models that its GPUs may have, the preferred one first; empty: any but those of `excluded`.
    `gpu_memory`: the least memory of each of its GPUs in bytes. `prefers`: the model of GPUs that it gets if it fits
    there. With a `share` it needs a part of one GPU, and `gpus` is 0.
    """

    gpus: int
    cpus: float
    memory: int
    models: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    gpu_memory: int = 0
    prefers: str = ""
    egress: int | None = None  # bytes per second that it may send; None: no limit
    node: str | None = None  # only on this node
    gpu: int | None = None  # only GPUs from this index on
    share: Share | None = None
    volumes: tuple[NeededVolume, ...] = ()  # that its node must offer
    image: bool | None = None  # does it name one? None: not known, as of a job of the simulator
    where: str = ""  # the expression that the labels of its node must match
    tolerates: tuple[str, ...] = ()  # the taints that its node may have

    @property
    def on_any_gpu(self) -> bool:
        """Return True if every GPU suits it, whatever its model and memory."""
        return not (self.models or self.excluded or self.gpu_memory)

    def may_have(self, model: str) -> bool:
        """Return True if its GPUs may be of this model, by their name."""
        named = not self.models or model in self.models
        return named and model not in self.excluded

    def suits(self, model: str, memory: int) -> bool:
        """Return True if a GPU of this model with `memory` bytes suits it."""
        return self.may_have(model) and memory >= self.gpu_memory

    @property
    def gpu_kind(self) -> tuple[tuple[str, ...], tuple[str, ...], int]:
        """The GPUs that suit it: equal for requests that the same GPUs suit."""
        return self.models, self.excluded, self.gpu_memory


def models_text(named: Sequence[str], excluded: Sequence[str]) -> str:
    """Return `A100 or H100`, or `any model but K80 and P100`; empty if every model will do."""
    if named or not excluded:
        return " or ".join(named)
    return f"any model but {' and '.join(excluded)}"
