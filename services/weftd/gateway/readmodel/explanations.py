"""Explains why a job waits, or runs where it runs, as its tenant may see it: other tenants' jobs appear only as ids."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from weft.domain.classes import class_of
from weft.domain.cluster import Node
from weft.domain.job import Cause, Job, JobEvent, JobState
from weft.domain.quantity import size_text
from weft.domain.sizes import is_elastic
from weft.messages.eta import Estimate, Sooner
from weft.messages.events import Event
from weft.messages.http import PRIORITY_MAX
from weft.messages.http.explanation import ClosedSeen, Explanation, HolderSeen, LentSeen, QuotaSeen, ShareSeen
from weft.messages.nodes import DATA_COPIED, DATA_TO_COPY
from weft.planning.eta.sooner import Advised
from weft.planning.eta.starts import Foreseen, PoolToCome
from weft.planning.eta.told import agreed, ends_of, to_come
from weft.planning.reasons.explain import explain
from weft.planning.reasons.slow import SlowGpus
from weft.store import GatewayStore
from weft.store.tenants import Access
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.endings import endings, last_cause
from weftd.gateway.readmodel.estimates import Estimates
from weftd.gateway.readmodel.service_views import whole_service
from weftd.gateway.readmodel.shares import shares_seen
from weftd.gateway.readmodel.snapshots import Snapshots
from weftd.gateway.readmodel.visibility import may_see, seen_of

JOB_ID_PREFIX = "j-"
OF_ANOTHER = "a job of another tenant"
_JOB_ID = re.compile(r"(?<![\w(-])j-[a-z0-9]+(?![\w-])")


class _NodeTold(msgspec.Struct, frozen=True):
    """The part of a node's event that an explanation uses."""

    sentence: str = ""


async def explanation(
    store: GatewayStore,
    snapshots: Snapshots,
    cluster: LiveCluster,
    estimates: Estimates,
    job: Job,
    who: Access,
    *,
    now: float,
    priority_max: int = PRIORITY_MAX,
) -> Explanation:
    """The explanation of a job. `priority_max`: the highest priority that the caller may request."""
    if job.state.final:
        cause = (await endings(store, [job], every=True)).get(job.id)
        told = explain(job, nodes=(), holding=(), queued=(), now=now, ended_for=cause)
        return msgspec.structs.replace(told, submitter=job.submitter, scheduled=job.spec.scheduled)
    nodes, holding, queued = await snapshots.nodes.get(), list[Job](), list[Job]()
    if job.state is JobState.QUEUED:
        holding, queued = await asyncio.gather(snapshots.holding(job.pool), snapshots.queued(job.pool))
    elif job.spec.is_service or is_elastic(job.spec):  # it may have too little, or lend to services
        holding = await snapshots.holding(job.pool)
    policy = await store.policy(pool=job.pool)
    quotas = await snapshots.quotas(job.pool) if job.state is JobState.QUEUED else []
    slow = await _slow_gpus(snapshots, job, now) if job.placement is not None else None
    there, places = nodes.of(job.pool), snapshots.places(job.pool, policy)
    pool = await estimates.pool_of(
        job, nodes=there, holding=holding, queued=queued, policy=policy, quotas=quotas, places=places
    )
    full = await asyncio.to_thread(  # it looks at every job of the pool: other requests must not wait for that
        explain,
        job,
        nodes=there,
        holding=holding,
        queued=queued,
        now=now,
        policy=policy,
        slow=slow,
        quotas=quotas,
        places=places,
    )
    advised = Advised(priority_max, lambda other: other.name if may_see(who, other.tenant) else OF_ANOTHER)
    eta, helps, ends = await asyncio.to_thread(_foreseen, job, pool, advised, [held.job_id for held in full.holders])
    names = names_seen(who, holding, queued) if "j-" in full.sentence else {}
    sentence = with_names(full.sentence, names) + _copied(job, cluster)
    full = msgspec.structs.replace(full, sentence=sentence)
    return msgspec.structs.replace(
        agreed(full, None if eta is None else eta.estimate),
        eta=None if eta is None else estimates.told(job, eta),
        sooner=helps,
        holders=tuple(_seen_by(who, msgspec.structs.replace(held, eta=ends.get(held.job_id))) for held in full.holders),
        lent=tuple(_lent_seen_by(who, lent) for lent in full.lent),
        quota=None if full.quota is None else _quota_seen_by(who, full.quota),
        closed=await _with_drains(store, full.closed, who),
        stopped_for=await _stopped_for(store, job),
        sized_for=await last_cause(store, job, [JobEvent.SCALED]) if full.size else None,
        resized_for=await last_cause(store, job, [JobEvent.RESIZED, JobEvent.RESTARTED]) if full.size else None,
        noted=await last_cause(store, job, [JobEvent.NOTED]) if job.state.holding else None,
        shares=await _shares(snapshots, cluster, job, who, nodes.of(job.pool)),
        service=await whole_service(store, cluster, job, who),
        submitter=job.submitter,
        scheduled=job.spec.scheduled,
    )


