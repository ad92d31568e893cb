"""Wires the scheduler: `python -m weftd.scheduler`."""

import asyncio
import os
import secrets
import socket
import sys

from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.service.clock import steady
from weft.service.config import load
from weft.service.keys import nats_keys, pg_keys
from weft.service.start import main
from weft.store import StoreUnavailableError
from weft.store.postgres import PostgresStore
from weftd.scheduler import service
from weftd.scheduler.settings import SchedulerSettings


async def run(stop: asyncio.Event) -> None:
    settings = load(SchedulerSettings, prefix="SCHEDULER_", environ=os.environ)
    to = settings.connections
    async with (
        NatsBus.connect(to.nats_url, name="scheduler", **nats_keys(to), replicas=settings.nats_replicas) as bus,
        PostgresStore.connect(to.pg_dsn, **pg_keys(to)) as store,
    ):
        holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        await service.run(settings, bus=bus, store=store, stop=stop, holder=holder, clock=steady())


if __name__ == "__main__":
    sys.exit(main("scheduler", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
