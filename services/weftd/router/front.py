"""The front for models: `python -m weftd.router.front`, which the router keeps running, reads the model from a body.

Caddy passes it each request for `/v1/…` whose token is in force. It reads the body until it has found `model` and
the beginning of the prompt, and sends the request on to Caddy with that name and a hash: admission gives it to a
replica of the service that serves the model, the same for prompts that begin alike. From then on it copies both ways,
piece by piece, and tells admission how many tokens an answer had, and when.
"""

import argparse
import asyncio
import logging
import os
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from secrets import token_hex
from urllib.parse import quote

import msgspec

from weft.service.config import load
from weft.service.start import main
from weftd.router.answers import refused_front
from weftd.router.settings import RouterSettings
from weftd.router.thinking.bodies import Body, Head, head_of
from weftd.router.thinking.models import NAME_CHARS_MAX, ModelFinder, no_model
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.usage import AnswerReader

logger = logging.getLogger(__name__)

PIECE_BYTES = 64 << 10
HEAD_BYTES_MAX = 256 << 10  # Caddy refuses larger ones
EMBEDDINGS = b"/v1/embeddings"
LINGER_SECONDS = 5.0  # for the rest of a request that was refused
DROPPED = frozenset(
    {b"connection", b"expect", b"accept-encoding", b"x-weft-tenant"}
)  # an answer that is not compressed can be read


class RefusedError(Exception):
    def __init__(self, refusal: Refused) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class Kept:
    """The bytes of one body that the front keeps in its memory. `of_tenants`: those of all bodies. Each tenant that
    keeps any may keep an equal part of `most`, and a part is left for one that comes: whoever sends large bodies and
    then nothing, or to a service that does not answer, refuses nobody else's."""

    def __init__(self, of_tenants: Counter[str], tenant: str, most: int) -> None:
        self._of_tenants, self._tenant, self._most = of_tenants, tenant, most
        self._bytes = 0

    def take(self, count: int) -> None:
        """Raises RefusedError."""
        tenants = len(self._of_tenants.keys() | {self._tenant})
        if (self._of_tenants[self._tenant] + count) * (tenants + 1) > self._most:
            words = "the router holds too many bytes of bodies of this tenant: send `model` first, or smaller bodies"
            raise RefusedError(Refused(503, words, 1.0))
        self._of_tenants[self._tenant] += count
        self._bytes += count

    def free(self) -> None:
        self._of_tenants[self._tenant] -= self._bytes
        self._bytes = 0
        if not self._of_tenants[self._tenant]:
            del self._of_tenants[self._tenant]


class Front:
    """`inside`: Caddy's socket for requests with a known model; `told`: port of the admission process."""

    def __init__(self, settings: RouterSettings, *, inside: Path, told: int) -> None:
        self._most, self._all_most = settings.model_body_bytes_max, settings.model_bodies_bytes_max
        self._inside = inside
        self._kept = Counter[str]()  # bytes of bodies, by tenant
        self._boot, self._numbers = token_hex(8), count(1)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._told = ("127.0.0.1", told)

    async def serve(self, from_caddy: asyncio.StreamReader, to_caddy: asyncio.StreamWriter) -> None:
        """One request, and its answer."""
        call, began = f"{self._boot}.{next(self._numbers)}", time.monotonic()
        try:
            head = head_of(await from_caddy.readuntil(b"\r\n\r\n"))
            body, tenant = Body(head), head.fields.get(b"x-weft-tenant", b"").decode(errors="replace")
            kept = Kept(self._kept, tenant, self._all_most)
            try:
                finder = await self._found(from_caddy, body, kept)
                await self._passed(call, began, head, body, finder, kept, from_caddy, to_caddy)
            except RefusedError as error:
                await _refuse(error.refusal, from_caddy, to_caddy)
            finally:
                kept.free()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # one side has left; or the bytes are no HTTP, which Caddy never sends
        finally:
            to_caddy.close()

    async def _found(self, reader: asyncio.StreamReader, body: Body, kept: Kept) -> ModelFinder:
        """The body, read until its model was found. Raises RefusedError."""
        finder = ModelFinder()
        while not body.over and not finder.over:
            if finder.model is None and len(finder.read) > self._most:
                words = f"`model` is not within the first {self._most} bytes of the body: put it first"
                raise RefusedError(Refused(413, words, param="model"))
            piece = body.feed(await _read(reader))
            kept.take(len(piece))
            finder.feed(piece)
            await asyncio.sleep(0)
        finder.end()
        if finder.wrong:
            raise RefusedError(Refused(400, finder.wrong, param="model"))
        assert finder.model is not None, "it was found, or something is wrong"
        if len(finder.model) > NAME_CHARS_MAX:
            raise RefusedError(no_model(finder.model))
        return finder

    async def _passed(
        self,
        call: str,
        began: float,
        head: Head,
        body: Body,
        finder: ModelFinder,
        kept: Kept,
        from_caddy: asyncio.StreamReader,
        to_caddy: asyncio.StreamWriter,
    ) -> None:
        assert finder.model is not None, "only what names a model is passed on"
        path = head.lines[0].partition(b" ")[2]
        prompt = "" if path.startswith(EMBEDDINGS) else finder.prompt  # an embedding begins nothing that goes on
        more = {"X-Weft-Call": call, "X-Weft-Model": quote(finder.model), "X-Weft-Prompt": prompt}
        more["Connection"] = "close"
        inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inside.setblocking(False)
            await asyncio.get_running_loop().sock_connect(inside, str(self._inside))
            begin = [head.told(without=DROPPED, more=more), body.framed(bytes(finder.read))]
            finder.read.clear()
            reader = AnswerReader(path)
            sends = asyncio.create_task(_sent(begin, kept, from_caddy, body, inside))
            answers = asyncio.create_task(_answered(inside, to_caddy, reader, began))
            try:
                await asyncio.wait((sends, answers), return_when=asyncio.FIRST_COMPLETED)
                if not answers.done() and not sends.result():
                    self._tell(left=call)
                else:
                    await answers
            finally:
                whole = answers.done() and not answers.cancelled() and answers.exception() is None
                self._tell(call=call, read=reader.told(time.monotonic() - began, whole=whole, asked=body.length))
                for task in (sends, answers):
                    task.cancel()
                await asyncio.gather(sends, answers, return_exceptions=True)
        finally:
            inside.close()

    def close(self) -> None:
        self._socket.close()

    def _tell(self, **fields: object) -> None:
        with suppress(OSError):  # a lost count does no harm
            self._socket.sendto(msgspec.json.encode(fields), self._told)


