"""`weft update`: another image, command or environment for the replicas of a service, which goes on serving.

Each replica is replaced once a new one is ready. If no new one becomes ready, the previous revision comes back.
"""

import argparse
import os

from weft.client import Refused
from weftd.cli import connection, page
from weftd.cli.attachments import env_of
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.act import the_job

_OPTIONS = {"image": "--image", "env": "--env", "command": "the command after --"}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "update",
        help="update a service, replica by replica",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="weft update JOB [--image I] [--env K=V] [-- command ...]",
    )
    parser.add_argument("job", metavar="JOB", help="id of the service, or its name if only one open job has it")
    parser.add_argument("--image", metavar="I", help="new container image")
    parser.add_argument(
        *("-e", "--env"),
        action="append",
        default=[],
        metavar="K=V",
        help="set variable K; K= removes it, K alone takes its value from this shell; repeatable",
    )
    connection.options(parser)
    parser.set_defaults(func=update, command=[])


async def update(args: argparse.Namespace) -> int:
    if args.image is None and not args.env and not args.command:
        raise CliError("no change is given: use --image, --env or a command after --", status=2)
    env = dict(env_of(pair, os.environ) for pair in args.env)
    async with connection.connected(args) as client:
        job = await the_job(client, args.job)
        try:
            accepted = await client.update(job, image=args.image, command=args.command or None, env=env or None)
        except Refused as error:
            raise CliError(error.reason, field=_option(error.field)) from error
    page.answered(args, accepted, f"{accepted.id} will be updated replica by replica (it is {accepted.state})")
    page.note(f"`weft explain {accepted.id}` shows its progress")
    return 0


def _option(field: str) -> str:
    name = field.partition(".")[0].partition("[")[0]
    return _OPTIONS.get(name, "")
