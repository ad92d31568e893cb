"""Why a job waits, or is where it is, as its tenant may see it: of another's job that holds what it needs, the id."""

import asyncio

import msgspec

from libs.domain.job import Job, JobState
from libs.planning.explain import Explanation, HolderSeen, explain
from libs.store import Access
from services.gateway.snapshots import Snapshots
from services.gateway.views import may_see


async def explanation(snapshots: Snapshots, job: Job, who: Access, *, now: float) -> Explanation:
    nodes, holding, queued = await snapshots.nodes.get(), list[Job](), list[Job]()
    if job.state is JobState.QUEUED:
        holding, queued = await asyncio.gather(snapshots.holding(job.pool), snapshots.queued(job.pool))
    full = explain(job, nodes=nodes.of(job.pool), holding=holding, queued=queued, now=now)
    return msgspec.structs.replace(full, holders=tuple(_seen_by(who, holder) for holder in full.holders))


def _seen_by(who: Access, holder: HolderSeen) -> HolderSeen:
    return holder if may_see(who, holder.tenant) else msgspec.structs.replace(holder, name="", tenant="")
