"""How near the GPUs of a node are to each other. Read it once: it does not change while the node runs."""

from collections.abc import Mapping
from itertools import combinations
from typing import Final

from weft.domain.cluster import Gpu
from weft.gpus.asking import Asker
from weft.gpus.nvml import DRIVER, MIG_PREFIX, Nvml

LEVELS: Final = {
    0: "internal",  # on one board
    10: "single",  # one PCIe switch between them
    20: "multiple",  # several switches
    30: "hostbridge",  # one host bridge
    40: "node",  # one NUMA node
    50: "system",  # the link between two sockets
}
"""NVML's names for the nearest part that two GPUs share, from near to far."""

Near = Mapping[tuple[int, int], str]
"""The level by the indices of two GPUs, the lower first."""


def topology(gpus: tuple[Gpu, ...], *, nvml: Nvml = DRIVER) -> Near:
    """The level of each pair of GPUs; pairs that the driver does not know are left out.

    The driver must be initialised if any of the GPUs is real. Emulated GPUs and MIG instances have no place of their
    own: they are left out as well.
    """
    asker = Asker()
    handles = {
        gpu.index: asker.ask(nvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
        for gpu in gpus
        if not gpu.emulated and not gpu.uuid.startswith(MIG_PREFIX)
    }
    found = {}
    for one, other in combinations(sorted(index for index, handle in handles.items() if handle is not None), 2):
        level = Asker().ask(nvml.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other])
        if level in LEVELS:
            found[one, other] = LEVELS[level]
    return found
