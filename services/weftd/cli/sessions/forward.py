"""`weft port-forward`: ports on which a running job listens, at this machine's own address 127.0.0.1."""

import argparse
import asyncio
import errno
from contextlib import AsyncExitStack, aclosing, suppress

from msgspec import Struct

from weft.client import Client, ClientError
from weft.client.sessions import RunSession
from weft.messages.sessions import SessionKind
from weftd.cli import page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.sessions.shell import opened, which_run

HERE = "127.0.0.1"
AT_ONCE = 64
PORTS_MAX = 16
READ_BYTES = 32 << 10


class PortWanted(Struct, frozen=True):
    local: int
    port: int


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "port-forward",
        help="forward ports of a running job to 127.0.0.1",
        description="Forward ports of a running job to 127.0.0.1 of this machine, until Ctrl-C. Only ports on"
        " which the job's own processes listen can be reached.",
        epilog="weft port-forward train 8888\nweft port-forward train 9000:6006 --rank 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which_run(parser)
    parser.add_argument(
        "ports", nargs="+", type=wanted, metavar="[LOCAL:]PORT", help="ports; LOCAL 0: any free port (default: PORT)"
    )
    parser.set_defaults(func=forward)


async def forward(args: argparse.Namespace) -> int:
    if len(args.ports) > PORTS_MAX:
        raise CliError(f"{len(args.ports)} ports; at most {PORTS_MAX}", status=2)
    async with opened(args) as (client, job), AsyncExitStack() as stack:
        found = await client.job(job)
        places = asyncio.Semaphore(AT_ONCE)
        for one in args.ports:
            door = LocalPort(client, found.id, one, places, rank=args.rank, role=args.role)
            try:
                server = await asyncio.start_server(door.serve, HERE, one.local)
            except OSError as error:
                why = "another program here uses it" if error.errno == errno.EADDRINUSE else error.strerror
                raise CliError(f"port {one.local}: {why}; LOCAL:PORT takes another") from error
            await stack.enter_async_context(server)
            at = server.sockets[0].getsockname()[1]
            print(f"{HERE}:{at} is port {one.port} of rank {args.rank} of {clean(found.name)}", flush=True)
        await asyncio.Event().wait()
    return 0


class LocalPort:
    """Takes connections to one port here. `places`: how many there may be at once; others wait."""

    def __init__(
        self, client: Client, job: str, wanted: PortWanted, places: asyncio.Semaphore, *, rank: int, role: str
    ) -> None:
        self._client, self._job, self._wanted, self._places = client, job, wanted, places
        self._rank, self._role = rank, role
        self._said = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._places:
                port = self._wanted.port
                session = self._client.enter(self._job, SessionKind.PORT, rank=self._rank, role=self._role, port=port)
                async with session:
                    self._said = ""
                    await self._carry(session, reader, writer)
        except (ClientError, OSError) as error:
            self._remark(f"port {self._wanted.port}: {clean(str(error))}")
        finally:
            writer.transport.abort()

    async def _carry(self, session: RunSession, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sending = asyncio.create_task(_send(session, reader))
        try:
            async with aclosing(session.output()) as pieces:
                async for _, data in pieces:
                    writer.write(data)
                    await writer.drain()
            with suppress(OSError):
                writer.write_eof()
                await writer.drain()
            if session.reason:
                self._remark(f"port {self._wanted.port}: {clean(session.reason)}")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _remark(self, text: str) -> None:
        """Each reason once in a row: a browser asks again and again."""
        if text != self._said:
            self._said = text
            page.remark(f"weft: {text}")


async def _send(session: RunSession, reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while piece := await reader.read(READ_BYTES):
            await session.write(piece)
    await session.close_input()


def wanted(text: str) -> PortWanted:
    local, colon, port = text.rpartition(":")
    numbers = [
        int(part) if part.isascii() and part.isdigit() and len(part) < 6 else -1 for part in (local or port, port)
    ]
    if not 0 <= numbers[0] <= 65535 or not 1 <= numbers[1] <= 65535 or (colon and not local):
        raise argparse.ArgumentTypeError(f"expected PORT or LOCAL:PORT such as 9000:8888, not {clean(text[:40])!r}")
    return PortWanted(*numbers)
