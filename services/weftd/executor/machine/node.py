"""The facts of this node, and its owner's permissions: the same for every runtime."""

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from weft.domain.cluster import Gpu
from weft.domain.spec import Volume
from weft.domain.topology import Topology
from weft.messages.nodes import EndReason, RunState, StartRun
from weftd.executor.machine.environment import is_alone
from weftd.executor.machine.ports import PortRange
from weftd.executor.machine.volumes import OwnedVolume, VolumeRefusedError, paths_for
from weftd.executor.runs import Run, RunKey, RuntimeUnavailableError
from weftd.executor.thinking.pinning import NumaNode


class NodeFacts(Struct, kw_only=True):
    """`gpus` is None until the driver has listed them, and `topology` is read after them; nothing else changes."""

    node_id: str
    address: str = "127.0.0.1"
    gpus: tuple[Gpu, ...] | None = ()
    topology: Topology | None = None  # links of the GPUs; None: not known
    numa: tuple[NumaNode, ...] = ()  # to which runs may be pinned
    binds_memory: bool = True  # a pinned run gets memory of its NUMA node alone
    checkpoints: str  # each job has its own folder in here
    results: str  # likewise
    volumes_allowed: tuple[str, ...] = ()  # folders whose contents jobs may mount
    volumes: Mapping[str, OwnedVolume] = {}  # folders that jobs may have by name, with their real paths
    ulimits_max: Mapping[str, int] = {}  # its owner's bounds; a name that is absent has the runtime's own
    ports: PortRange = PortRange()  # for processes that serve requests
    publish_at: str = ""  # the address of this host at which containers that serve requests are reached; "": `address`

    def offer(self, gpus: tuple[Gpu, ...] | None) -> None:
        """Set the node's GPUs."""
        self.gpus = gpus


class Refusal(Exception):  # noqa: N818 - not an error of the node: this order can never be carried out here
    """Why an order cannot start, in words for the user."""

    def __init__(self, why: str, reason: EndReason = EndReason.START_FAILED, *, is_for_good: bool = False) -> None:
        """`is_for_good`: another try on this node would end the same way."""
        super().__init__(why)
        self.reason, self.is_for_good = reason, is_for_good


def refused(key: RunKey, refusal: Refusal, *, at: float) -> Run:
    """A run that was not started, and why. `at` in seconds since the epoch."""
    return Run(
        key=key,
        state=RunState.EXITED,
        ended_at=at,
        reason=refusal.reason,
        detail=str(refusal),
        for_good=refusal.is_for_good,
    )


def port_taken(order: StartRun) -> Refusal:
    why = f"port taken: {order.master_port}, which the other ranks would connect to"
    return Refusal(why, EndReason.PORT_TAKEN)


def meets_at_its_port(order: StartRun) -> bool:
    """True if other ranks meet this one at the port of rank 0. A job of one rank has the port for itself alone, and
    may not even use it."""
    return order.rank == 0 and order.master_port > 0 and not is_alone(order)


def gpus_of(order: StartRun, node: NodeFacts) -> tuple[Gpu, ...]:
    """The GPUs that the order names by index. Raises Refusal, RuntimeUnavailableError."""
    if order.gpus and node.gpus is None:
        raise RuntimeUnavailableError("the NVIDIA driver has not said yet which GPUs there are")
    by_index = {gpu.index: gpu for gpu in node.gpus or ()}
    unknown = [index for index in order.gpus if index not in by_index]
    if unknown:
        raise Refusal(f"this node has no GPU {unknown[0]}")
    return tuple(by_index[index] for index in order.gpus)


def volume_source(volume: Volume, allowed: Sequence[str]) -> str:
    """The volume's real path, links resolved, if the allow-list contains it. Raises Refusal."""
    real = os.path.realpath(volume.source)
    folders = [os.path.realpath(folder) for folder in allowed if folder]
    if not any(real == folder or real.startswith(folder.rstrip("/") + "/") for folder in folders):
        raise Refusal(
            f"the volume {volume.source} is not among the volumes that this node's owner allows", is_for_good=True
        )
    if not os.path.exists(real):
        raise Refusal(f"the volume {volume.source} does not exist on this node")
    return real


def named_paths(order: StartRun, node: NodeFacts) -> dict[str, str]:
    """By name, the path on this node of each volume that the order names. Raises Refusal."""
    try:
        return paths_for(order.named_volumes, order.tenant, node.volumes)
    except VolumeRefusedError as error:
        raise Refusal(str(error)) from None
