"""Wires the scorer: `python -m services.scorer`."""

import asyncio
import os
import sys
from uuid import uuid4

import msgspec

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.service.clock import steady
from libs.service.config import Connections, SettingsError, load
from libs.service.keys import nats_keys, pg_keys
from libs.service.start import main
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from libs.variability.profile import ProfileError
from services.scorer import service
from services.scorer.profile import read
from services.scorer.standings import MeasuredGpus


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """SCORER_… settings. `profile`: a file with what was measured of GPUs before."""

    connections: Connections = Connections()
    profile: str = ""
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"


async def run(stop: asyncio.Event) -> None:
    config = load(Config, prefix="SCORER_", environ=os.environ)
    to = config.connections
    profile = _profile(config.profile)
    async with (
        NatsBus.connect(to.nats_url, name="scorer", **nats_keys(to)) as bus,
        PostgresStore.connect(to.pg_dsn, **pg_keys(to), connections=2) as store,
    ):
        await service.run(
            bus=bus,
            store=store,
            stop=stop,
            clock=steady(),
            name=f"scorer-{uuid4().hex[:12]}",
            profile=profile,
            admin_port=config.admin_port,
            admin_host=config.admin_host,
        )


def _profile(path: str) -> MeasuredGpus:
    try:
        return read(path) if path else MeasuredGpus()
    except ProfileError as error:
        raise SettingsError(f"SCORER_PROFILE: {error}") from error


if __name__ == "__main__":
    sys.exit(main("scorer", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
