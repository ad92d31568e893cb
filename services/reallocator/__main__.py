"""Wires the reallocator: `python -m services.reallocator`."""

import asyncio
import os
import sys
from typing import Annotated

import msgspec

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.domain.spec import TuningMode
from libs.service.clock import steady
from libs.service.config import Connections, load
from libs.service.keys import nats_keys, pg_keys
from libs.service.start import main
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from libs.tuning.envelope import GROWTH
from libs.tuning.window import WINDOW_SECONDS
from services.reallocator import service


class ReallocatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """REALLOCATOR_… settings."""

    connections: Connections = Connections()
    pool: str = "default"
    tuning: TuningMode = TuningMode.ADVISE
    growth: Annotated[float, msgspec.Meta(ge=1.0)] = GROWTH
    window_seconds: Annotated[float, msgspec.Meta(ge=1.0)] = WINDOW_SECONDS
    review_seconds: float = 5.0
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"


async def run(stop: asyncio.Event) -> None:
    config = load(ReallocatorConfig, prefix="REALLOCATOR_", environ=os.environ)
    to = config.connections
    async with (
        NatsBus.connect(to.nats_url, name="reallocator", **nats_keys(to)) as bus,
        PostgresStore.connect(to.pg_dsn, **pg_keys(to), connections=2) as store,
    ):
        await service.run(
            bus=bus,
            store=store,
            stop=stop,
            clock=steady(),
            pool=config.pool,
            tuning=config.tuning,
            growth=config.growth,
            window_seconds=config.window_seconds,
            review_seconds=config.review_seconds,
            admin_port=config.admin_port,
            admin_host=config.admin_host,
        )


if __name__ == "__main__":
    sys.exit(main("reallocator", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
