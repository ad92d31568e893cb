"""Wires telemetry: `python -m services.telemetry`."""

import asyncio
import os
import secrets
import sys

from libs.bus.nats import NatsBus
from libs.gpus import GpuWatch, inventory_in_time
from libs.service import load, main
from libs.service.keys import nats_keys
from libs.sharing.places import root_of
from services.telemetry import service
from services.telemetry.devices import EmulatedDevices
from services.telemetry.runs import Finder, ProcessRuns, docker_runs
from services.telemetry.settings import TelemetrySettings
from services.telemetry.shares import ShareReader


async def watch(settings: TelemetrySettings, *, stop: asyncio.Event) -> GpuWatch:
    watched = GpuWatch(())
    known = await inventory_in_time(
        emulated=settings.emulated_gpus, node_id=settings.node_id, stop=stop, late=watched.offer
    )
    watched.offer(known or ())
    return watched


async def run(stop: asyncio.Event) -> None:
    settings = load(TelemetrySettings, prefix="TELEMETRY_", environ=os.environ)
    to = settings.connections
    if settings.runtime == "docker":
        finder: Finder = docker_runs(settings.node_id, cluster=settings.cluster)
    else:
        finder = ProcessRuns(settings.home)
    gpus = await watch(settings, stop=stop)
    telemetry = service.Telemetry(
        node_id=settings.node_id,
        pool=settings.pool,
        finder=finder,
        gpus=gpus,
        disk=settings.home,
        shares=ShareReader(root_of(settings.home)),
        devices=EmulatedDevices(settings.home / "devices") if settings.runtime == "process" else None,
        boot=secrets.token_hex(4),
    )
    name = f"telemetry-{settings.node_id}"
    async with NatsBus.connect(to.nats_url, name=name, **nats_keys(to), on_closed=stop.set) as bus:
        await service.run(settings, telemetry, bus=bus, stop=stop)


if __name__ == "__main__":
    sys.exit(main("telemetry", run))
