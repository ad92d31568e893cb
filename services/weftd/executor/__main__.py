"""The executor as a process: settings, wiring, and operation without a bus."""

import asyncio
import logging
import os
import random
import resource
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from weft.bus import Bus, BusError
from weft.bus.nats import NatsBus
from weft.domain.cluster import Capacity, Gpu
from weft.domain.topology import Topology
from weft.domain.ulimits import ulimits_of
from weft.emulation.device import EmulatedDriver
from weft.emulation.gpus import emulated_gpus
from weft.gpus import inventory_in_time, topology_in_time
from weft.gpus.topology import topology_of_table
from weft.service import SettingsError, load, main
from weft.service.keys import nats_keys
from weftd.executor import service
from weftd.executor.files.home import Home
from weftd.executor.files.job_files import JobFiles
from weftd.executor.files.job_folders import JobFolders
from weftd.executor.files.secrets import SecretFiles, folder_in_memory
from weftd.executor.guard import thinking as guard
from weftd.executor.guard.files import GuardOrders
from weftd.executor.guard.watch import guarded
from weftd.executor.logs.progress import ProgressReader
from weftd.executor.logs.retention import Retention
from weftd.executor.machine.boot import boot_clock, boot_id
from weftd.executor.machine.node import NodeFacts
from weftd.executor.machine.numa import numa_nodes
from weftd.executor.machine.volumes import OwnedVolume, offered, resolved
from weftd.executor.runs import Runtime, RuntimeUnavailableError
from weftd.executor.settings import ExecutorSettings
from weftd.executor.shares.backend import ShareBackend
from weftd.executor.shares.opening import SharesUnavailableError, opened
from weftd.executor.silence import Silence, SilentBus
from weftd.executor.state_file import DiskStateFile, HomeTakenError

logger = logging.getLogger(__name__)
CONNECT_SECONDS_MAX = 3.0
LEAVES_PART = 1 / 6  # of the fence: unanswered for so long, another NATS server is tried; two more before it falls
SILENT_SECONDS = 5.0  # between two tries to reach NATS


async def run(stop: asyncio.Event) -> None:
    settings = load(ExecutorSettings, prefix="EXECUTOR_", environ=os.environ)
    _raise_open_files()
    if not settings.fencing:
        logger.warning("fencing is switched off: jobs may run twice")
    home = Home(settings.home, secret_files=_secrets_folder(settings))
    fence_seconds = settings.fence_seconds if settings.fencing else None
    state_file = DiskStateFile(home, boot_id=boot_id(), now=time.time(), fence_seconds=fence_seconds)
    try:
        node = NodeFacts(
            node_id=settings.node_id,
            address=settings.address,
            checkpoints=str((settings.checkpoints or home.root / "checkpoints").absolute()),
            results=str((settings.results or home.root / "results").absolute()),
            volumes_allowed=settings.volumes_allowed,
            volumes=_volumes(settings),
            ulimits_max=ulimits_of(settings.ulimits_max),
            numa=() if settings.numa == "off" else numa_nodes(),
            binds_memory=settings.numa == "pin",
            topology=_declared_topology(settings.topology),
            ports=settings.serving.ports_of(settings.node_id),
            publish_at=settings.serving.service_publish_at,
        )
        if settings.emulated_gpus:
            node.offer(emulated_gpus(settings.emulated_gpus, node_id=settings.node_id))
        else:
            node.offer(await inventory_in_time(stop=stop, late=node.offer))
        if node.gpus and node.topology is None:
            node.topology = await topology_in_time(node.gpus, stop=stop)
        driver = EmulatedDriver() if settings.emulated_gpus else None
        async with (
            guarded(home, _orders(settings, state_file), clock=boot_clock),
            opened(settings.shares, home, driver=driver) as shares,
        ):
            runtime = await _open_runtime(settings, home, node, state_file, shares)
            try:
                await _serve(settings, home, state_file, runtime, node, stop, shares=shares)
            finally:
                await runtime.close()
    finally:
        state_file.close()


def _secrets_folder(settings: ExecutorSettings) -> Path | None:
    """The executor of a container engine may see another shared memory than the engine: it uses what is named."""
    if settings.secrets_folder is not None:
        return settings.secrets_folder.absolute() / settings.node_id
    return folder_in_memory(settings.home) if settings.runtime == "process" else None


