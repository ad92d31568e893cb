"""Wires the reallocator: `python -m services.reallocator`."""

import asyncio
import os
import sys

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.service.clock import steady
from libs.service.config import load
from libs.service.keys import nats_keys, pg_keys
from libs.service.start import main
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from services.reallocator import service
from services.reallocator.settings import ReallocatorSettings


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
