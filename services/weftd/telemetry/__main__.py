"""Wires telemetry: `python -m weftd.telemetry`."""

import asyncio
import os
import secrets
import sys

from weft.bus.nats import NatsBus
from weft.emulation.device import EmulatedDevices
from weft.emulation.faults import EmulatedSource
from weft.emulation.gpus import emulated_gpus
from weft.gpus import GpuWatch, inventory_in_time
from weft.service import load, main
from weft.service.keys import nats_keys
from weft.sharing.places import root_of
from weftd.telemetry import service
from weftd.telemetry.processes import started_at
from weftd.telemetry.runs import Finder, ProcessRuns, docker_runs
from weftd.telemetry.settings import TelemetrySettings
from weftd.telemetry.shares import ShareReader


async def watch(settings: TelemetrySettings, *, stop: asyncio.Event) -> GpuWatch:
    watched = GpuWatch(())
    if settings.emulated_gpus:
        gpus = emulated_gpus(settings.emulated_gpus, node_id=settings.node_id)
        watched.offer(gpus, source=EmulatedSource(gpus, settings.home / "emulated"))
    else:
        watched.offer(await inventory_in_time(stop=stop, late=watched.offer) or ())
    return watched


async def run(stop: asyncio.Event) -> None:
    settings = load(TelemetrySettings, prefix="TELEMETRY_", environ=os.environ)
    to = settings.connections
    if settings.runtime == "docker":
        finder: Finder = docker_runs(settings.node_id, cluster=settings.cluster)
    else:
        finder = ProcessRuns(settings.home)
    gpus = await watch(settings, stop=stop)
    emulated = settings.emulated_gpus and settings.runtime == "process"
    telemetry = service.Telemetry(
        node_id=settings.node_id,
        pool=settings.pool,
        finder=finder,
        gpus=gpus,
        disk=settings.home,
        shares=ShareReader(root_of(settings.home)),
        devices=EmulatedDevices(settings.home / "devices", started_at=started_at).with_processes if emulated else None,
        boot=secrets.token_hex(4),
    )
    name = f"telemetry-{settings.node_id}"
    async with NatsBus.connect(to.nats_url, name=name, **nats_keys(to), on_closed=stop.set) as bus:
        await service.run(settings, telemetry, bus=bus, stop=stop)


if __name__ == "__main__":
    sys.exit(main("telemetry", run))
