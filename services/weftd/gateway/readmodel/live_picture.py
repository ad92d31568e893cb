"""The state of the cluster for open dashboards: one copy for all readers, encoded once, and its changes.

Each pass checks only what may have changed: jobs with a new version, their present and former nodes, nodes with a new
sample or score. A reader sees the jobs of its tenant; of other tenants' jobs it sees only the ids and the GPUs that
they hold.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

import msgspec
from msgspec import Struct

from weft.domain.cluster import Gpu, Node
from weft.domain.health import HealthRecord
from weft.domain.job import Allocation, Job, JobState
from weft.domain.quantity import duration_seconds
from weft.domain.shares import WHOLE
from weft.messages.http import Totals
from weft.messages.live import LiveGpu, LiveHolder, LiveJob, LiveNode, LiveService
from weft.messages.signals import GpuSample, GpuScore, NodeSampled
from weft.planning.reasons.closed import silent_seconds
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.service_views import service_view
from weftd.gateway.readmodel.views import progress_shown, size_shown

T = TypeVar("T", bound=float)

SAMPLED_AT_ONCE = 256  # nodes whose samples one pass reads, in turn: no pass delays other requests for long
PARTS = 100  # use and memory are rounded to hundredths, so invisible changes are not sent
NO_SCORES: Mapping[int, "BelievedSlow"] = {}


class LiveCounts:
    """Numbers of jobs by kind, by tenant and in total."""

    def __init__(self, found: Iterable[tuple[str, str]] = ()) -> None:
        """`found`: the tenant and the kind of each."""
        self._tenants: dict[str, dict[str, int]] = {}
        for (tenant, kind), count in sorted(Counter(found).items()):
            self._tenants.setdefault(tenant, {})[kind] = count
        every = Counter[str]()
        for of_tenant in self._tenants.values():
            every.update(of_tenant)
        self._every = dict(sorted(every.items()))

    def of(self, tenant: str | None) -> dict[str, int]:
        """None: all tenants."""
        return self._every if tenant is None else self._tenants.get(tenant, {})


class BelievedSlow(Struct, frozen=True):
    """Estimated slowdown of a GPU, and whether it became slow suddenly."""

    believed: float
    quarantined: bool


class ClusterSeen(Struct, frozen=True, kw_only=True):
    """State of the store: every node, the jobs that hold resources, and numbers of waiting jobs by the code of their
    cause ("": unknown)."""

    nodes: Sequence[Node]
    holding: Sequence[Job]
    waiting: LiveCounts
    now: float


class LiveChange:
    """Differences between two states: encoded nodes, and jobs by tenant. Each view compares counts itself."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        self.nodes_gone: list[str] = []
        self.totals = b""  # empty: as they were
        self._jobs: dict[str, list[ShownJob]] = {}
        self._jobs_gone: dict[str, list[ShownJob]] = {}

    def add(self, shown: "ShownJob", *, gone: bool = False) -> None:
        (self._jobs_gone if gone else self._jobs).setdefault(shown.job.tenant, []).append(shown)

    def jobs(self, tenant: str | None) -> Iterable["ShownJob"]:
        """None: of all tenants."""
        return chain.from_iterable(self._jobs.values()) if tenant is None else self._jobs.get(tenant, ())

    def jobs_gone(self, tenant: str | None) -> Iterable["ShownJob"]:
        return chain.from_iterable(self._jobs_gone.values()) if tenant is None else self._jobs_gone.get(tenant, ())


class ShownJob:
    """One job that holds resources, as its own tenant and as administrators see it."""

    __slots__ = ("_encoded", "job", "shown")

    def __init__(self, job: Job, shown: LiveJob) -> None:
        self.job = job
        self.shown = shown
        self._encoded: dict[bool, bytes] = {}

    def entry(self, *, mine: bool) -> bytes:
        """`"ID": {…}`, a part of an object."""
        if mine not in self._encoded:
            told = self.shown if mine else msgspec.structs.replace(self.shown, mine=False)
            self._encoded[mine] = msgspec.json.encode(self.job.id) + b":" + msgspec.json.encode(told)
        return self._encoded[mine]


