"""The executor's settings: EXECUTOR_… in the environment, and WEFT_… for what all services share."""

from pathlib import Path

import msgspec
from msgspec import Struct

from weft.domain.cluster import VOLUMES_MAX
from weft.domain.labels import labels_of
from weft.domain.spec import Token
from weft.domain.ulimits import ulimits_of
from weft.service import Connections
from weftd.executor.data.settings import DataSettings
from weftd.executor.logs.retention import GRAIN, RetentionLimits
from weftd.executor.machine.ports import PortRange, lane_of
from weftd.executor.machine.volumes import OwnedVolume, check
from weftd.executor.runtime.docker.settings import ContainerSettings
from weftd.executor.sessions.settings import SessionSettings
from weftd.executor.shares.backend import CHOICES

NUMA_CHOICES = ("pin", "cpus", "off")
DRIFT_SECONDS_MIN = 1.0
LOG_BYTES_LEAST = 2 * GRAIN


class ServingSettings(Struct, frozen=True, kw_only=True):
    # Of processes, and of containers with the network of their host; other containers' ports are given by the engine.
    service_port_first: int = PortRange().first
    service_port_last: int = PortRange().last
    service_publish_at: str = ""  # the address of this host at which containers' ports are published; "": the node's

    def __post_init__(self) -> None:
        if not 1024 <= self.service_port_first <= self.service_port_last <= 65_535:
            raise ValueError(
                f"service_port_first {self.service_port_first} and service_port_last {self.service_port_last}:"
                " not 1024 <= first <= last <= 65535"
            )

    def ports_of(self, node_id: str) -> PortRange:
        return PortRange(first=self.service_port_first, last=self.service_port_last, lane=lane_of(node_id))


class ExecutorSettings(msgspec.Struct, frozen=True, kw_only=True):
    connections: Connections = Connections()
    node_id: str
    pool: str = "default"
    address: str = "127.0.0.1"  # where other nodes reach this one
    rack: str = ""  # nodes that name the same rack are nearer to each other than to all others
    labels: tuple[str, ...] = ()  # `zone=a` or `nvlink`: jobs choose nodes by them
    taints: tuple[str, ...] = ()  # likewise; only jobs that tolerate them all start here
    home: Path
    checkpoints: Path | None = None  # None: in the home
    results: Path | None = None  # likewise
    secrets_folder: Path | None = None  # None: in memory with plain processes, in the home with containers
    runtime: str = "process"  # or docker
    emulated_gpus: int = 0
    topology: Path | None = None  # a file that `nvidia-smi topo -m` wrote; None: the driver is asked
    numa: str = "cpus"  # a run with GPUs of one NUMA node gets CPUs there; `pin`: memory there alone too; off: neither
    cpus: float = 0.0  # 0: those of the host
    memory: int = 0
    volumes_allowed: tuple[str, ...] = ()
    volumes: dict[Token, OwnedVolume] = {}  # folders that jobs may have by their name
    ulimits_max: dict[str, int | str] = {}  # the most that a job may set as its `ulimits`
    sync_seconds: float = 2.0
    fence_seconds: float = 90.0
    fence_grace_max: float = 30.0
    drift_seconds: float = 10.0  # how late a node's clocks and ticks may be; the guard waits for half of it
    fencing: bool = True  # false, for the experiment that proves the audit: jobs may run twice
    guard: bool = True  # false, likewise: nothing fences an executor that hangs
    still_seconds: float = 60.0  # times without work are reported in multiples of this
    lease_seconds: float = 150.0  # the same as the scheduler's
    stop_jobs_on_exit: bool = False
    ending_file: Path | None = None  # while it exists, the node announces its end: its runs go elsewhere
    logs: RetentionLimits = RetentionLimits()
    checkpoints_kept_days: float = 0.0  # after a node last had a run of the job; 0: for ever
    checkpoints_bytes_max: int = 0  # the folders of all jobs together; 0: no bound
    results_kept_days: float = 30.0  # likewise
    results_bytes_max: int = 0
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    cgroups: bool = True  # for the process runtime
    ignore_images: bool = False  # by the process runtime
    shares: str = "auto"  # how jobs are held to their shares of a GPU: hook, time-slice (not at all) or auto
    containers: ContainerSettings = ContainerSettings()
    serving: ServingSettings = ServingSettings()
    entering: SessionSettings = SessionSettings()
    data: DataSettings = DataSettings()

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
        if self.still_seconds < 1:
            raise ValueError(f"still_seconds {self.still_seconds:g} is less than 1")
        if self.sync_seconds * 3 > self.fence_seconds:
            raise ValueError(f"fence_seconds {self.fence_seconds:g} leaves no time for three syncs")
        logs = self.logs
        if 0 < logs.log_bytes_max < LOG_BYTES_LEAST or 0 < logs.logs_bytes_max < LOG_BYTES_LEAST:
            raise ValueError(f"log_bytes_max and logs_bytes_max are 0 or at least {LOG_BYTES_LEAST}")
        if logs.logs_kept_days < 0 or logs.log_bytes_max < 0 or logs.logs_bytes_max < 0:
            raise ValueError("logs_kept_days, log_bytes_max and logs_bytes_max are not negative")
        kept = ("checkpoints_kept_days", "checkpoints_bytes_max", "results_kept_days", "results_bytes_max")
        if self.containers.images_kept_days < 0 or any(getattr(self, name) < 0 for name in kept):
            raise ValueError(f"images_kept_days, {', '.join(kept)} are not negative")
        if self.numa not in NUMA_CHOICES:
            raise ValueError(f"numa is one of {', '.join(NUMA_CHOICES)}, not {self.numa}")
        if self.shares not in CHOICES:
            raise ValueError(f"shares is one of {', '.join(CHOICES)}, not {self.shares}")
        for name, words in (("labels", self.labels), ("taints", self.taints)):
            try:
                labels_of(words)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        if len(self.volumes) > VOLUMES_MAX:
            raise ValueError(f"volumes are {len(self.volumes)}; at most {VOLUMES_MAX} are offered")
        check(self.volumes, str(self.home.absolute()))
        try:
            ulimits_of(self.ulimits_max)
        except ValueError as error:
            raise ValueError(f"ulimits_max: {error}") from error
        if self.runtime not in ("process", "docker"):
            raise ValueError(f"runtime is process or docker, not {self.runtime}")
