"""The links between the GPUs of one node, and the NUMA node of each GPU."""

import re
from typing import Annotated, Final

from msgspec import Meta, Struct

GPUS_MAX: Final = 64
"""GPUs of a node with a topology; the links of more are not recorded."""

NUMA_MAX: Final = 1024
UNKNOWN_NUMA: Final = -1

_LINK = re.compile(r"NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS")


class Topology(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The links and NUMA nodes of the GPUs `gpus` (indices in ascending order).

    `links`: for each GPU but the last, its links to the GPUs after it, separated by spaces, by the names of
    `nvidia-smi topo -m`: NV4 (four NVLinks, direct or by a switch), PIX (one PCIe switch), PXB (several), PHB (a host
    bridge), NODE (a NUMA node), SYS (the link between sockets). Empty: they are not known, as for MIG instances.
    `numa`: the NUMA node of each GPU, -1 if it is not known; empty: none is. For example two pairs on two sockets:
    `links=("NV4 SYS SYS", "SYS SYS", "NV4")`, `numa=(0, 0, 1, 1)`.
    """

    gpus: Annotated[tuple[Annotated[int, Meta(ge=0, lt=1024)], ...], Meta(max_length=GPUS_MAX)]
    links: Annotated[tuple[Annotated[str, Meta(max_length=512)], ...], Meta(max_length=GPUS_MAX)] = ()
    numa: Annotated[tuple[Annotated[int, Meta(ge=UNKNOWN_NUMA, lt=NUMA_MAX)], ...], Meta(max_length=GPUS_MAX)] = ()

    def __post_init__(self) -> None:
        count = len(self.gpus)
        if list(self.gpus) != sorted(set(self.gpus)):
            raise ValueError(f"the GPUs of a topology must ascend, got {self.gpus}")
        if self.numa and len(self.numa) != count:
            raise ValueError(f"a topology of {count} GPUs must have {count} NUMA nodes, got {len(self.numa)}")
        if not self.links:
            return
        if [len(row.split()) for row in self.links] != list(range(count - 1, 0, -1)):
            raise ValueError(f"a topology of {count} GPUs must have a row of links to all GPUs behind each")
        for link in (link for row in self.links for link in row.split()):
            if not _LINK.fullmatch(link):
                raise ValueError(f"no such link as {link!r}; there are NV1 to NV99, PIX, PXB, PHB, NODE, SYS")

    def link(self, one: int, other: int) -> str:
        """The link between the GPUs at two places of `gpus`; where links are not known, by their NUMA nodes."""
        low, high = sorted((one, other))
        if self.links:
            return self.links[low].split()[high - low - 1]
        if not self.numa or UNKNOWN_NUMA in (self.numa[low], self.numa[high]):
            return "SYS"
        return "NODE" if self.numa[low] == self.numa[high] else "SYS"

    def numa_of(self, gpu: int) -> int:
        """The NUMA node of the GPU with this index, or -1."""
        if not self.numa or gpu not in self.gpus:
            return UNKNOWN_NUMA
        return self.numa[self.gpus.index(gpu)]
