"""`weft completion`: the completion of a shell: verbs, options, their values, and the names of jobs and nodes.

bash: eval "$(weft completion bash)"; zsh: eval "$(weft completion zsh)"; fish: weft completion fish | source. Put the
line into the file that your shell reads at its start.
"""

import argparse
import asyncio
import os
from contextlib import suppress

from weft.client import Client, ClientError
from weftd.cli import connection
from weftd.cli.cli_error import CliError
from weftd.cli.commands import COMMANDS, load
from weftd.cli.formatting import clean
from weftd.cli.parsing import Parser

JOBS, NODES = "jobs", "nodes"
SHELLS = ("bash", "fish", "zsh")
_NAMED = {"JOB": JOBS, "NAME": JOBS, "NODE": NODES}  # by the metavar of an argument
_FILES = frozenset({"FILE", "DIR", "TRACE", "IN", "OUT"})
_NAMES_SECONDS_MAX = 0.7  # with the start of the interpreter a person waits a second at most
_NAMES_MAX = 200


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("completion", help="the completion of a shell", description=__doc__)
    parser.add_argument("shell", nargs="?", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.add_argument(
        "--names", choices=(JOBS, NODES), metavar="WHAT", help="names to print: jobs, or nodes of the cluster"
    )
    connection.options(parser)
    parser.set_defaults(func=completion)


async def completion(args: argparse.Namespace) -> int:
    if args.names is not None:
        return await _names(args)
    if args.shell is None:
        raise CliError(f"say which shell: {', '.join(SHELLS)}", status=2)
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """The completion script of one of SHELLS, made from the parsers of all commands. The script calls `weft completion
    --names` for the names of jobs and nodes."""
    import shtab  # a press of the Tab key asks for names alone

    parser = Parser(prog="weft")
    commands = parser.add_subparsers(parser_class=Parser)
    names = {command.module: name for name, command in COMMANDS.items()}
    for name in names.values():
        with suppress(CliError):  # this installation cannot run it
            load(name).add(commands)
    _complete_values(parser)
    text: str = shtab.complete(parser, shell)
    return text


def _complete_values(parser: argparse.ArgumentParser) -> None:
    """Mark the arguments whose values are names of the cluster, or files."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_values(command)
        elif action.choices is None and (named := _NAMED.get(str(action.metavar))):
            action.complete = shtab.cmd(f"weft completion --names {named} 2>/dev/null")  # type: ignore[attr-defined]
        elif action.choices is None and action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]


async def _names(args: argparse.Namespace) -> int:
    """The names on stdout, one a line; none, and status 1, where no cluster answers in time."""
    try:
        place = connection.find_place(args, os.environ)
        async with (
            asyncio.timeout(_NAMES_SECONDS_MAX),
            Client(place.url, place.token, retry_seconds=0.0, first_seconds=0.0, ca_file=place.ca_file) as client,
        ):
            found = await _found(client, args.names)
    except (CliError, ClientError, TimeoutError):
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
