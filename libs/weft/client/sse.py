"""Server-sent events: lines in, the name and the data of each event out."""

from collections.abc import AsyncIterable, AsyncIterator


async def data_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The data of each event that arrived whole; one that was cut off is dropped."""
    async for _, data in events_of(chunks):
        yield data


async def events_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[tuple[bytes, bytes]]:
    """The name (empty: none was given) and the data of each event that arrived whole."""
    rest: list[bytes] = []  # the chunks so far of a line that is not complete: a large event arrives in many
    lines: list[bytes] = []
    name = b""
    async for chunk in chunks:
        first, *more = chunk.split(b"\n")
        rest.append(first)
        if not more:
            continue
        whole = [b"".join(rest), *more[:-1]]
        rest = [more[-1]]
        for line in whole:
            if not line:
                if lines:
                    yield name, b"\n".join(lines)
                lines, name = [], b""
            elif line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                name = line[6:].strip()
