"""Wires the scorer: `python -m weftd.scorer`."""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

from weft.bus import BusError
from weft.bus.nats import NatsBus
from weft.domain.classes import JOB_CLASSES
from weft.planning.scores import GpuKey
from weft.profiles import ProfileError, Table
from weft.service.clock import steady
from weft.service.config import SettingsError, load, read_secret
from weft.service.keys import nats_keys, pg_keys
from weft.service.start import main
from weft.store import StoreUnavailableError
from weft.store.postgres import PostgresStore
from weftd.scorer import service
from weftd.scorer.measuring import Measuring
from weftd.scorer.settings import ScorerSettings
from weftd.scorer.thinking.scores import ByClass, MeasuredGpus

LETTERS = dict(zip("ABC", JOB_CLASSES, strict=True))


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


def read(path: str) -> MeasuredGpus:
    """Raises ProfileError, which names the file and the line."""
    table = Table(path)
    columns = {name: table.either(name, letter) for letter, name in LETTERS.items()}
    by_uuid: dict[str, ByClass] = {}
    by_place: dict[GpuKey, ByClass] = {}
    named_by_uuid = table.either("gpu_uuid", "node_id") == "gpu_uuid"
    if not named_by_uuid:
        table.either("gpu_index")
    lines: dict[str | GpuKey, int] = {}
    for line, row in table.rows:
        scores = {job_class: table.time(line, column, row) for job_class, column in columns.items()}
        name: str | GpuKey
        if named_by_uuid:
            name = row["gpu_uuid"].strip()
            by_uuid[name] = scores
        else:
            name = (row["node_id"].strip(), table.whole(line, "gpu_index", row))
            by_place[name] = scores
        if (before := lines.setdefault(name, line)) != line:
            raise ProfileError(path, line, f"this GPU is also in line {before}")
    return MeasuredGpus(by_uuid=by_uuid, by_place=by_place, measured_at=Path(path).stat().st_mtime)


if __name__ == "__main__":
    sys.exit(main("scorer", run, environment_errors=(BusError, StoreUnavailableError, OSError)))
