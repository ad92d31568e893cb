"""The executor as a process: settings, wiring, and what to do while there is no bus."""

import asyncio
import logging
import math
import os
import random
import resource
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from libs.bus import Bus, BusError
from libs.bus.nats import NatsBus
from libs.gpus import inventory_in_time
from libs.service import Connections, load, main
from libs.service.keys import nats_keys
from services.executor import service
from services.executor.agent import Introduction
from services.executor.capacity import capacity
from services.executor.checkpoints import Checkpoints
from services.executor.guard import thinking as guard
from services.executor.guard.files import GuardOrders
from services.executor.guard.watch import guarded
from services.executor.home import Home
from services.executor.keeper import FileKeeper, HomeTakenError, boot_clock, boot_id
from services.executor.logs.retention import GRAIN, Retention, RetentionLimits
from services.executor.node import NodeFacts
from services.executor.progress import ProgressReader
from services.executor.runtime import Runtime, RuntimeUnavailableError
from services.executor.silence import Silence, SilentBus
from services.executor.thinking.core import ReconcilerTimings

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 3.0
DRIFT_SECONDS_MIN = 1.0
LOG_BYTES_LEAST = 2 * GRAIN
SILENT_SECONDS = 5.0  # between two tries to reach NATS


class ExecutorConfig(msgspec.Struct, frozen=True, kw_only=True):
    connections: Connections = Connections()
    node_id: str
    pool: str = "default"
    address: str = "127.0.0.1"  # where other nodes reach this one
    rack: str = ""  # nodes that name the same rack are nearer to each other than to all others
    home: Path
    checkpoints: Path | None = None  # None: in the home
    runtime: str = "process"  # or docker
    emulated_gpus: int = 0
    cpus: float = 0.0  # 0: as the host has
    memory: int = 0
    volumes_allowed: tuple[str, ...] = ()
    sync_seconds: float = 2.0
    fence_seconds: float = 90.0
    fence_grace_max: float = 30.0
    drift_seconds: float = 10.0  # how late the clocks and the ticks of a node may be; half of it the guard waits
    fencing: bool = True  # false, for the experiment that proves the audit: jobs may run twice
    guard: bool = True  # false, likewise: nothing fences an executor that hangs
    lease_seconds: float = 150.0  # as the scheduler has it
    stop_jobs_on_exit: bool = False
    logs_kept_days: float = 14.0  # after the run's end; 0: as long as there is room
    log_bytes_max: int = 1 << 30  # of one run's log its newest bytes are kept; 0: all of them
    logs_bytes_max: int = 0  # of all logs; 0: a fifth of their file system
    checkpoints_kept_days: float = 0.0  # after a node had a run of the job last; 0: for ever
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    pids_max: int = 8192  # processes and threads of one run; as processes: where control groups allow it
    # process
    cgroups: bool = True
    ignore_images: bool = False
    # docker
    cluster: str = "weft"
    job_network: str = ""
    gpu_injection: str = "auto"
    job_user: str = ""
    pull: bool = True
    pull_seconds_max: float = 900.0
    images_kept_days: float = 30.0  # after a job used it last, of an image that this node fetched; 0: for ever
    engine_files: bool = True  # copy output from the engine's own files, where they can be reached, and shorten them
    limits_by: str = "auto"  # engine, files, or auto
    egress_by: str = "auto"  # direct, helper, off, or auto
    egress_image: str = ""  # with Python, for the helper; "": the executor's own

    def __post_init__(self) -> None:
        if self.drift_seconds < DRIFT_SECONDS_MIN:
            raise ValueError(
                f"drift_seconds {self.drift_seconds:g} is less than the {DRIFT_SECONDS_MIN:g} of the ticks"
            )
        held = self.fence_seconds + self.fence_grace_max + self.drift_seconds
        if self.fencing and held >= self.lease_seconds:
            raise ValueError(
                f"fence_seconds + fence_grace_max + drift_seconds = {held:g} must be less than"
                f" lease_seconds = {self.lease_seconds:g}, or a job could run twice"
            )
        if self.sync_seconds * 3 > self.fence_seconds:
            raise ValueError(f"fence_seconds {self.fence_seconds:g} leaves no time for three syncs")
        if 0 < self.log_bytes_max < LOG_BYTES_LEAST or 0 < self.logs_bytes_max < LOG_BYTES_LEAST:
            raise ValueError(f"log_bytes_max and logs_bytes_max are 0 or at least {LOG_BYTES_LEAST}")
        if self.logs_kept_days < 0 or self.log_bytes_max < 0 or self.logs_bytes_max < 0:
            raise ValueError("logs_kept_days, log_bytes_max and logs_bytes_max are not negative")
        if self.images_kept_days < 0 or self.checkpoints_kept_days < 0:
            raise ValueError("images_kept_days and checkpoints_kept_days are not negative")
        if self.runtime not in ("process", "docker"):
            raise ValueError(f"runtime is process or docker, not {self.runtime}")
        if self.gpu_injection not in ("auto", "cdi", "nvidia", "devices"):
            raise ValueError(f"gpu_injection is auto, cdi, nvidia or devices, not {self.gpu_injection}")
        if self.limits_by not in ("auto", "engine", "files"):
            raise ValueError(f"limits_by is auto, engine or files, not {self.limits_by}")
        if self.egress_by not in ("auto", "direct", "helper", "off"):
            raise ValueError(f"egress_by is auto, direct, helper or off, not {self.egress_by}")


