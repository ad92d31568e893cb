"""Why a job waits, or is where it is, as its tenant may see it: of another's job that holds what it needs, the id."""

import asyncio

import msgspec

from libs.domain.job import Cause, Job, JobState
from libs.planning.explain import Explanation, HolderSeen, explain
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
    full = explain(job, nodes=nodes.of(job.pool), holding=holding, queued=queued, now=now, policy=policy)
    return msgspec.structs.replace(full, holders=tuple(_seen_by(who, holder) for holder in full.holders))


def _seen_by(who: Access, holder: HolderSeen) -> HolderSeen:
    return holder if may_see(who, holder.tenant) else msgspec.structs.replace(holder, name="", tenant="")
