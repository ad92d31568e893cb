"""Wires telemetry: `python -m services.telemetry`."""

import asyncio
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from libs.bus.nats import NatsBus
from libs.gpus import GpuWatch, inventory_in_time
from libs.gpus.recording import RecordingError
from libs.gpus.replay import ReplayedGpus
from libs.service import Connections, SettingsError, load, main
from libs.service.keys import nats_keys
from services.telemetry import service
from services.telemetry.runs import Finder, ProcessRuns, docker_runs

logger = logging.getLogger(__name__)


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """TELEMETRY_… settings. `home` is the executor's; `runtime`, `cluster` and `emulated_gpus` are the executor's, too.

    `cluster`: whose containers on this engine are the node's; empty: those of every cluster with a node of this name.
    `dcgm_names`: show GPUs under the names of NVIDIA's DCGM exporter as well.
    `replay`: a file of `libs.gpus.record`, whose GPUs are told of instead of this machine's.
    """

    connections: Connections = Connections()
    node_id: str
    pool: str = "default"
    home: Path
    runtime: Literal["process", "docker"] = "process"
    cluster: str = ""
    emulated_gpus: Annotated[int, Meta(ge=0)] = 0
    replay: Path | None = None
    period_seconds: Annotated[float, Meta(gt=0)] = 1.0
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"
    dcgm_names: bool = False


async def watch(config: TelemetryConfig, *, stop: asyncio.Event) -> GpuWatch:
    if config.replay is None:
        watched = GpuWatch(())
        known = await inventory_in_time(
            emulated=config.emulated_gpus, node_id=config.node_id, stop=stop, late=watched.offer
        )
        watched.offer(known or ())
        return watched
    try:
        replay = await asyncio.to_thread(ReplayedGpus, config.replay)
    except RecordingError as error:
        raise SettingsError(f"TELEMETRY_REPLAY: {error}") from error
    logger.warning("no GPU is measured: %s is replayed (recorded from %s)", config.replay, replay.recorded_by)
    return GpuWatch(replay.gpus, source=replay)


async def run(stop: asyncio.Event) -> None:
    config = load(TelemetryConfig, prefix="TELEMETRY_", environ=os.environ)
    to = config.connections
    if config.runtime == "docker":
        finder: Finder = docker_runs(config.node_id, cluster=config.cluster)
    else:
        finder = ProcessRuns(config.home)
    gpus = await watch(config, stop=stop)
    telemetry = service.Telemetry(
        node_id=config.node_id,
        pool=config.pool,
        finder=finder,
        gpus=gpus,
        disk=config.home,
        boot=secrets.token_hex(4),
    )
    name = f"telemetry-{config.node_id}"
    async with NatsBus.connect(to.nats_url, name=name, **nats_keys(to), on_closed=stop.set) as bus:
        await service.run(
            telemetry,
            bus=bus,
            stop=stop,
            period_seconds=config.period_seconds,
            admin_port=config.admin_port,
            admin_host=config.admin_host,
            dcgm_names=config.dcgm_names,
        )


if __name__ == "__main__":
    sys.exit(main("telemetry", run))