def _copied(job: Job, cluster: LiveCluster) -> str:
    """Progress of the copies of data that a job waits for."""
    if job.state not in (JobState.PLACED, JobState.STARTING):
        return ""
    told = [run.progress for run in cluster.progress(job).values()]
    copied, size = (sum(progress.get(name, 0.0) for progress in told) for name in (DATA_COPIED, DATA_TO_COPY))
    return f"; copies its data: {size_text(copied)} of {size_text(size)}" if size else ""


def _foreseen(
    job: Job, make: Callable[[], PoolToCome], advised: Advised, holders: Sequence[str]
) -> tuple[Foreseen | None, tuple[Sooner, ...], dict[str, Estimate]]:
    """Estimates of the job's start or end, changes that would help, and the ends of jobs that hold resources it
    needs."""
    pool = make()
    eta, helps = to_come(job, lambda: pool, advised)
    return eta, helps, ends_of(holders, pool)


async def _shares(
    snapshots: Snapshots, cluster: LiveCluster, job: Job, who: Access, nodes: Sequence[Node]
) -> tuple[ShareSeen, ...]:
    """Shares of GPUs that its ranks hold, if it shares GPUs."""
    if not job.state.holding or all(allocation.share is None for allocation in job.held):
        return ()
    return shares_seen(job, await snapshots.holding(job.pool), {node.id: node for node in nodes}, cluster, who)


async def _with_drains(store: GatewayStore, closed: tuple[ClosedSeen, ...], who: Access) -> tuple[ClosedSeen, ...]:
    """Nodes with the time of each drain, and for an administrator with its author."""
    drained = [each.node_id for each in closed if each.drained]
    told = {event.subject_id: event for event in await store.last_told("nodes", drained, events=["drained"])}
    return tuple(
        msgspec.structs.replace(each, since=event.at, by=_drained_by(event) if who.admin else "")
        if (event := told.get(each.node_id)) is not None
        else each
        for each in closed
    )


def _drained_by(event: Event) -> str:
    return msgspec.json.decode(event.data, type=_NodeTold).sentence.rpartition(" by ")[2]


async def _stopped_for(store: GatewayStore, job: Job) -> Cause | None:
    """Why a requeued job was stopped; a preempting job of the same tenant is named."""
    if job.state is not JobState.QUEUED or not job.epoch:
        return None
    cause = await last_cause(store, job, [JobEvent.REQUEUED])
    if cause is None or not cause.by.startswith(JOB_ID_PREFIX):
        return cause
    by = await store.job(cause.by)
    known = by is not None and by.tenant == job.tenant
    return msgspec.structs.replace(cause, by=f"{by.name} ({by.id})") if by is not None and known else cause


async def _slow_gpus(snapshots: Snapshots, job: Job, now: float) -> SlowGpus:
    """The present scores of the pool's GPUs, for this job's class."""
    scores, classes = await asyncio.gather(snapshots.scores(job.pool), snapshots.classes(job.pool))
    job_class = class_of(job.spec, {one.workload: one.job_class for one in classes})
    return SlowGpus({(score.node_id, score.gpu_index): score for score in scores if score.job_class == job_class}, now)


def _lent_seen_by(who: Access, lent: LentSeen) -> LentSeen:
    return lent if may_see(who, lent.tenant) else msgspec.structs.replace(lent, name="", tenant="")


def _quota_seen_by(who: Access, quota: QuotaSeen) -> QuotaSeen:
    """The quota without the names of other tenants that borrow."""
    hidden = (one if may_see(who, one.tenant) else msgspec.structs.replace(one, tenant="") for one in quota.borrowers)
    return msgspec.structs.replace(quota, borrowers=tuple(hidden))


def _seen_by(who: Access, holder: HolderSeen) -> HolderSeen:
    return holder if may_see(who, holder.tenant) else msgspec.structs.replace(holder, name="", tenant="", submitter="")


def names_seen(who: Access, *jobs: Sequence[Job]) -> dict[str, str]:
    """Names of the jobs that the caller may see, by id."""
    return {job.id: job.name for some in jobs for job in seen_of(some, who)}


def with_names(sentence: str, names: Mapping[str, str]) -> str:
    """`waits until train has succeeded` for `waits until j-… has succeeded`. An id in brackets follows its name."""
    return _JOB_ID.sub(lambda found: names.get(found[0], found[0]), sentence)
