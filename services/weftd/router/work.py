"""The admission process, which the router keeps running: `python -m weftd.router.work`, with its sockets at hand."""

import argparse
import asyncio
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from secrets import token_hex

from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.service.config import load
from weft.service.keys import nats_keys, pg_keys
from weft.service.start import main
from weft.store import StoreUnavailableError
from weft.store.postgres import PostgresStore
from weftd.router import service
from weftd.router.passages import Passages
from weftd.router.passing import Passing
from weftd.router.settings import RouterSettings


async def run(given: argparse.Namespace, stop: asyncio.Event) -> None:
    settings = load(RouterSettings, prefix="ROUTER_", environ=os.environ)
    to = settings.connections
    async with (
        NatsBus.connect(to.nats_url, name="router", **nats_keys(to)) as bus,
        PostgresStore.connect(to.pg_dsn, **pg_keys(to), connections=settings.pg_connections) as store,
    ):
        await service.run(
            settings,
            bus=bus,
            store=store,
            stop=stop,
            name=given.name,
            boot=token_hex(6),
            asks=socket.socket(fileno=given.asks),
            ends=socket.socket(fileno=given.ends),
            passing=Passing(given.admin),
            passages=Passages(given.admin.parent, socket.socket(fileno=given.hands)),
            now=time.time,
            clock=time.monotonic,
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="The admission process of a router; started by `python -m weftd.router`."
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--asks", type=int, required=True, help="the descriptor of the socket of Caddy's questions")
    parser.add_argument("--ends", type=int, required=True, help="the descriptor of the socket of Caddy's log")
    parser.add_argument("--hands", type=int, required=True, help="the descriptor over which the relay gets requests")
    parser.add_argument("--admin", type=Path, required=True, help="Caddy's own socket")
    return parser.parse_args()


if __name__ == "__main__":
    errors = (BusError, StoreUnavailableError, OSError)
    sys.exit(main("router", partial(run, arguments()), environment_errors=errors))
