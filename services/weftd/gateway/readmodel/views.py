"""The views of jobs, nodes and the cluster for users. Pure, except for the newest messages in `LiveCluster`."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from heapq import nsmallest

from msgspec import structs

from weft.domain.cluster import Node
from weft.domain.job import FINAL, Allocation, Cause, Job
from weft.domain.sizes import how_resized, is_elastic, sizes_of
from weft.messages.http import (
    ClusterView,
    GpuHeldBy,
    GpuScoreView,
    GpuView,
    JobView,
    LimitsView,
    NodeView,
    RunView,
    Totals,
    VolumeView,
)
from weft.messages.http.services import ServiceView
from weft.messages.nodes import RunProgressed
from weft.messages.signals import CurvePoint, Finding, GpuSample, ShareSample
from weft.planning.reasons.closed import silent_seconds
from weft.store.tenants import Access
from weft.version import version
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.service_views import SHEDDING, UNATTAINABLE, service_view
from weftd.gateway.readmodel.visibility import may_see, seen_of

SHOWN_JOBS_MAX = 100
NOTHING_SLOW: Mapping[str, GpuScoreView] = {}

Held = tuple[Job, Allocation]


def job_view(
    job: Job,
    cluster: LiveCluster,
    *,
    whole: bool = False,
    curve: tuple[CurvePoint, ...] = (),
    ended_for: Cause | None = None,
    service: ServiceView | None = None,
) -> JobView:
    """A job's view; `whole`: with its specification, its placement, its runs, its verdicts and the findings on it.
    `service`: replaces the short view of a service in lists."""
    allocations = job.placement.allocations if job.placement is not None else ()
    spec, heard = job.spec, {} if job.state in FINAL else cluster.progress(job)
    gpus, replicas = size_shown(job)
    sized = whole or is_elastic(spec)
    return JobView(
        id=job.id,
        name=spec.name,
        tenant=job.tenant,
        kind=spec.kind,
        pool=spec.pool,
        state=job.state,
        epoch=job.epoch,
        version=job.version,
        priority=job.priority,
        preemptible=spec.preemptible,
        gpus=gpus,
        replicas=replicas,
        seq=job.seq,
        submitted_at=job.submitted_at,
        submitter=job.submitter,
        since=job.since,
        started_at=job.started_at,
        ended_at=job.ended_at,
        not_before=job.not_before or None,
        attempts=job.attempts,
        exit_code=job.exit_code,
        waiting_for=job.waiting_for,
        stopping_for=job.stopping_for,
        nodes=tuple(dict.fromkeys(allocation.node_id for allocation in allocations)),
        progress=progress_shown(job, heard),
        placement=job.placement if whole else None,
        runs=tuple(_run_view(job, allocation, heard, cluster) for allocation in allocations) if whole else (),
        spec=spec if whole else None,
        verdicts=cluster.verdicts(job) if whole and job.state.holding else (),
        findings=_findings(job, cluster) if whole and job.state.holding else (),
        curve=curve,
        ended_for=ended_for,
        held_seconds=job.attained_seconds,
        size=sizes_of(job) if sized else {},
        resize=how_resized(spec) if sized else None,
        service=service or service_view(job, cluster),
        hung_since=job.hung_since,
    )


def _findings(job: Job, cluster: LiveCluster) -> tuple[Finding, ...]:
    """The findings on a job, except those in the view of its service."""
    return tuple(finding for finding in cluster.findings_on(job) if finding.code not in (UNATTAINABLE, SHEDDING))


def size_shown(job: Job) -> tuple[int | float, int]:
    """The GPUs and replicas that a job holds or held last; for a waiting job, those that it wants."""
    if job.placement is not None and job.placement.allocations:
        return job.gpus_held, len(job.placement.allocations)
    roles = [(job.spec.roles[name], count) for name, count in job.wanted.items()]
    gpus = sum(count * (role.gpus if role.share is None else role.share.request) for role, count in roles)
    return gpus, sum(job.wanted.values())


def progress_shown(job: Job, heard: Mapping[int, RunProgressed]) -> dict[str, float]:
    """The progress of the lowest rank that reported any, else the progress that is stored."""
    return heard[min(heard)].progress if heard else job.progress


def _run_view(job: Job, allocation: Allocation, heard: Mapping[int, RunProgressed], cluster: LiveCluster) -> RunView:
    told = heard.get(allocation.rank)
    return RunView(
        rank=allocation.rank,
        role=allocation.role,
        node_id=allocation.node_id,
        gpus=allocation.gpus,
        cpus=allocation.cpus,
        memory=allocation.memory,
        progress=told.progress if told else {},
        use=cluster.run_sample(allocation.node_id, job.id, job.epoch, allocation.rank),
        egress=allocation.egress,
        asked=_asked(job, allocation),
        pace=told.pace if told else None,
        disbelieved=told.disbelieved if told else 0,
        extra=allocation.extra,
        leaving=allocation.leaving,
        share=allocation.share,
        revision=allocation.revision,
    )


def _asked(job: Job, allocation: Allocation) -> LimitsView | None:
    """The limits that the rank asked for, if its present ones differ."""
    role = job.spec.roles[allocation.role]
    asked = LimitsView(cpus=role.cpus, memory=role.memory_bytes, egress=role.egress_bytes)
    has = LimitsView(cpus=allocation.cpus, memory=allocation.memory, egress=allocation.egress)
    return None if has == asked else asked


def node_views(
    nodes: Sequence[Node],
    holding: Iterable[Job],
    cluster: LiveCluster,
    who: Access,
    *,
    slowest: Mapping[str, GpuScoreView] = NOTHING_SLOW,
    now: float | None = None,
    spares: Collection[str] = (),
) -> tuple[NodeView, ...]:
    """The nodes' views. `slowest`: by node, its slowest GPU's score. `now`: the time, to find silent nodes; None for
    views of the past. `spares`: ids of spare nodes."""
    held: dict[str, list[Held]] = {}
    for job in holding:
        for allocation in job.held:
            held.setdefault(allocation.node_id, []).append((job, allocation))
    return tuple(
        structs.replace(
            _node_view(node, held.get(node.id, []), cluster, who, slowest.get(node.id), now),
            silent_seconds=0.0 if now is None else silent_seconds(node, now),
            spare=node.id in spares,
        )
        for node in nodes
    )


def _node_view(
    node: Node,
    held: Sequence[Held],
    cluster: LiveCluster,
    who: Access,
    slowest: GpuScoreView | None,
    now: float | None,
) -> NodeView:
    sample = cluster.sample(node.id)
    theirs = {job.id for job, _ in held if may_see(who, job.tenant)}
    uses = {gpu.index: _seen_by(who, gpu, theirs) for gpu in sample.gpus} if sample is not None else {}
    shares = {(run.job_id, run.epoch, run.rank): run.share for run in sample.runs} if sample is not None else {}
    holders: dict[int, list[GpuHeldBy]] = {}
    for job, allocation in held:
        for index in allocation.gpus:
            got = shares.get((job.id, job.epoch, allocation.rank))
            holders.setdefault(index, []).append(_held_by(job, allocation, got, who))
    sharing = {index: _sharing(of_gpu) for index, of_gpu in holders.items()}
    return NodeView(
        id=node.id,
        pool=node.pool,
        address=node.address,
        runtime=node.runtime,
        ready=node.ready,
        drained=node.drained,
        drain=node.drain,
        labels=node.labels,
        taints=node.taints,
        seen_at=node.seen_at,
        cpus=node.capacity.cpus,
        cpus_allocated=sum(allocation.cpus for _, allocation in held),
        memory=node.capacity.memory,
        memory_allocated=sum(allocation.memory for _, allocation in held),
        gpus=tuple(
            GpuView(
                index=gpu.index,
                uuid=gpu.uuid,
                model=gpu.model,
                memory=gpu.memory,
                emulated=gpu.emulated,
                held_by=(sharing[gpu.index] or holders[gpu.index])[0] if gpu.index in holders else None,
                sharing=sharing.get(gpu.index, ()),
                use=uses.get(gpu.index),
                health=node.health_of(gpu.index),
                unused_seconds=_unused_seconds(node, gpu.index, held, cluster, now),
            )
            for gpu in node.capacity.gpus
        ),
        not_enforced=node.not_enforced,
        topology=node.capacity.topology,
        use=sample.host if sample is not None else None,
        sampled_at=sample.at if sample is not None else None,
        slowest=slowest,
        volumes=tuple(
            VolumeView(name=volume.name, read_only=volume.read_only)
            for volume in node.capacity.volumes
            if who.admin or volume.is_for(who.tenant)
        ),
        health=node.own_health,
    )


def _unused_seconds(
    node: Node, gpu: int, held: Sequence[Held], cluster: LiveCluster, now: float | None
) -> float | None:
    """The seconds for which a GPU has been held and not used; None if it is free or used, or this is unknown."""
    unused = None if now is None else cluster.unused_seconds(node.id, gpu)
    since = [job.held_since for job, allocation in held if gpu in allocation.gpus] if unused is not None else []
    if not since or unused is None or now is None:
        return None
    return max(0.0, min(unused, now - min(since)))


def _seen_by(who: Access, gpu: GpuSample, theirs: Container[str]) -> GpuSample:
    """A GPU's sample without processes that belong to other tenants or to no job."""
    if who.admin or not gpu.processes:
        return gpu
    return structs.replace(gpu, processes=tuple(one for one in gpu.processes if one.job_id in theirs))


