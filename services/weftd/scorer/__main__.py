"""Wires the scorer: `python -m weftd.scorer`."""

import asyncio
import os
import sys
from functools import partial
from uuid import uuid4

from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.profiles import ProfileError
from weft.service.clock import steady
from weft.service.config import SettingsError, load, read_secret
from weft.service.keys import nats_keys, pg_keys
from weft.service.start import main
from weft.store import StoreUnavailableError
from weft.store.postgres import PostgresStore
from weftd.scorer import service
from weftd.scorer.measuring import Measuring
from weftd.scorer.profile import read
from weftd.scorer.settings import ScorerSettings
from weftd.scorer.thinking.scores import MeasuredGpus


async def run(stop: asyncio.Event) -> None:
    settings = load(ScorerSettings, prefix="SCORER_", environ=os.environ)
    to = settings.connections
    profile = _profile(settings.profile)
    token = partial(read_secret, settings.token_file) if settings.token_file else None
    async with (
        NatsBus.connect(to.nats_url, name="scorer", **nats_keys(to)) as bus,
        PostgresStore.connect(to.pg_dsn, **pg_keys(to), connections=2) as store,
    ):
        await service.run(
            settings,
            bus=bus,
            store=store,
            stop=stop,
            clock=steady(),
            name=f"scorer-{uuid4().hex[:12]}",
            profile=profile,
            measuring=Measuring(bus=bus, store=store, token=token, settings=settings),
        )


def _profile(path: str) -> MeasuredGpus:
    try:
        return read(path) if path else MeasuredGpus()
    except ProfileError as error:
        raise SettingsError(f"SCORER_PROFILE: {error}") from error


if __name__ == "__main__":
    sys.exit(main("scorer", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
