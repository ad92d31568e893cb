"""Reads the limits of running containers, and changes them without a restart.

CPU and memory are changed by the engine's own update, or by writing the control groups' files. The engine's update
makes runc rewrite the groups' device rules. These do not have a GPU that NVIDIA's hook gave to the container without
runc's knowledge (`--gpus`, without CDI): the container would lose it. So if GPUs are given that way, containers with
a GPU are changed by files only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.domain.cluster import Gpu
from weftd.executor.runs import Limits, RunKey
from weftd.executor.runtime.docker.container import HOST_NETWORK, update_arguments
from weftd.executor.runtime.docker.egress import Egress
from weftd.executor.runtime.docker.engine import DockerEngine, EngineRefusedError
from weftd.executor.runtime.docker.rates import UNSURE, EgressRates
from weftd.executor.runtime.limits import groups
from weftd.executor.serving.listening import Listening, listening
from weftd.executor.thinking.rounding import fault, lacking, settled, shown

NANO = 1_000_000_000
FROM_ANOTHER = "container:"
OUT_OF_REACH = "its control groups are out of reach, and the engine's own update is not to be used"


class Held(Struct, frozen=True, kw_only=True):
    """The facts of a running container that its limits depend on."""

    id: str
    pid: int
    groups: Mapping[str, str]  # if they can be reached
    own_network: bool
    holds_gpus: bool  # real GPUs, by a request to the engine
    said: Limits  # by the engine's answer
    shm: int = 0  # the size of its /dev/shm

    def listening(self) -> list[Listening] | None:
        """Where it listens in its own network; None where its process is not one that is seen from here."""
        return listening(f"/proc/{self.pid}/net") if self.pid and groups.is_of(self.pid, self.id) else None


def held_of(inspected: Mapping[str, Any]) -> Held:
    """Parse the engine's answer about a container."""
    config, pid = inspected["HostConfig"], int(inspected["State"].get("Pid") or 0)
    network = str(config.get("NetworkMode") or "")
    return Held(
        id=inspected["Id"],
        pid=pid,
        groups=groups.find_groups(pid, inspected["Id"]) if pid else {},
        own_network=network not in (HOST_NETWORK, "none") and not network.startswith(FROM_ANOTHER),
        holds_gpus=bool(config.get("DeviceRequests")),
        said=_said(config),
        shm=int(config.get("ShmSize") or 0),
    )


def safe_update(*, gpus: Sequence[Gpu], injection: str) -> bool:
    """True if the engine's update is safe for containers with GPUs of this node: not under NVIDIA's legacy hook.

    Nor is it under that hook without known GPUs: the driver may hang while older containers hold GPUs.
    """
    return injection != "nvidia" or (bool(gpus) and all(gpu.emulated for gpu in gpus))


class Resizing:
    """`limits_by`: auto, engine or files. `safe`: the result of `safe_update` on this node."""

    def __init__(
        self, engine: DockerEngine, rates: EgressRates, *, egress: Egress | None, limits_by: str, safe: bool
    ) -> None:
        self._engine = engine
        self._rates = rates
        self._egress = egress
        self._limits_by = limits_by
        self._safe = safe

    def limits(self, key: RunKey, held: Held) -> Limits:
        """The current limits, from the kernel's files if they can be reached, because these cannot be wrong."""
        found = groups.read_limits(held.groups) if held.groups else held.said
        egress = self._rates.of(key, held.id) if self._egress is not None and held.own_network else None
        return replace(found, egress=egress)

    async def resize(self, key: RunKey, held: Held, limits: Limits) -> str:
        """Change limits. Empty, or which of them stay as they were, and why. The three are independent."""
        if why := fault(limits):
            return why
        limits = settled(limits)
        reasons = []
        if limits.cpus is not None:
            reasons.append(await self._change(held, Limits(cpus=limits.cpus)))
        if limits.memory is not None:
            reasons.append(await self._change(held, Limits(memory=limits.memory)))
        if limits.egress is not None:
            reasons.append(await self._limit_egress(key, held, limits.egress))
        return "; ".join(why for why in reasons if why)

    async def _change(self, held: Held, limits: Limits) -> str:
        by_files = self._limits_by == "files" or (self._limits_by == "auto" and held.holds_gpus and not self._safe)
        if by_files:
            if not held.groups:
                return f"{shown(limits)}: {OUT_OF_REACH}"
            return groups.change(held.groups, limits)
        if limits.memory is not None and (why := await self._too_tight(held, limits.memory)):
            return why
        arguments = update_arguments(cpus=limits.cpus, memory=limits.memory)
        try:
            await self._engine.call(lambda: self._engine.client.update_container(held.id, **arguments))
        except EngineRefusedError as error:
            return f"{shown(limits)}: {error}"
        # An engine may report success and do nothing, such as on a kernel that lacks a feature.
        if held.groups and lacking(groups.read_limits(held.groups), limits) is not None:
            return f"{shown(limits)}: the engine accepted it, but it has no effect"
        return ""

    async def _too_tight(self, held: Held, memory: int) -> str:
        """Why the memory in use would not fit. The engine takes a second to answer, so files are read if possible."""
        has = (groups.read_limits(held.groups) if held.groups else held.said).memory
        if has is not None and memory >= has:
            return ""
        if held.groups:
            return groups.too_tight(groups.working_set(held.groups), memory)
        try:
            used = await self._engine.call(self._working_set, held.id)
        except EngineRefusedError as error:
            return f"memory {memory}: {error}"
        return groups.too_tight(used, memory)

    def _working_set(self, container: str) -> int:
        usage = self._engine.client.stats(container, stream=False, one_shot=True).get("memory_stats", {})
        cache = usage.get("stats", {})
        return int(usage.get("usage", 0)) - int(cache.get("inactive_file", cache.get("total_inactive_file", 0)))

    async def _limit_egress(self, key: RunKey, held: Held, rate: int) -> str:
        if self._egress is None:
            return "egress: this node cannot limit it"
        if not held.own_network:
            return "egress: it has the network of its host"
        try:
            self._rates.note(key, held.id, UNSURE)
            if why := await self._egress.limit(held.id, held.pid, rate):
                return why
            self._rates.note(key, held.id, rate)
        except OSError as error:
            return f"egress: it cannot be recorded: {error.strerror}"
        return ""


def _said(config: Mapping[str, Any]) -> Limits:
    cpus = None
    if config.get("CpuQuota") and config.get("CpuPeriod"):
        cpus = config["CpuQuota"] / config["CpuPeriod"]
    elif config.get("NanoCpus"):
        cpus = config["NanoCpus"] / NANO
    return Limits(cpus=cpus, memory=config.get("Memory") or None)