def _held_by(job: Job, allocation: Allocation, got: ShareSample | None, who: Access) -> GpuHeldBy:
    if not may_see(who, job.tenant):
        return GpuHeldBy(job_id=job.id, share=allocation.share)
    return GpuHeldBy(
        job_id=job.id,
        name=job.name,
        tenant=job.tenant,
        epoch=job.epoch,
        rank=allocation.rank,
        share=allocation.share,
        used=None if got is None else got.used,
    )


def _sharing(holders: Sequence[GpuHeldBy]) -> tuple[GpuHeldBy, ...]:
    """The holders of shares, the largest first."""
    shares = [(-one.share.request, one.job_id, one.rank, one) for one in holders if one.share is not None]
    return tuple(one for *_, one in sorted(shares, key=lambda share: share[:3]))


def cluster_view(
    nodes: Sequence[Node],
    holding: Sequence[Job],
    queued: Sequence[Job],
    cluster: LiveCluster,
    who: Access,
    *,
    now: float,
    live: bool = False,
) -> ClusterView:
    """The cluster's view; `live`: now, not at a moment in the past."""
    views = node_views(nodes, holding, cluster, who, now=now if live else None)
    mine_holding, mine_queued = seen_of(holding, who), seen_of(queued, who)
    first = nsmallest(SHOWN_JOBS_MAX, mine_queued, key=lambda job: (-job.priority, job.seq))
    return ClusterView(
        at=now,
        version=version(),
        totals=_totals(views),
        nodes=views,
        states=dict(Counter(job.state.value for job in (*mine_holding, *mine_queued))),
        waiting=dict(Counter(job.waiting_for.code.value for job in mine_queued if job.waiting_for is not None)),
        running=tuple(job_view(job, cluster) for job in mine_holding[:SHOWN_JOBS_MAX]),
        queued=tuple(job_view(job, cluster) for job in first),
        findings=cluster.findings() if who.admin else (),
    )


def with_reasons(view: ClusterView, waiting: Sequence[Job]) -> ClusterView:
    """The same view, with the reasons why these jobs wait."""
    causes = {job.id: job.waiting_for for job in waiting}
    queued = tuple(structs.replace(job, waiting_for=causes.get(job.id, job.waiting_for)) for job in view.queued)
    return structs.replace(view, queued=queued)


def _totals(nodes: Sequence[NodeView]) -> Totals:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    return Totals(
        nodes=len(nodes),
        nodes_ready=sum(node.ready and not node.drained for node in nodes),
        gpus=len(gpus),
        gpus_emulated=sum(gpu.emulated for gpu in gpus),
        gpus_held=sum(gpu.held_by is not None for gpu in gpus),
        cpus=sum(node.cpus for node in nodes),
        cpus_allocated=sum(node.cpus_allocated for node in nodes),
        memory=sum(node.memory for node in nodes),
        memory_allocated=sum(node.memory_allocated for node in nodes),
    )
