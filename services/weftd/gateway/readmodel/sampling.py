"""Figures sampled by this gateway: of nodes and GPUs, jobs, and the cluster."""

import asyncio
from collections.abc import Callable, Mapping

from weft.domain.cluster import Node
from weft.domain.idling import IDLE_USE_MAX
from weft.domain.job import Allocation, Job
from weft.domain.shares import WHOLE
from weft.messages.signals import NodeSampled, RunSample
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.snapshots import Snapshots
from weftd.gateway.thinking.accounting.capacity import model_of
from weftd.gateway.thinking.accounting.used import Used, UsedLedger
from weftd.gateway.thinking.rings import Shelf

NODE_SERIES_MAX = 20_000  # a few kilobytes each once they are full
GPUS_PER_NODE_MAX = 256  # with kept figures
JOB_SERIES_MAX = 5_000
GAP_SECONDS_MAX = 15.0  # longest time between two samples for which the value in between counts as known
AT_ONCE = 32  # nodes or jobs, between two pauses in which other work goes on
CLUSTER = "cluster"
WATTS_MAX = 100_000.0  # more is no power of a GPU


class Samples:
    """The figures that this gateway has sampled. Only things that the store knows are kept. A node's report counts for
    itself, its GPUs and its own ranks."""

    def __init__(self) -> None:
        self.nodes = Shelf(NODE_SERIES_MAX, 2 + 2 * GPUS_PER_NODE_MAX)
        self.jobs = Shelf(JOB_SERIES_MAX, 5)
        self.cluster = Shelf(3, 3)
        self.ledger = UsedLedger()
        self._last = 0.0  # when the last sample was taken

    async def take(self, snapshots: Snapshots, live: LiveCluster, *, now: Callable[[], float]) -> None:
        """Sample everything once. Raises StoreUnavailableError."""
        there = await snapshots.nodes.aside()
        nodes, pools = there.all, snapshots.pools_of(there)
        holding = [job for pool in pools for job in await snapshots.holding(pool, aside=True)]
        queued = sum([len(await snapshots.queued(pool, aside=True)) for pool in pools])
        at = now()
        seen: dict[str, NodeTold] = {}
        for number, node in enumerate(nodes, 1):
            if (told := live.sample(node.id)) is not None:
                seen[node.id] = NodeTold(node, told)
                self.nodes.put(node.id, at, _of_node(node, told))
            await _pause(number)
        lasted = at - self._last if 0 < at - self._last <= GAP_SECONDS_MAX else 0.0
        self._last = at
        for number, job in enumerate(holding, 1):
            self.jobs.put(job.id, at, {**_of_job(job, live), **_used_by(job, seen)})
            if lasted:
                enter(self.ledger, job, seen, at=at, lasted=lasted)
            await _pause(number)
        known = [part for node in seen.values() for gpu in node.gpus.values() if (part := part_of(gpu)) is not None]
        held = sum(job.gpus_held for job in holding)
        self.cluster.put(CLUSTER, at, {"held": held, "used": sum(known) if known else None, "queued": queued})


async def _pause(number: int) -> None:
    """Let other work go on, now and then."""
    if number % AT_ONCE == 0:
        await asyncio.sleep(0)


def _of_node(node: Node, told: NodeSampled) -> dict[str, float | None]:
    host = told.host
    found: dict[str, float | None] = {
        "cpu": None if host.cpus_used is None or not host.cpus else _most(host.cpus_used / host.cpus),
        "memory": _most(host.memory_used / host.memory_total) if host.memory_total else None,
    }
    real = {gpu.index for gpu in node.capacity.gpus[:GPUS_PER_NODE_MAX]}
    for gpu in told.gpus:
        if gpu.index in real:
            found[f"gpu.{gpu.index}.used"] = part_of(gpu.utilisation)
            found[f"gpu.{gpu.index}.memory_used"] = gpu.memory_used
    return found


def _of_job(job: Job, cluster: LiveCluster) -> dict[str, float | None]:
    replicas = len(job.placement.staying) if job.placement is not None else 0
    if job.spec.is_service:
        requests = cluster.serving.requests(job)
        if requests is None:
            return {"replicas": replicas}
        seconds = requests.p99 if job.spec.objective is None else requests.objective
        return {"rate": requests.rate, "p_ms": None if seconds is None else seconds * 1000, "replicas": replicas}
    ranks = cluster.progress(job).values()
    paces = [run.pace.steps_rate for run in ranks if run.pace is not None]
    steps = [run.progress["step"] for run in ranks if "step" in run.progress]
    return {"pace": min(paces, default=None), "progress": min(steps, default=None), "replicas": replicas}


def _used_by(job: Job, seen: Mapping[str, "NodeTold"]) -> dict[str, float | None]:
    """The CPU and the memory that all ranks of the job use together, as far as their nodes report it."""
    places = [(seen[one.node_id], one.rank) for one in job.held if one.node_id in seen]
    runs = [node.runs.get((job.id, job.epoch, rank)) for node, rank in places]
    cpus = [run.cpus_used for run in runs if run is not None and run.cpus_used is not None and run.cpus_used >= 0]
    memory = [run.memory_used for run in runs if run is not None and run.memory_used is not None]
    return {"cpus_used": sum(cpus) if cpus else None, "memory_used": sum(memory) if memory else None}


def _most(part: float) -> float | None:
    """A fraction from 0 to 1; a measurement slightly above 1 counts as 1."""
    return min(1.0, part) if part >= 0 else None


class NodeTold:
    """The samples that a node reported about its GPUs and runs."""

    def __init__(self, node: Node, told: NodeSampled) -> None:
        self.models = {gpu.index: model_of(gpu) for gpu in node.capacity.gpus}
        self.gpus = {gpu.index: gpu.utilisation for gpu in told.gpus if gpu.index in self.models}
        self.watts = {gpu.index: gpu.power_watts for gpu in told.gpus if gpu.index in self.models}
        self.runs: dict[tuple[str, int, int], RunSample] = {(run.job_id, run.epoch, run.rank): run for run in told.runs}


def enter(ledger: UsedLedger, job: Job, seen: Mapping[str, NodeTold], *, at: float, lasted: float) -> None:
    """Enter into the ledger the known use of each GPU by the job in the last seconds."""
    micros = round(lasted * 1e6)
    found: dict[str, Used] = {}
    for allocation in job.held:
        node = seen.get(allocation.node_id)
        for index in allocation.gpus if node is not None else ():
            assert node is not None
            used = _used(job, allocation, index, node)
            if used is None or index not in node.models:
                continue
            into = found.setdefault(node.models[index], Used())
            part = WHOLE if allocation.share is None else allocation.share.request
            into.sampled += part * micros
            into.used += round(used * WHOLE) * micros
            into.idle += part * micros if used <= IDLE_USE_MAX else 0
            watts = node.watts.get(index)
            if allocation.share is None and watts is not None and 0 <= watts <= WATTS_MAX:
                into.powered += part * micros
                into.joules += watts * lasted
    for model, more in found.items():
        ledger.put((job.id, job.epoch, model), round(at * 1e6), more)


def part_of(value: float | None) -> float | None:
    """A fraction of the time, 0 to 1; None if it is unknown or not a fraction."""
    return value if value is not None and 0 <= value <= 1 else None


def _used(job: Job, allocation: Allocation, index: int, node: NodeTold) -> float | None:
    if allocation.share is None:
        return part_of(node.gpus.get(index))
    run = node.runs.get((job.id, job.epoch, allocation.rank))
    return None if run is None or run.share is None else part_of(run.share.used)
