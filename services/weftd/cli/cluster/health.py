"""`weft health`: list sick GPUs and nodes, with cause and remedy. `weft gpu return`: use one again."""

import argparse

from rich.table import Table
from rich.text import Text

from weft.domain.health import HealthRecord
from weft.messages.http import NodesView, NodeView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import ago, natural
from weftd.cli.rendering.context import RenderContext, plain, table
from weftd.cli.rendering.nodes import health_style


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("health", help="list sick GPUs and nodes, with cause and remedy", description=__doc__)
    parser.add_argument("node", nargs="*", metavar="NODE", help="show only these nodes")
    parser.add_argument("-a", "--all", action="store_true", help="include GPUs and nodes that are healthy again")
    connection.options(parser)
    parser.set_defaults(func=health)
    gpu = commands.add_parser("gpu", help="use a sick GPU again", description="Act on one GPU.")
    acts = gpu.add_subparsers(dest="act", required=True, metavar="ACT")
    parser = acts.add_parser("return", help="use a sick GPU or node again, on probation")
    parser.add_argument("node", metavar="NODE")
    parser.add_argument(
        "gpu", type=int, nargs="?", metavar="GPU", help="index of the GPU (default: the node and all its GPUs)"
    )
    connection.options(parser)
    parser.set_defaults(func=give_back)


async def health(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        view = await client.nodes()
    if unknown := set(args.node) - {node.id for node in view.nodes}:
        raise CliError(connection.no_node(min(unknown), [node.id for node in view.nodes]))
    wanted = [node for node in view.nodes if not args.node or node.id in args.node]
    nodes = tuple(sorted(wanted, key=lambda node: natural(node.id)))
    found = [(node, each) for node in nodes for each in sick_of(node, and_well=args.all)]
    none = "" if found else "every GPU and node is healthy"
    page.drawn(args, NodesView(nodes=nodes), lambda context: table_of(found, context), none)
    return 0


async def give_back(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        accepted = await client.give_back(args.node, args.gpu)
    what = "is" if args.gpu is None else f"GPU {args.gpu} is"
    page.answered(args, accepted, f"{accepted.id}: {what} on probation from now on, unless it still shows a fault")
    return 0


def sick_of(node: NodeView, *, and_well: bool = False) -> list[HealthRecord]:
    """The states of a node and of its GPUs that are not healthy."""
    found = [node.health, *(gpu.health for gpu in node.gpus)]
    return [each for each in found if each is not None and (and_well or not each.well)]


def table_of(found: list[tuple[NodeView, HealthRecord]], context: RenderContext) -> Table:
    made = table("NODE", "GPU", "STATE", "SINCE", "WHY", "UNTIL", context=context, flexible="WHY")
    for node, each in found:
        made.add_row(
            plain(node.id),
            "-" if each.gpu is None else str(each.gpu),
            state_text(each),
            ago(context.now - each.since),
            plain(each.sentence),
            plain(each.exit),
        )
    return made


def state_text(health: HealthRecord) -> Text:
    due = " (not taken out)" if health.due else ""
    return Text(f"{health.state}{due}", health_style(health))
