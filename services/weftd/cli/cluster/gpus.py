"""`weft gpus`: every GPU, its use, its job, and how fast it is for each class of jobs.

A score is a time: 1.00 is the typical GPU of the pool, 1.21 takes a fifth longer. The scores shown are those that
placement uses: the bound of each measured score that is certain.
"""

import argparse

from weft.messages.http import GpusView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import natural
from weftd.cli.rendering.gpus import table_of_gpus


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("gpus", help="list GPUs with their holders and speeds", description=__doc__)
    parser.add_argument("node", nargs="*", metavar="NODE", help="show only GPUs of these nodes")
    connection.options(parser)
    parser.set_defaults(func=gpus)


async def gpus(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        view = await client.gpus(node=args.node[0] if len(args.node) == 1 else "")
    found = tuple(gpu for gpu in view.gpus if not args.node or gpu.node_id in args.node)
    if missing := sorted(set(args.node) - {gpu.node_id for gpu in found}):
        raise CliError(f"there is no node {', '.join(missing)} with GPUs")
    none = "" if found else "no GPUs yet: a node joins by starting its executor and telemetry"
    in_order = sorted(found, key=lambda gpu: (natural(gpu.node_id), gpu.index))
    page.drawn(args, GpusView(gpus=found), lambda look: table_of_gpus(in_order, look), none)
    return 0
