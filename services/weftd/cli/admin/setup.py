"""`weft setup`: make the secrets of a cluster once; later runs add what is missing and keep the rest."""

import argparse
import asyncio
import os
from pathlib import Path

from weft.credentials import CredentialsError, provision
from weftd.cli.cli_error import CliError
from weftd.cli.systems import systems


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("setup", help="make the secrets of a cluster that runs in containers or on many hosts")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="folder for the secrets")
    parser.add_argument(
        "--nodes", type=_names, default=[], metavar="A,B", help="nodes that get credentials; earlier credentials stay"
    )
    parser.add_argument(
        "--nats-servers",
        type=_names,
        default=[],
        metavar="A,B,C",
        help="the hosts of the servers of one NATS cluster, each as HOST or HOST:PORT of its routes (docs/failover.md)",
    )
    parser.add_argument(
        "--mode", type=_mode, default=0o600, help="octal mode of each file; 644 if other users read them (default: 600)"
    )
    parser.set_defaults(func=setup)


async def setup(args: argparse.Namespace) -> int:
    try:
        credentials = await asyncio.to_thread(
            provision, args.into, nodes=args.nodes, nats_servers=args.nats_servers, mode=args.mode
        )
    except (ValueError, OSError, CredentialsError) as error:
        raise CliError(str(error)) from error
    nodes = ", ".join(credentials.nodes()) or "none yet"
    here = dict.fromkeys(("scorer", "reallocator"), os.environ)
    print(f"the secrets of this cluster are in {credentials.folder} (nodes: {nodes})")
    print(f"automatic systems, by the settings here: {systems(here)}")
    return 0


def _names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip())]


def _mode(text: str) -> int:
    mode = int(text, 8)
    if mode & ~0o666 or mode & 0o600 != 0o600:
        raise argparse.ArgumentTypeError(f"{text}: the mode must let the owner read and write, and nobody execute")
    return mode