async def _read(reader: asyncio.StreamReader) -> bytes:
    piece = await reader.read(PIECE_BYTES)
    if not piece:
        raise ConnectionResetError("the client has left")
    return piece


async def _sent(
    begin: list[bytes], kept: Kept, reader: asyncio.StreamReader, body: Body, inside: socket.socket
) -> bool:
    """Send the request and the rest of its body, and wait until the client leaves. False: it has left; True: Caddy
    reads no more of the body, since it answers already. `begin` is emptied: an answer may last for hours."""
    loop = asyncio.get_running_loop()
    try:
        while begin:
            await loop.sock_sendall(inside, begin.pop(0))
    except OSError:
        return True
    kept.free()
    while not body.over:
        try:
            piece = await _read(reader)
        except OSError:
            return False
        try:
            await loop.sock_sendall(inside, body.framed(body.feed(piece)))
        except OSError:
            return True
    with suppress(OSError):
        while await reader.read(PIECE_BYTES):
            pass  # no second request comes over one connection
    return False


async def _answered(inside: socket.socket, writer: asyncio.StreamWriter, reader: AnswerReader, began: float) -> None:
    """Copy the answer. Caddy may answer and close before it has read the whole body. A stream of asyncio would drop the
    answer when its write fails then; the socket gives it first, and the error after it."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while piece := await loop.sock_recv(inside, PIECE_BYTES):
            writer.write(piece)
            reader.feed(piece, time.monotonic() - began)
            await writer.drain()


async def _refuse(refusal: Refused, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer, and read the remaining bytes: a writing client could not read the answer if the connection broke."""
    writer.write(refused_front(refusal))
    await writer.drain()
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(PIECE_BYTES):
                pass


async def run(given: argparse.Namespace, stop: asyncio.Event) -> None:
    settings = load(RouterSettings, prefix="ROUTER_", environ=os.environ)
    front = Front(settings, inside=given.inside, told=given.told)
    calls = socket.socket(fileno=given.calls)
    server = await asyncio.start_unix_server(front.serve, sock=calls, limit=HEAD_BYTES_MAX)
    try:
        await stop.wait()
    finally:
        server.close()
        front.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The front for models of a router; `python -m weftd.router` starts it."
    )
    parser.add_argument("--calls", type=int, required=True, help="the descriptor of the socket of Caddy's requests")
    parser.add_argument("--inside", type=Path, required=True, help="Caddy's socket for requests whose model is known")
    parser.add_argument("--told", type=int, required=True, help="the port where the admission process listens")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main("router", partial(run, arguments()), environment_errors=(OSError,)))
