"""`weft ssh-proxy`: the ProxyCommand by which an SSH client reaches a running job.

It speaks SSH with the client on stdin and stdout, so no SSH server runs in the job, on its node or at the gateway, and
no key leaves this machine.
"""

import argparse
import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncssh

from weft.client import Client
from weft.domain.job import JobState
from weftd.cli import connection
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.sessions.shell import opened
from weftd.cli.sessions.ssh_keys import SUFFIX, read_keys
from weftd.cli.sessions.ssh_server import Target, serve

READ_BYTES = 256 << 10
LIVE = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
_HOST = re.compile(
    r"(?:(?P<rank>[0-9]{1,5})\.)?(?:(?P<role>[a-z0-9][a-z0-9-]{0,62})\.)?(?P<job>[a-z0-9][a-z0-9_-]{0,127})"
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "ssh-proxy",
        help="serve as the ProxyCommand of `weft ssh-config`",
        description="Speak SSH with the client on stdin and stdout, and open its channels as sessions of a job. The"
        " configuration that `weft ssh-config` writes starts it.",
        epilog="ssh -o ProxyCommand='weft ssh-proxy %h' train.weft",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "host", type=host, metavar="HOST", help=f"JOB{SUFFIX}, RANK.JOB{SUFFIX} or RANK.ROLE.JOB{SUFFIX}"
    )
    parser.add_argument("--keys", type=Path, required=True, metavar="FOLDER", help="folder with the keys")
    connection.options(parser)
    parser.set_defaults(func=proxy)


def host(text: str) -> Target:
    """The run that a host name means; its job is what the user typed."""
    named = text.lower()
    found = _HOST.fullmatch(named.removesuffix(SUFFIX))
    if found is None or int(found["rank"] or 0) > 65535:
        raise argparse.ArgumentTypeError(f"expected JOB{SUFFIX} or RANK.JOB{SUFFIX}, not {clean(text[:80])!r}")
    return Target(job=found["job"], rank=int(found["rank"] or 0), role=found["role"] or "", host=named)


async def proxy(args: argparse.Namespace) -> int:
    keys = read_keys(args.keys)
    args.job = args.host.job
    async with opened(args) as (client, job):
        target = await _live(client, job, args.host)
        async with _ssh_client() as sock:
            with suppress(OSError, asyncssh.Error):  # the client has gone, or has reported it
                await serve(client, target, keys, sock)
    return 0


async def _live(client: Client, job: str, wanted: Target) -> Target:
    """The target with the job's id. Raises CliError if the job does not run."""
    found = await client.job(job)
    if found.state not in LIVE:
        raise CliError(f"{clean(found.name)} does not run: it is {found.state}")
    return Target(job=found.id, rank=wanted.rank, role=wanted.role, host=wanted.host)


@asynccontextmanager
async def _ssh_client() -> AsyncIterator[socket.socket]:
    """A socket whose other end is this process's stdin and stdout, until the client closes them or hangs up."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    incoming = asyncio.StreamReader(limit=READ_BYTES)
    given, taken = (os.fdopen(os.dup(file.fileno()), mode) for file, mode in ((sys.stdin, "rb"), (sys.stdout, "wb")))
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(incoming), given)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, taken)
    outgoing = asyncio.StreamWriter(transport, protocol, None, loop)
    for name in ("SIGHUP", "SIGTERM"):  # ssh sends the first when it ends
        loop.add_signal_handler(getattr(signal, name), writer.close)
    copies = [asyncio.create_task(_copied(*way)) for way in ((incoming, writer), (reader, outgoing))]
    try:
        yield theirs
        await asyncio.wait(copies[1:], timeout=1.0)  # the last words of the server
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        writer.close()
        transport.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
