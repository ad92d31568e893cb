"""`weft nodes`: the nodes, their GPUs and the jobs on them."""

import argparse

from rich.console import Group, RenderableType
from rich.text import Text

from weft.messages.http import NodesView, NodeView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import natural
from weftd.cli.rendering.context import RenderContext, plain
from weftd.cli.rendering.nodes import full_disks, gpus_table, nodes_table, not_enforced, volumes_offered
from weftd.cli.rendering.topology import flat_nodes, topologies

_FEW = 8  # nodes of which each GPU is shown unasked


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "nodes", help="list nodes, their GPUs and the jobs that hold them", description=__doc__
    )
    parser.add_argument("node", nargs="*", metavar="NODE", help="show only these nodes")
    parser.add_argument("--gpus", action="store_true", help=f"list each GPU too (default: only up to {_FEW} nodes)")
    parser.add_argument("--topology", action="store_true", help="show the links between the GPUs of each node")
    connection.options(parser)
    parser.set_defaults(func=nodes)


async def nodes(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        view = await client.nodes()
    wanted = _wanted(view.nodes, args.node)
    none = "" if wanted else "no nodes yet: one joins by starting its executor and telemetry"
    gpus = args.gpus or len(wanted) <= _FEW

    def shown(context: RenderContext) -> RenderableType:
        return drawn(wanted, context, gpus=gpus, links=args.topology)

    page.drawn(args, NodesView(nodes=wanted), shown, none)
    return 0


def drawn(nodes: tuple[NodeView, ...], context: RenderContext, *, gpus: bool, links: bool = False) -> RenderableType:
    nodes = tuple(sorted(nodes, key=lambda node: natural(node.id)))
    parts: list[RenderableType] = [nodes_table(nodes, context)]
    if gpus and any(node.gpus for node in nodes):
        parts += [Text(), gpus_table(nodes, context)]
    if links:
        parts += topologies(nodes)
    parts += [plain(line, "bold red") for line in full_disks(nodes)]
    if lines := [*volumes_offered(nodes), *not_enforced(nodes), *flat_nodes(nodes)]:
        parts += [Text(), *(Text(line, "dim") for line in lines)]
    return Group(*parts)


def _wanted(nodes: tuple[NodeView, ...], names: list[str]) -> tuple[NodeView, ...]:
    unknown = set(names) - {node.id for node in nodes}
    if unknown:
        raise CliError(connection.no_node(min(unknown), [node.id for node in nodes]))
    return tuple(node for node in nodes if not names or node.id in names)
