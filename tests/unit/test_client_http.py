"""Requests of the client, to servers that answer in each way that HTTP allows, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from weft.client.http import ASKED_FIRST_BYTES, Exchange, Reply, Requests

HEAD = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def answering(*answers: Sequence[bytes]) -> AsyncIterator[Requests]:
    """A server whose connections give these answers, one for each request, and end with the last."""
    connections = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in next(connections):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        requests = Requests(f"http://127.0.0.1:{port}", {"Authorization": "Bearer x"}, lambda: None)
        yield requests
        requests.close()


async def get(requests: Requests) -> Reply:
    return await requests.send(Exchange("GET", "/v1/jobs", query={"name": "a b"}), connect_seconds=5)


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
        b"\r\nhello",
    ],
)
async def test_a_body_is_read_to_its_end(rest: bytes) -> None:
    async with answering([HEAD + rest]) as requests:
        assert (await get(requests)).body == b"hello"


async def test_an_interim_answer_is_passed_over_and_names_of_headers_are_in_lower_case() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 Not Found\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"
    async with answering([answer]) as requests:
        assert await get(requests) == Reply(404, {"retry-after": "3", "content-length": "0"}, b"")


async def test_a_request_whose_kept_connection_was_closed_is_sent_again() -> None:
    empty = HEAD + b"Content-Length: 0\r\n\r\n"
    async with answering([empty, b""], [empty]) as requests:
        assert [(await get(requests)).status, (await get(requests)).status] == [200, 200]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", HEAD + b"Content-Length: 9\r\n\r\nhello", b"SSH-2.0\r\n\r\n"])
async def test_an_answer_that_is_cut_or_no_http_is_an_error_of_the_connection(answer: bytes) -> None:
    async with answering([answer]) as requests:
        with pytest.raises(ConnectionError):
            await get(requests)


async def test_a_header_cannot_smuggle_another() -> None:
    async with answering([]) as requests:
        with pytest.raises(ValueError, match="no header may have"):
            await requests.send(Exchange("GET", "/", headers={"Accept": "x\r\nHost: y"}), connect_seconds=5)


async def test_a_large_body_is_sent_once_the_server_has_agreed_to_take_it() -> None:
    large = bytes(ASKED_FIRST_BYTES + 1)
    answer = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n"
    async with answering([answer]) as requests:  # it reads the head alone, and agrees to nothing
        refused = await requests.send(Exchange("PUT", "/v1/contexts/x", body=large), connect_seconds=5)
    assert refused.status == 413

    async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Expect: 100-continue\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        taken = await reader.readexactly(len(large))
        writer.write(HEAD + b"Content-Length: 5\r\n\r\n%05d" % len(taken))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(agree, "127.0.0.1", 0) as server:
        requests = Requests(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, lambda: None)
        reply = await requests.send(Exchange("PUT", "/", body=large), connect_seconds=5)
        requests.close()
    assert reply == Reply(200, {"content-length": "5"}, b"65537")


async def test_a_request_that_is_sent_once_takes_no_connection_that_may_be_closed() -> None:
    empty = HEAD + b"Content-Length: 0\r\n\r\n"
    async with answering([empty, b""], [empty]) as requests:
        await get(requests)
        once = Exchange("POST", "/v1/jobs/j-1/cancel", once=True)
        assert (await requests.send(once, connect_seconds=5)).status == 200
        assert once.is_sent


async def test_a_request_is_not_sent_where_nobody_listens() -> None:
    async with answering() as requests:
        pass
    once = Exchange("POST", "/v1/jobs", once=True)
    with pytest.raises(ConnectionRefusedError):
        await requests.send(once, connect_seconds=5)
    assert not once.is_sent


async def test_a_stream_ends_as_its_connection_does_and_is_cut_after_a_silence() -> None:
    async with answering([HEAD + b"X-Weft-Epoch: 3\r\nContent-Length: 9\r\n\r\nhello"]) as requests:
        stream = requests.stream(Exchange("GET", "/logs"), connect_seconds=5, silence_seconds=5)
        async with stream as response:
            assert (response.status, response.length, response.headers["x-weft-epoch"]) == (200, 9, "3")
            pieces = response.pieces()
            assert await anext(pieces) == b"hello"
            with pytest.raises(ConnectionResetError):
                await anext(pieces)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        requests = Requests(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {}, lambda: None)
        with pytest.raises(TimeoutError):
            async with requests.stream(Exchange("GET", "/logs"), connect_seconds=5, silence_seconds=0.01):
                pass