async def _serve(
    settings: ExecutorSettings,
    home: Home,
    state_file: DiskStateFile,
    runtime: Runtime,
    node: NodeFacts,
    stop: asyncio.Event,
    *,
    shares: ShareBackend,
) -> None:
    """Serve on the bus; while it is not reachable, on a silent one, so that the fence still falls."""
    without_gpus = capacity(gpus=(), cpus=settings.cpus, memory=settings.memory)
    checkpoints = JobFolders(
        node.checkpoints,
        kept_seconds=settings.checkpoints_kept_days * 86400.0,
        bytes_max=settings.checkpoints_bytes_max,
    )
    results = JobFolders(
        node.results, kept_seconds=settings.results_kept_days * 86400.0, bytes_max=settings.results_bytes_max
    )
    metrics = JobFolders(str(home.metrics), kept_seconds=settings.results_kept_days * 86400.0)
    retention = Retention(home, settings.logs, clock=boot_clock, folders=(checkpoints, results, metrics))
    contained = settings.runtime == "docker"
    secret_files = SecretFiles(home.secret_files, contained=contained, owner=settings.containers.job_user)

    async def serve_on(bus: Bus, until: asyncio.Event, *, last: bool = False) -> None:
        await service.run(
            settings,
            bus=bus,
            runtime=runtime,
            progress=ProgressReader(home),
            state_file=state_file,
            capacity=lambda: replace(
                without_gpus, gpus=node.gpus or (), volumes=offered(node.volumes), topology=node.topology
            ),
            stop=until,
            clock=boot_clock,
            jitter=random.random,
            retention=retention,
            secret_files=secret_files,
            job_files=JobFiles(results, checkpoints, metrics),
            stop_jobs_on_exit=settings.stop_jobs_on_exit and last,
        )

    keys = nats_keys(settings.connections)
    silence = Silence(serve_on)
    try:
        while not stop.is_set():
            await silence.begin()
            try:
                async with NatsBus.connect(
                    settings.connections.nats_url,
                    name=f"executor-{settings.node_id}",
                    **keys,
                    connect_seconds_max=CONNECT_SECONDS_MAX,
                    leaves_after_seconds=settings.fence_seconds * LEAVES_PART,
                ) as bus:
                    await silence.end()
                    await serve_on(bus, stop, last=True)
            except* BusError as errors:
                logger.warning("no bus, trying again: %s", errors.exceptions[0])
                await silence.begin()
                await _sleep(SILENT_SECONDS, stop)
    finally:
        await silence.end()
    if settings.stop_jobs_on_exit:
        await serve_on(SilentBus(), stop, last=True)
    secret_files.close()


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _orders(settings: ExecutorSettings, state_file: DiskStateFile) -> GuardOrders:
    """The guard's orders. It acts after half of the allowed lateness of clocks and ticks, and has the other half."""
    engine = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock" if settings.runtime == "docker" else ""
    if engine and not engine.startswith("unix://"):
        logger.warning("the guard speaks to an engine on this host only, not to %s", engine)
    return GuardOrders(
        fencing=settings.fencing and settings.guard,
        boot_id=state_file.boot_id,
        timings=guard.FenceTimings(
            fence_seconds=settings.fence_seconds,
            slack_seconds=settings.drift_seconds / 2,
            grace_max=settings.fence_grace_max,
        ),
        runtime=settings.runtime,
        node_id=settings.node_id,
        cluster=settings.containers.cluster,
        engine=engine,
    )


async def _open_runtime(
    settings: ExecutorSettings, home: Home, node: NodeFacts, state_file: DiskStateFile, shares: ShareBackend
) -> Runtime:
    if settings.runtime == "docker":
        from weftd.executor.runtime.docker.runtime import DockerRuntime  # only here: it loads the Docker SDK

        return await DockerRuntime.open(home, node, settings.containers, shares=shares)
    from weftd.executor.runtime.limits.cgroup import NoCgroups, find_cgroups
    from weftd.executor.runtime.process.runtime import ProcessRuntime

    # Two clusters on one host may have a node of one name, but not one home.
    owner = f"{settings.node_id}-{zlib.crc32(os.fsencode(home.root)):08x}"
    return await ProcessRuntime.open(
        home,
        node,
        inherited=os.environ,
        cgroups=find_cgroups(owner, pids_max=settings.containers.pids_max) if settings.cgroups else NoCgroups(),
        ignore_images=settings.ignore_images,
        leave=state_file.leave,
        shares=shares,
    )


def _volumes(settings: ExecutorSettings) -> dict[str, OwnedVolume]:
    try:
        return resolved(settings.volumes, str(settings.home.absolute()))
    except ValueError as error:
        raise SettingsError(f"EXECUTOR_VOLUMES: {error}") from None


def _declared_topology(path: Path | None) -> Topology | None:
    """Raises SettingsError."""
    try:
        return None if path is None else topology_of_table(path.read_text())
    except (OSError, ValueError) as error:
        raise SettingsError(f"EXECUTOR_TOPOLOGY: {path}: {error}") from None


def _raise_open_files() -> None:
    """Each live run costs two open files here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def capacity(
    *, gpus: tuple[Gpu, ...], cpus: float = 0.0, memory: int = 0, root: Path = Path("/sys/fs/cgroup")
) -> Capacity:
    """The capacity. `cpus` and `memory`: 0 reads the host; any other value is what the owner declares."""
    return Capacity(cpus=cpus or host_cpus(root), memory=memory or host_memory(root), gpus=gpus)


def host_cpus(root: Path) -> float:
    try:
        count = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on Linux
        count = float(os.cpu_count() or 1)
    match _words(root / "cpu.max"):
        case [quota, period] if quota != "max":
            return min(count, int(quota) / int(period))
    match _words(root / "cpu" / "cpu.cfs_quota_us"), _words(root / "cpu" / "cpu.cfs_period_us"):
        case [quota], [period] if int(quota) > 0:
            return min(count, int(quota) / int(period))
    return count


def host_memory(root: Path) -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in (root / "memory.max", root / "memory" / "memory.limit_in_bytes"):
        match _words(path):
            case [limit] if limit != "max":
                total = min(total, int(limit))
    return total


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(
        main(
            "executor",
            run,
            environment_errors=(BusError, OSError, RuntimeUnavailableError, HomeTakenError, SharesUnavailableError),
        )
    )
