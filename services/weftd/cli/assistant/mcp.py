"""`weft mcp`: an MCP server on stdin and stdout, with which an assistant sees the cluster as your token does.

It reads only, unless --write is given: then it also submits, cancels and requeues jobs and changes priorities. For an
assistant that takes a list of servers: {"weft": {"command": "weft", "args": ["mcp"]}}. With --skill it prints a page
for an assistant that types commands instead: save it where that assistant looks for skills.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from weftd.cli import connection, page
from weftd.cli.assistant.protocol import LINE_BYTES_MAX, AssistantServer
from weftd.cli.assistant.tools import TOOLS

SKILL = Path(__file__).with_name("SKILL.md")
_PIECE = 1 << 16


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("mcp", help="an MCP server on stdin and stdout", description=__doc__)
    parser.add_argument("--write", action="store_true", help="offer tools that change something, too")
    parser.add_argument("--skill", action="store_true", help="print SKILL.md, for an assistant that types commands")
    connection.options(parser)
    parser.set_defaults(func=mcp)


async def mcp(args: argparse.Namespace) -> int:
    if args.skill:
        page.write(SKILL.read_bytes())
        return 0
    from weft.version import version  # slow to import

    tools = [tool for tool in TOOLS if args.write or not tool.writes]
    async with connection.connected(args) as client:
        server = AssistantServer(client, tools, version=version())
        async for line in _lines():
            if line.strip() and (answer := await server.answer(line)) is not None:
                page.write(answer + b"\n")
    return 0


async def _lines() -> AsyncIterator[bytes]:
    """The lines of stdin. Of a line that is too long only the beginning is kept, so that it is refused."""
    rest = b""
    async for piece in _pieces():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
        rest = rest[: LINE_BYTES_MAX + 1]
    if rest:
        yield rest


async def _pieces() -> AsyncIterator[bytes]:
    """Lines of stdin, as they arrive."""
    reader = asyncio.StreamReader()
    try:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
        )
    except ValueError:  # a file, which never keeps a reader waiting
        while piece := sys.stdin.buffer.read(_PIECE):
            yield piece
        return
    try:
        while piece := await reader.read(_PIECE):
            yield piece
    finally:
        transport.close()