class _ShownNode:
    __slots__ = ("encoded", "node", "sample", "sums")

    def __init__(self, node: Node, sample: NodeSampled | None, encoded: bytes, sums: Totals) -> None:
        self.node = node
        self.sample = sample
        self.encoded = encoded
        self.sums = sums


class LivePicture:
    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._nodes: dict[str, _ShownNode] = {}
        self._jobs: dict[str, ShownJob] = {}
        self._held: dict[str, dict[str, list[Allocation]]] = {}  # by node, then by job: the resources it holds there
        self._scores: dict[str, dict[int, BelievedSlow]] = {}
        self._next = 0  # index of the node with which the next pass over samples begins
        self._waiting = LiveCounts()
        self._states = LiveCounts()
        self.totals = msgspec.json.encode(_sum([]))

    # what it shows

    def nodes(self) -> Iterable[bytes]:
        return (shown.encoded for shown in self._nodes.values())

    def jobs(self, tenant: str | None) -> Iterable[ShownJob]:
        """The jobs that hold resources; None: of all tenants."""
        return (shown for shown in self._jobs.values() if tenant is None or shown.job.tenant == tenant)

    def states(self, tenant: str | None) -> dict[str, int]:
        """Number of jobs in each state."""
        queued = sum(self._waiting.of(tenant).values())
        return {**self._states.of(tenant), **({JobState.QUEUED.value: queued} if queued else {})}

    def waiting(self, tenant: str | None) -> dict[str, int]:
        """Number of waiting jobs by cause."""
        return {code: count for code, count in self._waiting.of(tenant).items() if code}

    # what changes it

    def look(self, seen: ClusterSeen, *, sampled: bool, scores: Iterable[GpuScore] | None = None) -> LiveChange:
        """Update from the store. `sampled`: also from the newest progress, and samples of SAMPLED_AT_ONCE nodes.
        `scores`: all scores, if they were read again."""
        change = LiveChange()
        touched = self._take_scores(scores, seen.now) if scores is not None else set[str]()
        touched |= self._take_jobs(seen.holding, change, sampled=sampled)
        self._take_nodes(seen, change, touched, sampled=sampled)
        self._waiting = seen.waiting
        if change.nodes or change.nodes_gone:
            totals = msgspec.json.encode(_sum(shown.sums for shown in self._nodes.values()))
            if totals != self.totals:
                self.totals = change.totals = totals
        return change

    def _take_scores(self, scores: Iterable[GpuScore], now: float) -> set[str]:
        """Returns the nodes whose scores have changed."""
        found: dict[str, dict[int, BelievedSlow]] = {}
        for score in scores:
            of_node = found.setdefault(score.node_id, {})
            known = of_node.get(score.gpu_index)
            quarantined = score.quarantined_until is not None and score.quarantined_until > now
            believed = round(score.believed, 3)
            if known is not None:
                believed, quarantined = max(believed, known.believed), quarantined or known.quarantined
            of_node[score.gpu_index] = BelievedSlow(believed, quarantined)
        earlier, self._scores = self._scores, found
        return {node_id for node_id in found.keys() | earlier.keys() if found.get(node_id) != earlier.get(node_id)}

    def _take_jobs(self, holding: Sequence[Job], change: LiveChange, *, sampled: bool) -> set[str]:
        """Returns the nodes whose held resources have changed."""
        touched: set[str] = set()
        gone = self._jobs.keys() - {job.id for job in holding}
        for job_id in gone:
            shown = self._jobs.pop(job_id)
            change.add(shown, gone=True)
            touched |= self._let_go(shown.job)
        moved = bool(gone)
        for job in holding:
            known = self._jobs.get(job.id)
            # In a store that was restored a job may come to the same version again with other ranks.
            is_new = known is None or (known.job.version, known.job.placement) != (job.version, job.placement)
            if not (is_new or sampled):
                continue
            shown_now = self._job(job)
            if is_new:
                moved = True
                if known is not None:
                    touched |= self._let_go(known.job)
                touched |= self._hold(job)
            if known is None or known.shown != shown_now:
                self._jobs[job.id] = shown = ShownJob(job, shown_now)
                change.add(shown)
            elif is_new:
                known.job = job
        if moved:
            self._states = LiveCounts((shown.job.tenant, shown.job.state.value) for shown in self._jobs.values())
        return touched

    def _hold(self, job: Job) -> set[str]:
        nodes: set[str] = set()
        for allocation in job.held:
            nodes.add(allocation.node_id)
            self._held.setdefault(allocation.node_id, {}).setdefault(job.id, []).append(allocation)
        return nodes

    def _let_go(self, job: Job) -> set[str]:
        nodes = {allocation.node_id for allocation in job.held}
        for node_id in nodes:
            of_node = self._held.get(node_id, {})
            of_node.pop(job.id, None)
            if not of_node:
                self._held.pop(node_id, None)
        return nodes

    def _take_nodes(self, seen: ClusterSeen, change: LiveChange, touched: set[str], *, sampled: bool) -> None:
        turns = self._turns(len(seen.nodes)) if sampled else frozenset[int]()
        for node_id in self._nodes.keys() - {node.id for node in seen.nodes}:
            del self._nodes[node_id]
            change.nodes_gone.append(node_id)
        for place, node in enumerate(seen.nodes):
            known, has_turn = self._nodes.get(node.id), place in turns
            sample = self._cluster.sample(node.id) if has_turn or known is None else known.sample
            is_same = known is not None and node.id not in touched and sample is known.sample and node == known.node
            if is_same and not (has_turn and silent_seconds(node, seen.now)):
                continue
            shown, sums = self._node(node, sample, seen.now)
            encoded = msgspec.json.encode(shown)
            if known is None or known.encoded != encoded:
                change.nodes.append(encoded)
            self._nodes[node.id] = _ShownNode(node, sample, encoded, sums)

    def _turns(self, count: int) -> frozenset[int]:
        """Indices of the nodes whose samples are read now: all of them, or some in turn."""
        if count <= SAMPLED_AT_ONCE:
            return frozenset(range(count))
        begin, self._next = self._next, (self._next + SAMPLED_AT_ONCE) % count
        return frozenset((begin + each) % count for each in range(SAMPLED_AT_ONCE))

    # how one is shown

    def _node(self, node: Node, sample: NodeSampled | None, now: float) -> tuple[LiveNode, Totals]:
        held = [(job_id, each) for job_id, of_job in self._held.get(node.id, {}).items() for each in of_job]
        holders: dict[int, list[LiveHolder]] = {}
        for job_id, allocation in held:
            part = 1.0 if allocation.share is None else allocation.share.request / WHOLE
            for index in allocation.gpus:
                holders.setdefault(index, []).append(LiveHolder(job=job_id, share=part))
        samples = {gpu.index: gpu for gpu in sample.gpus} if sample is not None else {}
        slow = self._scores.get(node.id, NO_SCORES)
        silent = silent_seconds(node, now)
        gpus = tuple(
            _gpu(
                gpu,
                samples.get(gpu.index),
                slow.get(gpu.index),
                holders.get(gpu.index, ()),
                out=_out(node.health_of(gpu.index)) if node.health else "",
            )
            for gpu in node.capacity.gpus
        )
        shown = LiveNode(
            topology=node.capacity.topology,
            id=node.id,
            pool=node.pool,
            state=_state(node, silent),
            runtime=node.runtime,
            cpus=node.capacity.cpus,
            cpus_allocated=round(sum(allocation.cpus for _, allocation in held), 3),
            memory=node.capacity.memory,
            memory_allocated=sum(allocation.memory for _, allocation in held),
            gpus=gpus,
            silent_seconds=int(silent) if silent else None,
            out=_out(node.own_health),
        )
        return shown, Totals(
            nodes=1,
            nodes_ready=int(node.ready and not node.drained),
            gpus=len(gpus),
            gpus_emulated=sum(gpu.emulated for gpu in gpus),
            gpus_held=sum(bool(gpu.holders) for gpu in gpus),
            cpus=shown.cpus,
            cpus_allocated=shown.cpus_allocated,
            memory=shown.memory,
            memory_allocated=shown.memory_allocated,
        )

    def _job(self, job: Job) -> LiveJob:
        gpus, replicas = size_shown(job)
        return LiveJob(
            name=job.name,
            tenant=job.tenant,
            kind=job.spec.kind,
            state=job.state,
            gpus=gpus,
            replicas=replicas,
            since=job.since,
            progress=progress_shown(job, self._cluster.progress(job)),
            mine=True,
            service=self._service(job),
        )

    def _service(self, job: Job) -> LiveService | None:
        view = service_view(job, self._cluster)
        if view is None:
            return None
        objective, requests = job.spec.objective, view.requests
        seconds = None if requests is None else requests.objective if objective is not None else requests.p99
        return LiveService(
            rate=None if requests is None else round(requests.rate, 2),
            p_ms=None if seconds is None else round(1000 * seconds, 1),
            objective_ms=None if objective is None else round(1000 * duration_seconds(objective.begins), 3),
            ready=view.ready,
            wanted=view.wanted,
            lent=sum(loan.gpus for loan in job.loans),
        )


