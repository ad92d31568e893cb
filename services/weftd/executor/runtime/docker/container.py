"""Turns an order into the engine's arguments for a container: name, labels, limits, mounts, devices and network."""

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from docker import APIClient
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit
from msgspec import Struct, structs

from weft.domain.cluster import Gpu
from weft.domain.object_store.urls import MOUNT_VARIABLE, OUTPUT_VARIABLE, variable_of
from weft.domain.ulimits import NO_LIMIT
from weft.messages.nodes import Members, StartRun
from weftd.executor.files.home import MEMBERS
from weftd.executor.machine.environment import RunFacts, environment
from weftd.executor.machine.node import NodeFacts, Refusal, gpus_of, meets_at_its_port, named_paths, volume_source
from weftd.executor.machine.ulimits import CONTAINERS_MAX, check_ulimits
from weftd.executor.runs import RunKey
from weftd.executor.runtime.docker.labels import FIRST_PROCESS, STOP_SIGNAL, labels, signal_number
from weftd.executor.runtime.docker.settings import ContainerSettings
from weftd.executor.shares.backend import NOTHING, Attached
from weftd.executor.thinking.pinning import Pin
from weftd.executor.thinking.rounding import CPU_STEPS, MEMORY_BYTES_MIN, quota

# Never rotate, whatever the engine's default: rotation would lose output that is not yet copied.
_WITHOUT_END = "1000000g"
# The file of this driver holds every byte; read over the engine's API, it loses the ends of long lines.
LOG_BY_FILE = LogConfig(type="local", config={"max-size": _WITHOUT_END, "max-file": "1", "compress": "false"})
# This driver spoils bytes that are not UTF-8, such as half a letter where the engine cuts a long line.
LOG_BY_ASKING = LogConfig(type="json-file", config={"max-size": _WITHOUT_END})

HOST_NETWORK = "host"
CHECKPOINTS_INSIDE = "/weft/checkpoints"
RESULTS_INSIDE = "/weft/results"
RUN_INSIDE = "/weft/run"
SECRETS_INSIDE = "/weft/secrets"
FILES_INSIDE = "/workspace"  # those that went along, unless the job has a workdir
SLOWDOWNS_INSIDE = "/weft/emulated"
INIT_INSIDE = "/weft/init"
READ_BY_THE_HOOK = frozenset({"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS"})


class Joined(Struct, frozen=True, kw_only=True):
    """The network of a run, and the way its ranks reach each other."""

    network: str
    named: bool  # ranks of this network are reached by the name of their container
    published: bool = False  # rank 0 is reached at its host's port, too: ranks may be on several hosts


class ServedAt(Struct, frozen=True, kw_only=True):
    """How a container serves requests. `port`: where it listens. `publish_at`: the address of its host at which that
    port is published; empty: it has the network of its host."""

    port: int
    publish_at: str = ""


class Host(Struct, frozen=True, kw_only=True):
    """The settings and facts that all containers of a node share.

    `injection`: how the engine gives GPUs to a container. `init`: the path of our first process of each container;
    empty: the engine's own.
    """

    node: NodeFacts
    settings: ContainerSettings
    injection: str
    log: LogConfig
    init: str = ""


class Folders(Struct, frozen=True, kw_only=True):
    """The host's folders that a run may see."""

    run: str
    files: str
    secrets: str
    slowdowns: str


def container_name(key: RunKey) -> str:
    return f"weft-{key}"


def gang_network(key: RunKey) -> str:
    return f"weft-{key.job_id}-{key.epoch}"


