"""`weft emulate`: have an emulated GPU of the cluster that `weft up` started here turn slow or sick, or recover."""

import argparse
import os

from msgspec import structs

from weft.client.place import weft_home
from weft.emulation.faults import Fault, read_fault, write_fault
from weft.emulation.slowdowns import SLOWDOWN_MAX, SLOWDOWN_MIN, slow_down
from weftd.cli import connection
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import natural
from weftd.cli.local import ClusterHome

_NODES_SHOWN = 8
_XID_END = 1000
_FAULTS = {
    "ecc": "show an uncorrectable memory error",
    "throttle": "report a hardware slowdown",
    "off-bus": "fall off the bus: the driver cannot reach it",
    "hang": "make the driver hang",
    "reset": "reset the GPU: every fault but its count of Xids is gone",
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("emulate", help="make an emulated GPU slow or sick", description=__doc__)
    parser.add_argument("node", metavar="NODE")
    parser.add_argument("gpu", type=int, metavar="GPU", help="index of the GPU")
    parser.add_argument(
        "slowdown",
        type=_slowdown,
        nargs="?",
        metavar="SLOWDOWN",
        help="slowdown factor: with 1.33, 1 s of work takes 1.33 s; 1: normal",
    )
    parser.add_argument("--xid", type=int, metavar="N", help="report one more Xid of this number, such as 79")
    parser.add_argument("--use", type=_part, metavar="PART", help="reported utilisation, such as 0.9")
    for name, help_text in _FAULTS.items():
        parser.add_argument(f"--{name}", action="store_true", help=help_text)
    connection.options(parser)
    parser.set_defaults(func=emulate)


async def emulate(args: argparse.Namespace) -> int:
    told = args.xid is not None or args.use is not None
    faults = told or any(getattr(args, name.replace("-", "_")) for name in _FAULTS)
    if faults == (args.slowdown is not None):
        raise CliError(
            "give a SLOWDOWN, or one of --xid, --ecc, --throttle, --off-bus, --hang, --use, --reset", status=2
        )
    if args.xid is not None and not 0 < args.xid < _XID_END:
        raise CliError(f"--xid must be 1 to {_XID_END - 1}, got {args.xid}", status=2)
    async with connection.connected(args) as client:
        nodes = {node.id: node for node in (await client.nodes()).nodes}
    node = nodes.get(args.node)
    if node is None:
        raise CliError(connection.no_node(args.node, list(nodes)))
    gpu = next((gpu for gpu in node.gpus if gpu.index == args.gpu), None)
    if gpu is None:
        raise CliError(f"{args.node} has no GPU {args.gpu}")
    if not gpu.emulated:
        raise CliError(f"GPU {args.gpu} of {args.node} is real: only emulated GPUs can be slowed down")
    home = ClusterHome(weft_home(os.environ))
    folder = home.node(args.node) / "emulated"
    if not folder.is_dir():
        raise CliError(_no_folder(home, args))
    try:
        if args.slowdown is not None:
            slow_down(folder, args.gpu, args.slowdown)
        else:
            write_fault(folder, args.gpu, _fault(args, read_fault(folder, args.gpu)))
    except OSError as error:
        raise CliError(f"cannot write {folder / str(args.gpu)}: {error.strerror}") from error
    has = _shown(args) if args.slowdown is None else f"has a slowdown of {args.slowdown:g}"
    print(f"emulated GPU {args.gpu} of {args.node} {has} from now on")
    return 0


def _fault(args: argparse.Namespace, before: Fault) -> Fault:
    """The fault after these options: each adds to what the GPU has, and a reset ends all of it."""
    if args.reset:
        return Fault(xids=before.xids, resets=before.resets + 1, use=before.use)
    xids = dict(before.xids)
    if args.xid is not None:
        number = str(args.xid)
        xids[number] = xids.pop(number, 0) + 1
    return structs.replace(
        before,
        xids=xids,
        ecc=before.ecc + args.ecc,
        throttle=before.throttle or args.throttle,
        off_bus=before.off_bus or args.off_bus,
        hang=before.hang or args.hang,
        use=before.use if args.use is None else args.use,
    )


def _shown(args: argparse.Namespace) -> str:
    """The options as words, such as `shows --xid 79, --ecc`."""
    if args.reset:
        return "was reset, and shows no fault"
    named = [f"--{name}" for name in _FAULTS if getattr(args, name.replace("-", "_"))]
    named += [f"a use of {args.use:.0%}"] if args.use is not None else []
    return f"shows {', '.join([f'Xid {args.xid}'] * (args.xid is not None) + named)}"


def _no_folder(home: ClusterHome, args: argparse.Namespace) -> str:
    """The sentence for a node whose files are not in the home of this shell."""
    if not home.nodes.is_dir():
        return (
            f"there is no cluster in {home.root}: set WEFT_HOME to the home of the `weft up` that runs {args.node}, on"
            " the machine where it runs"
        )
    written = f"the fault into emulated/{args.gpu}.fault"
    if args.slowdown is not None:
        written = f"{args.slowdown:g} into emulated/{args.gpu}"
    known = ", ".join(sorted((folder.name for folder in home.nodes.iterdir()), key=natural)[:_NODES_SHOWN]) or "none"
    return (
        f"{args.node} is no node of the cluster in {home.root}, which has {known}: set WEFT_HOME to the home of its own"
        f" `weft up`; for a node without one, write {written} in its EXECUTOR_HOME"
    )


def _part(text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0.0 <= part <= 1.0:
        raise argparse.ArgumentTypeError(f"expected 0 to 1, got {text}")
    return part


def _slowdown(text: str) -> float:
    try:
        slowdown = float(text)
    except ValueError:
        slowdown = 0.0
    if not SLOWDOWN_MIN <= slowdown <= SLOWDOWN_MAX:
        raise argparse.ArgumentTypeError(f"expected {SLOWDOWN_MIN:g} to {SLOWDOWN_MAX:g}, got {text}")
    return slowdown
