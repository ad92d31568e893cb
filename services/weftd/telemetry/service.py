"""Telemetry's shell: reads the node, and publishes one sample a period."""

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge

from weft.bus import Bus
from weft.gpus import GpuWatch
from weft.messages.signals import GpuSample, NodeSampled
from weft.service import Every, serve
from weftd.telemetry.dcgm import dcgm_families
from weftd.telemetry.host import read_host
from weftd.telemetry.metrics import GpuPairs, NodeGauges
from weftd.telemetry.processes import read_groups, read_process
from weftd.telemetry.runs import Finder
from weftd.telemetry.settings import TelemetrySettings
from weftd.telemetry.shares import ShareReader
from weftd.telemetry.thinking.attribution import Attribution
from weftd.telemetry.thinking.core import NodeCounters, Sampler
from weftd.telemetry.thinking.readings import FoundRun
from weftd.telemetry.thinking.shares import RunKey
from weftd.telemetry.usage import UsageReader

Gpus = tuple[GpuSample, ...]

LOOK_SECONDS = 2.0
"""How often to look for new runs; an ended run is noticed at the next sample already."""


class Telemetry:
    """Samples this node. Files are read in a thread: a disk that hangs must not hang the probes.

    `devices` adds the processes on GPUs whose driver does not list them: emulated ones.
    """

    def __init__(
        self,
        *,
        node_id: str,
        pool: str,
        finder: Finder,
        gpus: GpuWatch,
        disk: Path,
        shares: ShareReader | None = None,
        devices: Callable[[Gpus], Gpus] | None = None,
        boot: str = "",
    ) -> None:
        self.node_id = node_id
        self.sampler = Sampler(node_id=node_id, pool=pool, boot=boot)
        self._finder = finder
        self.gpus = gpus
        self._disk = disk
        self._usage = UsageReader()
        self._attribution = Attribution(look=read_process, groups=read_groups)
        self._shares, self._devices = shares, devices
        self._runs: list[FoundRun] = []

    async def look(self) -> None:
        self._runs = await self._finder.find()

    async def sample(self, *, at: float) -> NodeSampled:
        gpus = await self.gpus.sample()
        reading, gpus = await asyncio.to_thread(self._read, self._runs, gpus)
        return self.sampler.sampled(reading, gpus, at=at)

    def _read(self, runs: list[FoundRun], gpus: Gpus) -> tuple[NodeCounters, Gpus]:
        readings = tuple(self._usage.read(runs))
        if self._devices is not None:
            gpus = self._devices(gpus)
        gpus = self._attribution.attributed(gpus, [reading.run for reading in readings])
        shares = self._shares.read(reading.run for reading in readings) if self._shares is not None else {}
        shares = {key: replace(reading, on_gpu=_on(gpus, key, reading.share.gpu)) for key, reading in shares.items()}
        return NodeCounters(host=read_host(disk=self._disk), runs=readings, shares=shares), gpus


def _on(gpus: Iterable[GpuSample], key: RunKey, uuid: str) -> dict[int, int | None]:
    """The processes of a run on one GPU, and the memory of each there."""
    processes = (process for gpu in gpus if gpu.uuid == uuid for process in gpu.processes)
    of_run = (process for process in processes if (process.job_id, process.epoch, process.rank) == key)
    return {process.pid: process.memory_used for process in of_run}


async def run(settings: TelemetrySettings, telemetry: Telemetry, *, bus: Bus, stop: asyncio.Event) -> None:
    registry = CollectorRegistry(auto_describe=True)
    gauges = NodeGauges(dcgm_families if settings.dcgm_names else None)
    registry.register(gauges)
    registry.register(GpuPairs(telemetry.node_id, lambda: telemetry.gpus.gpus, lambda: telemetry.gpus.near))
    lost = Gauge(
        "weft_telemetry_lost", "Measures of runs that were known and could not be read any more.", registry=registry
    )
    lost.set_function(lambda: telemetry.sampler.lost)

    async def sample() -> None:
        sampled = await telemetry.sample(at=time.time())
        gauges.show(sampled)
        await bus.publish(sampled)

    await serve(
        "telemetry",
        bus=bus,
        stop=stop,
        loops=[Every(LOOK_SECONDS, telemetry.look), Every(settings.period_seconds, sample)],
        registry=registry,
        admin_port=settings.admin_port,
        admin_host=settings.admin_host,
    )
