"""The links between the GPUs of a node, drawn as a table."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from weft.domain.text import listed
from weft.domain.topology import Topology
from weft.messages.http import NodeView
from weftd.cli.formatting import NAMED_MAX
from weftd.cli.rendering.context import plain

_STYLES = {"PIX": "cyan", "PXB": "cyan", "PHB": "yellow", "NODE": "yellow", "SYS": "dim"}
_WIDTH = 6


def topologies(nodes: Sequence[NodeView]) -> list[RenderableType]:
    """For each node with several GPUs their links: row by row, with the NUMA node and whether a job has the GPU."""
    lines: list[RenderableType] = []
    for node in nodes:
        if len(node.gpus) < 2:
            continue
        lines += [Text(), plain(node.id, "bold")]
        if node.topology is None or not _is_of(node, node.topology):
            lines.append(Text("  the links of its GPUs are not known: they count as one group", "dim"))
        else:
            lines += _rows(node, node.topology)
    return lines


def flat_nodes(nodes: Sequence[NodeView]) -> list[str]:
    """A line that names the nodes of which the links between GPUs could not be read."""
    flat = [
        node.id
        for node in nodes
        if len(node.gpus) > 1
        and not any(gpu.emulated for gpu in node.gpus)
        and (node.topology is None or not _is_of(node, node.topology))
    ]
    if not flat:
        return []
    return [f"the links between the GPUs of {listed(flat, NAMED_MAX)} are not known: they count as one group"]


def _is_of(node: NodeView, topology: Topology) -> bool:
    return topology.gpus == tuple(sorted(gpu.index for gpu in node.gpus))


def _rows(node: NodeView, topology: Topology) -> list[RenderableType]:
    held = {gpu.index for gpu in node.gpus if gpu.held_by is not None}
    header = Text("  " + " " * _WIDTH, "dim")
    for gpu in topology.gpus:
        header.append(f"{f'GPU{gpu}':>{_WIDTH}}")
    header.append("  NUMA")
    rows: list[RenderableType] = [header]
    for one, gpu in enumerate(topology.gpus):
        row = Text(f"  {f'GPU{gpu}':<{_WIDTH}}", "dim")
        for other in range(len(topology.gpus)):
            link = "X" if one == other else topology.link(one, other)
            row.append(f"{link:>{_WIDTH}}", _STYLES.get(link, "green" if one != other else "dim"))
        numa = topology.numa_of(gpu)
        row.append(f"  {numa if numa >= 0 else '-':>4}", "default")
        row.append("  held" if gpu in held else "  free", "default" if gpu in held else "green")
        rows.append(row)
    return rows
