"""Wires the scorer: `python -m services.scorer`."""

import asyncio
import os
import sys
from functools import partial
from uuid import uuid4

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.profiles import ProfileError
from libs.service.clock import steady
from libs.service.config import SettingsError, load, read_secret
from libs.service.keys import nats_keys, pg_keys
from libs.service.start import main
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from services.scorer import service
from services.scorer.measuring import Measuring
from services.scorer.profile import read
from services.scorer.settings import ScorerSettings
from services.scorer.thinking.scores import MeasuredGpus


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
