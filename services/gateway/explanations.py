"""Why a job waits, or is where it is, as its tenant may see it: of another's job that holds what it needs, the id."""

import asyncio

import msgspec

from libs.domain.classes import class_of
from libs.domain.job import Cause, Job, JobState
from libs.planning.explain import Explanation, HolderSeen, explain
from libs.planning.slow import SlowGpus
from libs.store import Access, GatewayStore
from services.gateway.snapshots import Snapshots
from services.gateway.views import may_see


class _Told(msgspec.Struct, frozen=True):
    """What of a job's last event is needed here."""

    cause: Cause


async def explanation(store: GatewayStore, snapshots: Snapshots, job: Job, who: Access, *, now: float) -> Explanation:
    if job.state.final:
        last = (await store.story(job.id, after=job.version - 1))[-1:]
        cause = msgspec.json.decode(last[0].data, type=_Told).cause if last else None
        return explain(job, nodes=(), holding=(), queued=(), now=now, ended_for=cause)
    nodes, holding, queued = await snapshots.nodes.get(), list[Job](), list[Job]()
    if job.state is JobState.QUEUED:
        holding, queued = await asyncio.gather(snapshots.holding(job.pool), snapshots.queued(job.pool))
    policy = await store.policy(pool=job.pool)
    slow = await _slow_gpus(snapshots, job, now) if job.placement is not None else None
    full = explain(job, nodes=nodes.of(job.pool), holding=holding, queued=queued, now=now, policy=policy, slow=slow)
    return msgspec.structs.replace(full, holders=tuple(_seen_by(who, holder) for holder in full.holders))


async def _slow_gpus(snapshots: Snapshots, job: Job, now: float) -> SlowGpus:
    """What is known now of the pool's GPUs, for the class of jobs that this one is of."""
    scores, classes = await asyncio.gather(snapshots.scores(job.pool), snapshots.classes(job.pool))
    job_class = class_of(job.spec, {one.workload: one.job_class for one in classes})
    return SlowGpus({(score.node_id, score.gpu_index): score for score in scores if score.job_class == job_class}, now)


def _seen_by(who: Access, holder: HolderSeen) -> HolderSeen:
    return holder if may_see(who, holder.tenant) else msgspec.structs.replace(holder, name="", tenant="")