def container_arguments(
    client: APIClient,
    order: StartRun,
    host: Host,
    folders: Folders,
    joined: Joined,
    *,
    attached: Attached = NOTHING,
    served: ServedAt | None = None,
    pin: Pin | None = None,
) -> dict[str, Any]:
    """The arguments of `create_container`, to be completed by `with_first_process`. Raises Refusal."""
    key, node, settings = RunKey.of(order), host.node, host.settings
    if not order.image:
        raise Refusal("this node runs jobs in containers, and the job names no image")
    check_ulimits(order.ulimits, {**CONTAINERS_MAX, **node.ulimits_max})
    gpus, paths = gpus_of(order, node), named_paths(order, node)
    files_at = (order.workdir or FILES_INSIDE) if order.context else None
    mounts = [
        Mount(CHECKPOINTS_INSIDE, f"{node.checkpoints}/{order.job_id}", type="bind"),
        Mount(RESULTS_INSIDE, f"{node.results}/{order.job_id}", type="bind"),
        Mount(RUN_INSIDE, folders.run, type="bind"),
        *([Mount(INIT_INSIDE, host.init, type="bind", read_only=True)] if host.init else []),
        *([Mount(SECRETS_INSIDE, folders.secrets, type="bind", read_only=True)] if order.secret_files else []),
        *([Mount(files_at, folders.files, type="bind")] if files_at else []),
        *(
            [Mount(SLOWDOWNS_INSIDE, folders.slowdowns, type="bind", read_only=True)]
            if any(gpu.emulated for gpu in gpus)
            else []
        ),
        *(
            Mount(volume.target, volume_source(volume, node.volumes_allowed), type="bind", read_only=volume.read_only)
            for volume in order.volumes
        ),
        *(
            Mount(volume.inside, paths[volume.name], type="bind", read_only=volume.read_only)
            for volume in order.named_volumes
        ),
        *(Mount(path, folder, type="bind", read_only=True) for path, folder in order.mounted.items()),
        *(Mount(path, folder, type="bind") for path, folder in order.written.items()),
        *(Mount(each.target, each.source, type="bind", read_only=each.read_only) for each in attached.mounts),
    ]
    memory = max(order.memory, MEMORY_BYTES_MIN)
    on_host = joined.network == HOST_NETWORK
    published = _published(order, joined, served)
    host_config = client.create_host_config(
        cpu_period=CPU_STEPS,  # never `nano_cpus`: a limit can be changed only in the style that it was created with
        cpu_quota=quota(order.cpus),
        mem_limit=memory,
        memswap_limit=memory,
        cpuset_cpus=None if pin is None else pin.cpus,
        cpuset_mems=None if pin is None else pin.memory or None,
        shm_size=order.shm or None,
        pids_limit=settings.pids_max,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        privileged=False,
        init=not host.init,  # one of the two reaps, and forwards SIGTERM, which a command does not receive as PID 1
        read_only=order.read_only,
        tmpfs={"/tmp": "rw,nosuid,nodev,mode=1777"} if order.read_only else None,
        mounts=mounts,
        network_mode=joined.network,
        port_bindings=published or None,
        log_config=host.log,
        restart_policy={"Name": "no"},
        ulimits=_ulimits(order, gpus),
        **_gpu_arguments(gpus, host.injection),
    )
    return {
        "image": order.image,
        "command": list(order.command) or None,
        **({} if order.entrypoint is None else {"entrypoint": list(order.entrypoint) or [""]}),  # [""] takes it away
        "name": container_name(key),
        "hostname": None if on_host else container_name(key)[:63],
        "user": settings.job_user or None,
        "working_dir": files_at or order.workdir,
        "environment": attached.added_to(
            _environment(order, gpus, joined, host.injection, node=node, settings=settings, served=served)
        ),
        "labels": labels(key, node_id=node.node_id, cluster=settings.cluster, grace=order.grace, named=joined.named),
        "ports": list(published) if published else None,
        "host_config": host_config,
    }


def with_first_process(
    arguments: Mapping[str, Any], order: StartRun, image: Mapping[str, Any], *, init: bool
) -> dict[str, Any]:
    """The arguments with the whole command line and the stop signal, for which the image's configuration is needed.

    `init`: our first process comes before the command. SIGTERM asks it to stop, and it sends the stop signal.
    Raises Refusal.
    """
    signalled = order.stop_signal or str(image.get("StopSignal") or "")
    number = signal_number(signalled) or signal.SIGTERM
    asks = "SIGTERM" if init or number == signal.SIGTERM else str(int(number))
    completed = {**arguments, "labels": {**arguments["labels"], STOP_SIGNAL: asks}, "stop_signal": asks}
    if not init:
        return completed
    command = command_line(order.entrypoint, order.command, image)
    if not command:
        raise Refusal("no command specified: neither the job nor its image has one")
    completed["labels"][FIRST_PROCESS] = "1"
    return {**completed, "entrypoint": [INIT_INSIDE, str(int(number)), *command], "command": None}


def command_line(entrypoint: Sequence[str] | None, command: Sequence[str], image: Mapping[str, Any]) -> tuple[str, ...]:
    """The command line of a container, as the engine makes it. `entrypoint`: the job's, in place of the image's and of
    the image's command."""
    if entrypoint is not None:
        return (*entrypoint, *command)
    return (*(image.get("Entrypoint") or ()), *(command or image.get("Cmd") or ()))


def _published(order: StartRun, joined: Joined, served: ServedAt | None) -> dict[int | str, Any]:
    """By port of the container: where the host has it. None in place of a port: the engine chooses one."""
    published: dict[int | str, Any] = {}
    if joined.published and meets_at_its_port(order):
        published[order.master_port] = order.master_port
    if served is not None and served.publish_at:
        door = (served.publish_at, None)
        before = published.get(served.port)
        published[served.port] = door if before is None else [before, door]
    return published


def update_arguments(*, cpus: float | None, memory: int | None) -> dict[str, Any]:
    """The arguments of `update_container`: the same style of limit as at creation, or the engine refuses."""
    arguments: dict[str, Any] = {}
    if cpus is not None:
        arguments["cpu_period"] = CPU_STEPS
        arguments["cpu_quota"] = quota(cpus)
    if memory is not None:
        arguments["mem_limit"] = arguments["memswap_limit"] = max(memory, MEMORY_BYTES_MIN)
    return arguments


