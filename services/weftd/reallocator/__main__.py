"""Wires the reallocator: `python -m weftd.reallocator`."""

import asyncio
import os
import sys

from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.service.clock import steady
from weft.service.config import load
from weft.service.keys import nats_keys, pg_keys
from weft.service.start import main
from weft.store import StoreUnavailableError
from weft.store.postgres import PostgresStore
from weftd.reallocator import service
from weftd.reallocator.settings import ReallocatorSettings


async def run(stop: asyncio.Event) -> None:
    settings = load(ReallocatorSettings, prefix="REALLOCATOR_", environ=os.environ)
    to = settings.connections
    async with (
        NatsBus.connect(to.nats_url, name="reallocator", **nats_keys(to)) as bus,
        PostgresStore.connect(to.pg_dsn, **pg_keys(to), connections=2) as store,
    ):
        await service.run(settings, bus=bus, store=store, stop=stop, clock=steady())


if __name__ == "__main__":
    sys.exit(main("reallocator", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
