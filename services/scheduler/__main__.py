"""Wires the scheduler: `python -m services.scheduler`."""

import asyncio
import os
import secrets
import socket
import sys

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.service.clock import steady
from libs.service.config import load
from libs.service.keys import nats_keys, pg_keys
from libs.service.start import main
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from services.scheduler import service
from services.scheduler.settings import SchedulerSettings


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
