"""Server-sent events: lines in, the data of each event out."""

from collections.abc import AsyncIterable, AsyncIterator


async def data_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The data of each event that arrived whole; one that was cut off is dropped."""
    rest = b""
    lines: list[bytes] = []
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if not line and lines:
                yield b"\n".join(lines)
                lines = []
            elif line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