def waiting_of(queued: Iterable[Job], holding: Iterable[Job]) -> LiveCounts:
    """Jobs that wait, by the code of their cause. The two lists were read one after the other; a job in both has been
    placed meanwhile."""
    placed = {job.id for job in holding}
    return LiveCounts(
        (job.tenant, "" if job.waiting_for is None else job.waiting_for.code.value)
        for job in queued
        if job.id not in placed
    )


def _out(health: HealthRecord | None) -> str:
    """Why a GPU or a node is out of use; empty if it takes new runs."""
    return f"{health.state}: {health.sentence}" if health is not None and health.closed else ""


def _gpu(
    gpu: Gpu,
    sample: GpuSample | None,
    slow: BelievedSlow | None,
    holders: Sequence[LiveHolder],
    *,
    out: str = "",
) -> LiveGpu:
    """The live state of a GPU. Values that its node reports are bounded by the size of the GPU."""
    used = None if sample is None else sample.utilisation
    memory = None if sample is None else sample.memory_used
    step = max(1, gpu.memory // PARTS)
    return LiveGpu(
        index=gpu.index,
        model=gpu.model,
        memory=gpu.memory,
        emulated=gpu.emulated,
        used=None if used is None else round(_between(0.0, used, 1.0), 2),
        memory_used=None if memory is None else min(gpu.memory, _between(0, memory, gpu.memory) // step * step),
        slow=None if slow is None else slow.believed,
        quarantined=slow is not None and slow.quarantined,
        holders=tuple(sorted(holders, key=lambda holder: (-holder.share, holder.job))),
        out=out,
    )


def _between(least: T, value: T, most: T) -> T:
    return max(least, min(value, most))


def _state(node: Node, silent: float) -> str:
    if not node.ready:
        return "lost"
    if silent:
        return "silent"
    if node.drained:
        return "drained"
    return "quarantined" if _out(node.own_health) else "ready"


def _sum(parts: Iterable[Totals]) -> Totals:
    every = list(parts)
    return Totals(**{name: sum(getattr(part, name) for part in every) for name in Totals.__struct_fields__})
