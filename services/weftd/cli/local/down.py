"""`weft down`: end the cluster that `weft up` runs on this machine.

Its jobs get their grace, and go on from their checkpoint at the next `weft up`. The data stay.
"""

import argparse
import asyncio
import os
import signal
from pathlib import Path

from weft.client.place import weft_home
from weftd.cli.cli_error import CliError
from weftd.cli.local import ClusterHome
from weftd.cli.local.up import say

STOP_SECONDS_MAX = 150.0  # longer than jobs with the longest grace, the services and the servers take together
LOOK_SECONDS = 0.05


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("down", help="stop the cluster of this machine; keep its data", description=__doc__)
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="folder of its data (or WEFT_HOME; default: in your home)"
    )
    parser.add_argument("--kill", action="store_true", help="kill jobs and services without a grace")
    parser.set_defaults(func=down)


async def down(args: argparse.Namespace) -> int:
    home = ClusterHome(args.home or weft_home(os.environ))
    if (pid := home.runs()) is None:
        say(f"weft: no cluster runs in {home.root}")
        return 0
    _ask(pid, signal.SIGTERM)
    if args.kill:
        _ask(pid, signal.SIGINT)  # a second signal means haste; two of one kind could arrive as one
    else:
        say("stopping: jobs get their grace and go on from their checkpoint at the next `weft up`")
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            while home.runs() == pid:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise CliError(
            f"the cluster of {home.root} (pid {pid}) has not stopped within {STOP_SECONDS_MAX:g} s;"
            " `weft down --kill` gives it no grace"
        ) from None
    say(f"stopped; nothing is left running, the data stay in {home.root}")
    return 0


def _ask(pid: int, by: signal.Signals) -> None:
    try:
        os.kill(pid, by)
    except ProcessLookupError:
        return
    except PermissionError:
        raise CliError(f"pid {pid}, which runs the cluster, belongs to another user") from None