async def run(stop: asyncio.Event) -> None:
    config = load(ExecutorConfig, prefix="EXECUTOR_", environ=os.environ)
    _raise_open_files()
    if not config.fencing:
        logger.warning("fencing is switched off: jobs may run twice")
    home = Home(config.home)
    keeper = FileKeeper(home, boot_id=boot_id(), now=time.time())
    try:
        node = NodeFacts(
            node_id=config.node_id,
            address=config.address,
            checkpoints=str((config.checkpoints or home.root / "checkpoints").absolute()),
            volumes_allowed=config.volumes_allowed,
        )
        node.offer(
            await inventory_in_time(emulated=config.emulated_gpus, node_id=config.node_id, stop=stop, late=node.offer)
        )
        async with guarded(home, _orders(config, keeper), clock=boot_clock):
            runtime = await _open_runtime(config, home, node, keeper)
            try:
                await _serve(config, home, keeper, runtime, node, stop)
            finally:
                await runtime.close()
    finally:
        keeper.close()


async def _serve(
    config: ExecutorConfig, home: Home, keeper: FileKeeper, runtime: Runtime, node: NodeFacts, stop: asyncio.Event
) -> None:
    """On the bus; while there is none, on silence, so that the fence falls all the same."""
    without_gpus = capacity(gpus=(), cpus=config.cpus, memory=config.memory)
    introduction = Introduction(
        node_id=config.node_id,
        pool=config.pool,
        address=config.address,
        capacity=lambda: replace(without_gpus, gpus=node.gpus or ()),
        rack=config.rack,
        sync_seconds=config.sync_seconds,
    )
    retention = Retention(
        home,
        RetentionLimits(
            kept_seconds=config.logs_kept_days * 86400.0,
            log_bytes_max=config.log_bytes_max,
            logs_bytes_max=config.logs_bytes_max,
        ),
        clock=boot_clock,
        checkpoints=Checkpoints(node.checkpoints, kept_seconds=config.checkpoints_kept_days * 86400.0),
    )

    async def serve_on(bus: Bus, until: asyncio.Event, *, last: bool = False) -> None:
        await service.run(
            bus=bus,
            runtime=runtime,
            progress=ProgressReader(home),
            keeper=keeper,
            node=introduction,
            policy=ReconcilerTimings(
                fence_seconds=config.fence_seconds if config.fencing else math.inf,
                fence_grace_max=config.fence_grace_max,
            ),
            stop=until,
            clock=boot_clock,
            jitter=random.random,
            retention=retention,
            stop_jobs_on_exit=config.stop_jobs_on_exit and last,
            admin_host=config.admin_host,
            admin_port=config.admin_port,
        )

    keys = nats_keys(config.connections)
    silence = Silence(serve_on)
    try:
        while not stop.is_set():
            await silence.begin()
            try:
                async with NatsBus.connect(
                    config.connections.nats_url,
                    name=f"executor-{config.node_id}",
                    **keys,
                    connect_seconds_max=CONNECT_SECONDS_MAX,
                ) as bus:
                    await silence.end()
                    await serve_on(bus, stop, last=True)
            except* BusError as errors:
                logger.warning("no bus, trying again: %s", errors.exceptions[0])
                await silence.begin()
                await _sleep(SILENT_SECONDS, stop)
    finally:
        await silence.end()
    if config.stop_jobs_on_exit:
        await serve_on(SilentBus(), stop, last=True)


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _orders(config: ExecutorConfig, keeper: FileKeeper) -> GuardOrders:
    """To the guard. It acts when half of what clocks and ticks may be late is over, and has the other half for it."""
    engine = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock" if config.runtime == "docker" else ""
    if engine and not engine.startswith("unix://"):
        logger.warning("the guard speaks to an engine on this host only, not to %s", engine)
    return GuardOrders(
        fencing=config.fencing and config.guard,
        boot_id=keeper.boot_id,
        policy=guard.FenceTimings(
            fence_seconds=config.fence_seconds,
            slack_seconds=config.drift_seconds / 2,
            grace_max=config.fence_grace_max,
        ),
        runtime=config.runtime,
        node_id=config.node_id,
        cluster=config.cluster,
        engine=engine,
    )


async def _open_runtime(config: ExecutorConfig, home: Home, node: NodeFacts, keeper: FileKeeper) -> Runtime:
    if config.runtime == "docker":
        from services.executor.runtime.docker.container import ContainerSettings  # only here: it loads the Docker SDK
        from services.executor.runtime.docker.runtime import DockerRuntime

        return await DockerRuntime.open(
            home,
            node,
            ContainerSettings(
                cluster=config.cluster,
                job_network=config.job_network,
                gpu_injection=config.gpu_injection,
                user=config.job_user,
                pids_max=config.pids_max,
                pull=config.pull,
                pull_seconds_max=config.pull_seconds_max,
                images_kept_seconds=config.images_kept_days * 86400.0,
                engine_files=config.engine_files,
                limits_by=config.limits_by,
                egress_by=config.egress_by,
                egress_image=config.egress_image,
            ),
        )
    from services.executor.runtime.limits.cgroup import NoCgroups, find_cgroups
    from services.executor.runtime.process.runtime import ProcessRuntime

    # Two clusters on one host may have a node of one name, but not one home.
    def before() -> float | None:
        synced_at = keeper.memory.synced_at
        return synced_at + config.fence_seconds if config.fencing and synced_at is not None else None

    owner = f"{config.node_id}-{zlib.crc32(os.fsencode(home.root)):08x}"
    return await ProcessRuntime.open(
        home,
        node,
        inherited=os.environ,
        cgroups=find_cgroups(owner, pids_max=config.pids_max) if config.cgroups else NoCgroups(),
        ignore_images=config.ignore_images,
        before=before,
    )


def _raise_open_files() -> None:
    """Each live run costs two open files here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main("executor", run, environment_errors=(BusError, OSError, RuntimeUnavailableError, HomeTakenError)))
