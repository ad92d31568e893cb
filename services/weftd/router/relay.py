"""The relay, which the router keeps running: `python -m weftd.router.relay`.

It carries requests that must end with the token or the session that admitted them. Caddy cannot end a single request.
So the admission process sends such a request to its replica through its own socket, which it hands to the relay with
the hash of the token. The relay looks up every token every two seconds, and cuts the connections of invalid ones. While
the store is away, all continue.
"""

import argparse
import asyncio
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from weft.service.config import load
from weft.service.keys import pg_keys
from weft.service.start import main
from weft.store import StoreUnavailableError
from weft.store.postgres import PostgresStore
from weft.store.tenants import Access
from weftd.router.settings import RouterSettings
from weftd.router.tokens import opens

logger = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
CONNECTIONS_MAX = 4096
ACCEPT_SECONDS = 15.0  # time in which Caddy must connect to the socket of its request
DIAL_SECONDS = 2.0
LINGER_SECONDS = 5.0  # for the rest of an answer whose client has sent its last byte
PIECE_BYTES = 64 << 10
PASSAGE_BYTES_MAX = 4096


class Passage(Struct, frozen=True, kw_only=True):
    """One request: its replica, the path of its socket, and the token that must stay valid."""

    to: str
    path: str
    token_hash: bytes
    job_id: str
    tenant: str


class AccessStore(Protocol):
    async def access(self, token_hash: bytes, *, at: float) -> Access | None: ...


class Relay:
    def __init__(self, store: AccessStore, *, now: Callable[[], float]) -> None:
        self._store, self._now = store, now
        self._open: dict[asyncio.Task[None], Passage] = {}

    def take(self, channel: socket.socket) -> None:
        """Receive requests from the admission process: a message with a listening socket each."""
        while True:
            try:
                message, handed, _, _ = socket.recv_fds(channel, PASSAGE_BYTES_MAX, 1)
            except (BlockingIOError, InterruptedError):
                return
            if not message or not handed:
                return
            listening = socket.socket(fileno=handed[0])
            passage = msgspec.msgpack.decode(message, type=Passage)
            if len(self._open) >= CONNECTIONS_MAX:
                logger.warning("%d requests are relayed already: one more is refused", len(self._open))
                _end(listening, passage)
                continue
            task = asyncio.create_task(_carried(listening, passage))
            self._open[task] = passage
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a relayed request failed", exc_info=error)

    async def check(self) -> None:
        """Cut the requests whose token no longer opens their service. Raises StoreUnavailableError."""
        for token_hash in {passage.token_hash for passage in self._open.values()}:
            access = await self._store.access(token_hash, at=self._now())
            for task, passage in [*self._open.items()]:
                if passage.token_hash == token_hash and not opens(access, passage.job_id, passage.tenant):
                    task.cancel()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            with suppress(StoreUnavailableError):
                await self.check()

    async def close(self) -> None:
        for task in [*self._open]:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _carried(listening: socket.socket, passage: Passage) -> None:
    """Carry one request until one side ends it. Cancelling this cuts both sides."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    try:
        async with asyncio.timeout(ACCEPT_SECONDS):
            accepted, _ = await loop.sock_accept(listening)
    except (TimeoutError, OSError):
        return
    finally:
        _end(listening, passage)
    from_caddy, to_caddy = await asyncio.open_unix_connection(sock=accepted)
    try:
        host, _, port = passage.to.rpartition(":")
        async with asyncio.timeout(DIAL_SECONDS):
            from_replica, to_replica = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            await _both_ways(from_caddy, to_replica, from_replica, to_caddy)
        finally:
            to_replica.transport.abort()
    except (TimeoutError, OSError):
        pass  # Caddy asks the admission process again if the answer has not begun
    finally:
        to_caddy.transport.abort()


async def _both_ways(
    from_caddy: asyncio.StreamReader,
    to_replica: asyncio.StreamWriter,
    from_replica: asyncio.StreamReader,
    to_caddy: asyncio.StreamWriter,
) -> None:
    asked = asyncio.create_task(_copied(from_caddy, to_replica))
    answered = asyncio.create_task(_copied(from_replica, to_caddy))
    try:
        await asyncio.wait((asked, answered), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            await asyncio.wait((answered,), timeout=LINGER_SECONDS)
        if answered.done() and answered.exception() is None:
            to_caddy.close()  # after the rest of the answer
            await to_caddy.wait_closed()
    finally:
        for task in (asked, answered):
            task.cancel()
        await asyncio.gather(asked, answered, return_exceptions=True)


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


def _end(listening: socket.socket, passage: Passage) -> None:
    listening.close()
    Path(passage.path).unlink(missing_ok=True)


async def run(given: argparse.Namespace, stop: asyncio.Event) -> None:
    settings = load(RouterSettings, prefix="ROUTER_", environ=os.environ)
    to = settings.connections
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    channel = socket.socket(fileno=given.handed)
    channel.setblocking(False)
    async with PostgresStore.connect(to.pg_dsn, **pg_keys(to), connections=1) as store:
        relay = Relay(store, now=time.time)
        asyncio.get_running_loop().add_reader(channel, relay.take, channel)
        watching = asyncio.create_task(relay.watch())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            stopping.cancel()
            watching.cancel()
            asyncio.get_running_loop().remove_reader(channel)
            await relay.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The relay of a router; started by `python -m weftd.router`.")
    parser.add_argument("--handed", type=int, required=True, help="the descriptor over which requests are handed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main("router", partial(run, arguments()), environment_errors=(StoreUnavailableError, OSError)))