def injection_for(info: Mapping[str, Any]) -> str:
    """How this engine gives a GPU to a container: CDI if it supports that, else NVIDIA's hook, else device nodes."""
    if info.get("CDISpecDirs"):
        return "cdi"
    return "nvidia" if "nvidia" in info.get("Runtimes", {}) else "devices"


def members_inside(order: StartRun, node: NodeFacts, settings: ContainerSettings, *, named: bool) -> Members:
    """The order's members, as the run reaches them from inside its container. Needs an order with members."""
    members = order.members
    assert members is not None
    if not named:
        return members
    everywhere = bool(settings.job_network)  # a network of the owner's, across hosts; a gang's own is of one host
    ranks = tuple(
        structs.replace(
            member, address=container_name(RunKey(order.job_id, order.epoch, member.rank)), port=order.master_port
        )
        if everywhere or member.address == node.address
        else member
        for member in members.ranks
    )
    return structs.replace(members, ranks=ranks)


def _peers_by_name(order: StartRun, node: NodeFacts, settings: ContainerSettings) -> Mapping[str, tuple[str, ...]]:
    peers: dict[str, tuple[str, ...]] = {}
    if order.members is not None:
        for member in members_inside(order, node, settings, named=True).ranks:
            peers[member.role] = (*peers.get(member.role, ()), member.address)
        return peers
    rank = 0  # ranks are numbered role by role, in the order of `peers`
    for role, addresses in order.peers.items():
        keys = [RunKey(order.job_id, order.epoch, rank + place) for place in range(len(addresses))]
        peers[role] = tuple(container_name(key) for key in keys)
        rank += len(addresses)
    return peers


def _environment(
    order: StartRun,
    gpus: tuple[Gpu, ...],
    joined: Joined,
    injection: str,
    *,
    node: NodeFacts,
    settings: ContainerSettings,
    served: ServedAt | None,
) -> dict[str, str]:
    peers: Mapping[str, tuple[str, ...]] = order.peers
    master, own = order.master_address, ""
    if joined.named:
        peers = _peers_by_name(order, node, settings)
        master = container_name(RunKey(order.job_id, order.epoch, 0))
        own = container_name(RunKey.of(order))
    elif joined.network == HOST_NETWORK:
        own = node.address
    facts = RunFacts(
        gpus=gpus,
        checkpoints=CHECKPOINTS_INSIDE,
        results=RESULTS_INSIDE,
        secrets=SECRETS_INSIDE,
        progress=f"{RUN_INSIDE}/progress",
        progress_socket=f"{RUN_INSIDE}/progress.sock",
        members=f"{RUN_INSIDE}/{MEMBERS}",
        own_address=own,
        slowdowns=SLOWDOWNS_INSIDE,
        master_address=master,
        peers=peers,
        task_ports_differ=not joined.named,
        service_port=None if served is None else served.port,
        volumes={volume.variable: volume.inside for volume in order.named_volumes}
        | {variable_of(MOUNT_VARIABLE, path): path for path in order.mounted}
        | {variable_of(OUTPUT_VARIABLE, path): path for path in order.written},
    )
    env = {name: value for name, value in environment(order, facts).items() if name not in READ_BY_THE_HOOK}
    # If NVIDIA's hook is the engine's default, it gives the GPUs in this variable, whether image or job has set it.
    real = [gpu.uuid for gpu in gpus if not gpu.emulated]
    env["NVIDIA_VISIBLE_DEVICES"] = ",".join(real) if real and injection == "nvidia" else "void"
    return env


def _ulimits(order: StartRun, gpus: tuple[Gpu, ...]) -> list[Ulimit]:
    """The job's own; with real GPUs locked memory has no bound, as NCCL pins memory: the memory limit still holds."""
    pinned = {"memlock": NO_LIMIT} if any(not gpu.emulated for gpu in gpus) else {}
    return [Ulimit(name=name, soft=limit, hard=limit) for name, limit in {**pinned, **order.ulimits}.items()]


def _gpu_arguments(gpus: tuple[Gpu, ...], injection: str) -> dict[str, Any]:
    """The arguments that give real GPUs to the container; an emulated GPU needs none."""
    real = [gpu for gpu in gpus if not gpu.emulated]
    if not real:
        return {}
    if injection == "cdi":
        return {
            "device_requests": [DeviceRequest(driver="cdi", device_ids=[f"nvidia.com/gpu={gpu.uuid}" for gpu in real])]
        }
    if injection == "nvidia":
        return {
            "device_requests": [
                DeviceRequest(driver="nvidia", device_ids=[gpu.uuid for gpu in real], capabilities=[["gpu"]])
            ]
        }
    nodes = [f"/dev/nvidia{gpu.index}" for gpu in real] + ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    return {"devices": [f"{path}:{path}:rwm" for path in nodes]}
