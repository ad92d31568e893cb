"""`weft emulate`: have an emulated GPU of the cluster that `weft up` started here turn slow, or recover."""

import argparse
import os

from weft.client.place import weft_home
from weft.emulation.slowdowns import SLOWDOWN_MAX, SLOWDOWN_MIN, slow_down
from weftd.cli import connection
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import natural
from weftd.cli.local import ClusterHome

_NODES_SHOWN = 8


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("emulate", help="have an emulated GPU be slow", description=__doc__)
    parser.add_argument("node", metavar="NODE")
    parser.add_argument("gpu", type=int, metavar="GPU", help="index of the GPU")
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
        raise CliError(connection.no_node(args.node, list(nodes)))
    gpu = next((gpu for gpu in node.gpus if gpu.index == args.gpu), None)
    if gpu is None:
        raise CliError(f"{args.node} has no GPU {args.gpu}")
    if not gpu.emulated:
        raise CliError(f"GPU {args.gpu} of {args.node} is real, and as fast as it is")
    home = ClusterHome(weft_home(os.environ))
    folder = home.node(args.node) / "emulated"
    if not folder.is_dir():
        raise CliError(_no_folder(home, args))
    try:
        slow_down(folder, args.gpu, args.slowdown)
    except OSError as error:
        raise CliError(f"cannot write {folder / str(args.gpu)}: {error.strerror}") from error
    print(f"emulated GPU {args.gpu} of {args.node} has a slowdown of {args.slowdown:g} from now on")
    return 0


def _no_folder(home: ClusterHome, args: argparse.Namespace) -> str:
    """The sentence for a node whose files are not in the home of this shell."""
    if not home.nodes.is_dir():
        return (
            f"there is no cluster in {home.root}: set WEFT_HOME to the home of the `weft up` that runs {args.node}, on"
            " the machine where it runs"
        )
    known = ", ".join(sorted((folder.name for folder in home.nodes.iterdir()), key=natural)[:_NODES_SHOWN]) or "none"
    return (
        f"{args.node} is no node of the cluster in {home.root}, which has {known}: set WEFT_HOME to the home of its own"
        f" `weft up`; of a node without one, write {args.slowdown:g} into emulated/{args.gpu} in its EXECUTOR_HOME"
    )


def _slowdown(text: str) -> float:
    try:
        slowdown = float(text)
    except ValueError:
        slowdown = 0.0
    if not SLOWDOWN_MIN <= slowdown <= SLOWDOWN_MAX:
        raise argparse.ArgumentTypeError(f"expected {SLOWDOWN_MIN:g} to {SLOWDOWN_MAX:g}, got {text}")
    return slowdown
