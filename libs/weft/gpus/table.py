"""Reads the table that `nvidia-smi topo -m` prints."""

import re
from collections.abc import Sequence

from weft.domain.topology import UNKNOWN_NUMA, Topology

_GPU = re.compile(r"GPU[0-9]+")
_CODES = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined
_NUMA = "NUMA Affinity"


def topology_of_table(text: str) -> Topology:
    """The topology in the table; columns and rows of anything but GPUs are left out. Raises ValueError."""
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
