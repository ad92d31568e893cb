"""Wires the scorer: `python -m services.scorer`."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Annotated, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta

from libs.bus import BusError
from libs.bus.nats import NatsBus
from libs.profiles import ProfileError
from libs.service.clock import steady
from libs.service.config import Connections, SettingsError, load, read_secret
from libs.service.keys import nats_keys, pg_keys
from libs.service.start import main
from libs.store import StoreUnavailableError
from libs.store.postgres import PostgresStore
from services.scorer import service
from services.scorer.measuring import Measuring, MeasuringSettings
from services.scorer.profile import read
from services.scorer.thinking.scores import MeasuredGpus


class ScorerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """SCORER_… settings, those of `measuring` among them. `profile`: a file with earlier scores of GPUs; `token_file`:
    a
    file with the token for submitting benchmarks."""

    connections: Connections = Connections()
    profile: str = ""
    token_file: str = ""
    benchmarks: Literal["off", "on"] = "on"
    benchmark_tenants: tuple[str, ...] = MeasuringSettings().benchmark_tenants
    benchmark_image: str = ""
    benchmark_idle_seconds: float = MeasuringSettings().benchmark_idle_seconds
    benchmark_every_seconds: float = MeasuringSettings().benchmark_every_seconds
    benchmark_seconds: float | None = None
    learnt_kept_days: Annotated[float, Meta(ge=0)] = 90.0  # curves, and scores of nodes that are gone; 0: for ever
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"


async def run(stop: asyncio.Event) -> None:
    config = load(ScorerConfig, prefix="SCORER_", environ=os.environ)
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
            measuring=Measuring(bus=bus, store=store, token=_token(config), settings=_measuring(config)),
            learnt_kept_seconds=config.learnt_kept_days * 86400.0 or None,
            admin_port=config.admin_port,
            admin_host=config.admin_host,
        )


def _token(config: ScorerConfig) -> Callable[[], str] | None:
    return (lambda: read_secret(config.token_file)) if config.token_file else None


def _measuring(config: ScorerConfig) -> MeasuringSettings:
    return MeasuringSettings(
        benchmarks=config.benchmarks,
        benchmark_tenants=config.benchmark_tenants,
        benchmark_image=config.benchmark_image,
        benchmark_idle_seconds=config.benchmark_idle_seconds,
        benchmark_every_seconds=config.benchmark_every_seconds,
        benchmark_seconds=config.benchmark_seconds,
    )


def _profile(path: str) -> MeasuredGpus:
    try:
        return read(path) if path else MeasuredGpus()
    except ProfileError as error:
        raise SettingsError(f"SCORER_PROFILE: {error}") from error


if __name__ == "__main__":
    sys.exit(main("scorer", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
