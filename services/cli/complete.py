"""`weft completion`: the completion of a shell: verbs, options, their values, and the names of jobs and nodes.

bash: source <(weft completion bash); zsh: source <(weft completion zsh); fish: weft completion fish | source. Put the
line into the file that your shell reads when it begins.
"""

import argparse
import asyncio
import os

from libs.client import Client, ClientError
from services.cli import connection
from services.cli.complaint import Complaint
from services.cli.completion.scripts import SCRIPTS
from services.cli.completion.verbs import JOBS, NODES, verbs
from services.cli.words import clean

_NAMES_SECONDS_MAX = 0.7  # with the start of the interpreter a person waits a second at most
_NAMES_MAX = 200


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("completion", help="the completion of a shell", description=__doc__)
    parser.add_argument("shell", nargs="?", choices=sorted(SCRIPTS), metavar="SHELL", help=", ".join(sorted(SCRIPTS)))
    parser.add_argument("--names", choices=(JOBS, NODES), metavar="WHAT", help="of the cluster: jobs, or nodes")
    connection.options(parser)
    parser.set_defaults(func=completion)


async def completion(args: argparse.Namespace) -> int:
    if args.names is not None:
        return await _names(args)
    if args.shell is None:
        raise Complaint(f"say which shell: {', '.join(sorted(SCRIPTS))}", status=2)
    print(SCRIPTS[args.shell](verbs()), end="")
    return 0


async def _names(args: argparse.Namespace) -> int:
    """The names on stdout, one a line; none, and status 1, where no cluster answers in time."""
    try:
        place = connection.find_place(args, os.environ)
        async with (
            asyncio.timeout(_NAMES_SECONDS_MAX),
            Client(place.url, place.token, retry_seconds=0.0, first_seconds=0.0, ca_file=place.ca_file) as client,
        ):
            found = await _found(client, args.names)
    except (Complaint, ClientError, TimeoutError):
        return 1
    for name in found:
        print(clean(name))
    return 0


async def _found(client: Client, what: str) -> list[str]:
    """Names of nodes; or of the newest jobs, and their ids."""
    if what == NODES:
        return [node.id for node in (await client.nodes()).nodes][:_NAMES_MAX]
    jobs = (await client.jobs(limit=_NAMES_MAX, benchmarks=False)).jobs
    return [*dict.fromkeys(job.name for job in jobs), *(job.id for job in jobs)]
