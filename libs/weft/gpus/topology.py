"""How near the GPUs of a node are to each other. Read it once: it does not change while the node runs."""

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

from weft.domain.cluster import Gpu
from weft.domain.topology import GPUS_MAX, UNKNOWN_NUMA, Topology
from weft.gpus.asking import Asker
from weft.gpus.nvml import DRIVER, MIG_PREFIX, NVLINKS_MAX, Handle, Nvml, NvmlError, text

logger = logging.getLogger(__name__)

SYS: Final = Path("/sys")
_GPU = re.compile(r"GPU[0-9]+")
_CODES = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined
_NUMA = "NUMA Affinity"
_NAMES: Final = {
    "internal": "PIX",
    "single": "PIX",
    "multiple": "PXB",
    "hostbridge": "PHB",
    "node": "NODE",
    "system": "SYS",
}

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


def read_topology(gpus: tuple[Gpu, ...], *, nvml: Nvml = DRIVER, sys: Path = SYS) -> Topology | None:
    """The links and NUMA nodes of a node's GPUs; None if they cannot be read.

    MIG instances have no links to other GPUs, only the NUMA node of their GPU. Emulated GPUs have no topology.
    """
    if not 0 < len(gpus) <= GPUS_MAX or any(gpu.emulated for gpu in gpus):
        return None
    try:
        nvml.nvmlInit()
    except NvmlError as error:
        logger.warning("the topology of the GPUs cannot be read: %s", error)
        return None
    try:
        return _read(tuple(sorted(gpus, key=lambda gpu: gpu.index)), nvml, sys)
    except (NvmlError, ValueError) as error:
        logger.warning("the topology of the GPUs cannot be read, so all of them count as equally near: %s", error)
        return None
    finally:
        nvml.nvmlShutdown()


def _read(gpus: tuple[Gpu, ...], nvml: Nvml, sys: Path) -> Topology:
    """Raises NvmlError, and ValueError for a pair of whole GPUs that the driver does not know."""
    near = topology(gpus, nvml=nvml)
    bus = {gpu.index: _bus_of(gpu, nvml) for gpu in gpus}
    whole = {gpu.index: bus[gpu.index] for gpu in gpus if not gpu.uuid.startswith(MIG_PREFIX)}
    nvlinks = {
        index: _nvlinks(nvml.nvmlDeviceGetHandleByUUID(gpu.uuid), nvml, set(whole.values()))
        for gpu in gpus
        if (index := gpu.index) in whole
    }

    def link(one: int, other: int) -> str:
        if one not in whole or other not in whole:
            return "SYS"
        joined = nvlinks[one][whole[other]] or min(nvlinks[one][""], nvlinks[other][""])
        if joined:
            return f"NV{joined}"
        if (one, other) not in near:
            raise ValueError(f"the driver does not know how near GPU {one} is to GPU {other}")
        return _NAMES[near[one, other]]

    indexes = [gpu.index for gpu in gpus]
    return Topology(
        gpus=tuple(indexes),
        links=tuple(" ".join(link(one, other) for other in indexes if other > one) for one in indexes[:-1]),
        numa=tuple(_numa_of(bus[index], sys) for index in indexes),
    )


def _bus_of(gpu: Gpu, nvml: Nvml) -> str:
    """The address of the GPU, or of the GPU of which it is an instance, as `0000:1b:00.0`."""
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    if gpu.uuid.startswith(MIG_PREFIX):
        handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return _address(text(nvml.nvmlDeviceGetPciInfo(handle).busId))


def _nvlinks(handle: Handle, nvml: Nvml, gpus: set[str]) -> Counter[str]:
    """How many active NVLinks go to each of the GPUs; under the empty name those to switches."""
    found: Counter[str] = Counter()
    asker = Asker()
    for link in range(NVLINKS_MAX):
        state = asker.ask(nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:  # the GPU has no more links
            break
        if state:
            remote = asker.ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            address = "" if remote is None else _address(text(remote.busId))
            found[address if address in gpus else ""] += 1
    return found


def _address(bus_id: str) -> str:
    """NVML's domains have eight digits, those of the kernel four."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _numa_of(address: str, sys: Path) -> int:
    try:
        return max(UNKNOWN_NUMA, int((sys / "bus" / "pci" / "devices" / address / "numa_node").read_text()))
    except (OSError, ValueError):
        return UNKNOWN_NUMA


def topology_of_table(text: str) -> Topology:
    """The topology in the table that `nvidia-smi topo -m` prints. Raises ValueError.

    Columns and rows of anything but GPUs are left out.
    """
    lines = [_cells(line) for line in _CODES.sub("", text).splitlines() if line.strip()]
    header = next((cells for cells in lines if "GPU0" in cells[1:]), None)
    if header is None:
        raise ValueError("a table of links must have a header with GPU0, GPU1, ...")
    columns = [(int(cell[3:]), at) for at, cell in enumerate(header) if _GPU.fullmatch(cell)]
    rows = {int(cells[0][3:]): cells for cells in lines if _GPU.fullmatch(cells[0])}
    if list(rows) != [gpu for gpu, _ in columns]:
        raise ValueError(f"a table of links must have a row for each of its {len(columns)} GPUs, got {len(rows)}")
    if any(len(cells) <= max(at for _, at in columns) for cells in rows.values()):
        raise ValueError("a table of links must have a link in each row for each GPU")
    numa = header.index(_NUMA) if _NUMA in header else None
    return Topology(
        gpus=tuple(rows),
        links=tuple(" ".join(cells[at] for gpu, at in columns if gpu > row) for row, cells in [*rows.items()][:-1]),
        numa=() if numa is None else tuple(_number(cells, numa) for cells in rows.values()),
    )


def _cells(line: str) -> Sequence[str]:
    """The cells of a line, which are between tabs, or between several spaces."""
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else re.split(r" {2,}", line.rstrip())


def _number(cells: Sequence[str], at: int) -> int:
    """The first of the NUMA nodes in a cell such as `0` or `0-1`."""
    found = re.match(r"[0-9]+", cells[at]) if at < len(cells) else None
    return int(found[0]) if found else UNKNOWN_NUMA
