"""GET requests of the client, to servers that answer in each way that HTTP allows, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from weft.client.http_get import Gets, Reply

HEAD = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def answering(*answers: Sequence[bytes]) -> AsyncIterator[Gets]:
    """A server whose connections give these answers, one for each request, and end with the last."""
    connections = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in next(connections):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        gets = Gets(f"http://127.0.0.1:{port}", {"Authorization": "Bearer x"}, lambda: None)
        yield gets
        gets.close()


async def get(gets: Gets) -> Reply:
    return await gets.get("/v1/jobs", {"name": "a b"}, {}, connect_seconds=5)


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
        b"\r\nhello",
    ],
)
async def test_a_body_is_read_to_its_end(rest: bytes) -> None:
    async with answering([HEAD + rest]) as gets:
        assert (await get(gets)).body == b"hello"


async def test_an_interim_answer_is_passed_over_and_names_of_headers_are_in_lower_case() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 Not Found\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"
    async with answering([answer]) as gets:
        assert await get(gets) == Reply(404, {"retry-after": "3", "content-length": "0"}, b"")


async def test_a_request_whose_kept_connection_was_closed_is_sent_again() -> None:
    empty = HEAD + b"Content-Length: 0\r\n\r\n"
    async with answering([empty, b""], [empty]) as gets:
        assert [(await get(gets)).status, (await get(gets)).status] == [200, 200]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", HEAD + b"Content-Length: 9\r\n\r\nhello", b"SSH-2.0\r\n\r\n"])
async def test_an_answer_that_is_cut_or_no_http_is_an_error_of_the_connection(answer: bytes) -> None:
    async with answering([answer]) as gets:
        with pytest.raises(ConnectionError):
            await get(gets)


async def test_a_header_cannot_smuggle_another() -> None:
    async with answering([]) as gets:
        with pytest.raises(ValueError, match="no header may have"):
            await gets.get("/", {}, {"Accept": "x\r\nHost: y"}, connect_seconds=5)
