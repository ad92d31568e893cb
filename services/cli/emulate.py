"""`weft emulate`: have an emulated GPU of the cluster that `weft up` started here turn slow, or recover."""

import argparse
import os

from libs.gpus.emulated import SLOWDOWN_MAX, SLOWDOWN_MIN, slow_down
from services.cli import connection
from services.cli.complaint import Complaint
from services.cli.local import ClusterHome


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("emulate", help="have an emulated GPU be slow", description=__doc__)
    parser.add_argument("node", metavar="NODE")
    parser.add_argument("gpu", type=int, metavar="GPU", help="by index")
    parser.add_argument(
        "slowdown", type=_slowdown, metavar="SLOWDOWN", help="1.33: what took 1 s takes 1.33 s; 1: as it should be"
    )
    connection.options(parser)
    parser.set_defaults(func=emulate)


async def emulate(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        nodes = {node.id: node for node in (await client.nodes()).nodes}
    node = nodes.get(args.node)
    if node is None:
        raise Complaint(connection.no_node(args.node, list(nodes)))
    gpu = next((gpu for gpu in node.gpus if gpu.index == args.gpu), None)
    if gpu is None:
        raise Complaint(f"{args.node} has no GPU {args.gpu}")
    if not gpu.emulated:
        raise Complaint(f"GPU {args.gpu} of {args.node} is real, and as fast as it is")
    home = ClusterHome(connection.weft_home(os.environ))
    folder = home.node(args.node) / "emulated"
    if not folder.is_dir():
        there = f"`echo {args.slowdown:g} > EXECUTOR_HOME/emulated/{args.gpu}` there does the same"
        raise Complaint(f"{args.node} does not run from {home.root} on this machine; {there}")
    try:
        slow_down(folder, args.gpu, args.slowdown)
    except OSError as error:
        raise Complaint(f"cannot write {folder / str(args.gpu)}: {error.strerror}") from error
    print(f"emulated GPU {args.gpu} of {args.node} has a slowdown of {args.slowdown:g} from now on")
    return 0


def _slowdown(text: str) -> float:
    try:
        slowdown = float(text)
    except ValueError:
        slowdown = 0.0
    if not SLOWDOWN_MIN <= slowdown <= SLOWDOWN_MAX:
        raise argparse.ArgumentTypeError(f"expected {SLOWDOWN_MIN:g} to {SLOWDOWN_MAX:g}, got {text}")
    return slowdown
