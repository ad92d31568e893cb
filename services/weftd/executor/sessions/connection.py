"""A connection as the channel of a session."""

import asyncio
from contextlib import suppress


class PortChannel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self, limit: int) -> tuple[int, bytes]:
        try:
            return 1, await self._reader.read(limit)
        except OSError:  # reset: its end, as far as can be seen here
            return 1, b""

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close_input(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        pass

    async def status(self) -> int | None:
        return None

    async def end(self) -> None:
        self._writer.transport.abort()
