"""`weft shell` and `weft exec`: a terminal, or one command, beside a running job.

It is in the job's container or its folder, with its environment and within its limits.

Exit status: the command's own; 1 if something else ended it.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from weft.client import Client
from weft.client.place import PATIENT_SECONDS
from weft.client.sessions import RunSession
from weft.messages.sessions import SessionKind
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs.act import the_job
from weftd.cli.sessions.console import RawTerminal, piped_input

TERM = "xterm-256color"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    shell_ = commands.add_parser(
        "shell",
        help="open a terminal in a running job",
        description="Open a terminal in a running job: in its container or its folder, with its environment and within"
        " its limits. The job's event history records who used it. Enter, ~ and . end a terminal that hangs.",
        epilog="weft shell train --rank 1\nweft shell train -- top",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    exec_ = commands.add_parser(
        "exec",
        help="run one command in a running job",
        description="Run one command in a running job, without a terminal. It reads the input of `weft exec`, which"
        " exits with its status.",
        epilog="weft exec train -- nvidia-smi\ntar c data | weft exec train -- tar x",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for parser in (shell_, exec_):
        which_run(parser)
        parser.set_defaults(command=[])
    exec_.add_argument("-n", "--no-input", action="store_true", help="give the command no input")
    shell_.set_defaults(func=shell)
    exec_.set_defaults(func=execute)


def which_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="id of the job, or its name if only one open job has it")
    run_options(parser)


def run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rank", type=_rank, default=0, metavar="N", help="rank to use (default: 0)")
    parser.add_argument("--role", default="", help="count ranks within this role")
    connection.options(parser)


async def shell(args: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError("a shell needs a terminal; `weft exec JOB -- COMMAND` needs none", status=2)
    async with opened(args) as (client, job):
        with RawTerminal() as terminal:
            session = client.enter(
                job,
                command=args.command,
                rank=args.rank,
                role=args.role,
                tty=True,
                size=terminal.size(),
                term=os.environ.get("TERM") or TERM,
            )
            async with session:
                typing = asyncio.create_task(terminal.carry(session))
                try:
                    await copy_output(session)
                finally:
                    typing.cancel()
                    await asyncio.gather(typing, return_exceptions=True)
        return outcome(session)


async def execute(args: argparse.Namespace) -> int:
    if not args.command:
        raise CliError("the command is missing: weft exec JOB -- COMMAND", status=2)
    async with opened(args) as (client, job):
        session = client.enter(job, SessionKind.EXEC, command=args.command, rank=args.rank, role=args.role)
        async with session:
            feeding = asyncio.create_task(_feed(session, nothing=args.no_input))
            try:
                await copy_output(session)
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        return outcome(session)


@asynccontextmanager
async def opened(args: argparse.Namespace) -> AsyncIterator[tuple[Client, str]]:
    """A client, and the id of the named job."""
    if args.json:
        raise CliError("a session has no JSON output", field="--json", status=2)
    async with connection.connected(args, patience=PATIENT_SECONDS) as client:
        yield client, await the_job(client, args.job)


async def copy_output(session: RunSession) -> None:
    """The session's output as it comes, each stream to its own, until it has ended."""
    async with aclosing(session.output()) as pieces:
        async for stream, data in pieces:
            await asyncio.to_thread(_write, 2 if stream == 2 else 1, data)


def outcome(session: RunSession) -> int:
    if session.status is not None:
        return session.status
    page.remark(f"weft: the session ended: {clean(session.reason) or 'its node does not say why'}")
    return 1


async def _feed(session: RunSession, *, nothing: bool) -> None:
    if not nothing:
        async with aclosing(piped_input()) as pieces:
            async for piece in pieces:
                await session.write(piece)
    await session.close_input()


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _rank(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535, not {clean(text[:40])!r}")
    return int(text)
