"""Shares of GPUs that jobs hold, and their recent GPU time, as their tenants may see it."""

from collections.abc import Iterable, Iterator, Mapping

from weft.domain.cluster import NO_SHARES, NOT_HELD_TO_SHARES, Node
from weft.domain.job import Allocation, Job
from weft.messages.http.explanation import BesideSeen, ShareSeen
from weft.messages.signals import ShareSample
from weft.store.tenants import Access
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.visibility import may_see

SHOWN_MAX = 16  # ranks of a job

_Gpu = tuple[str, int]
_Held = tuple[Job, Allocation]


def shares_seen(
    job: Job, holding: Iterable[Job], nodes: Mapping[str, Node], cluster: LiveCluster, who: Access
) -> tuple[ShareSeen, ...]:
    """The shares of a job's first ranks, and the shares beside them. `holding`: the jobs that hold GPUs of its pool."""
    placed = job.placement.allocations if job.placement is not None else ()
    mine = [allocation for allocation in placed if allocation.share is not None][:SHOWN_MAX]
    gpus = {_gpu(allocation) for allocation in mine}
    there: dict[_Gpu, list[_Held]] = {}
    for other, allocation in _shares_of(holding):
        if (gpu := _gpu(allocation)) in gpus:
            there.setdefault(gpu, []).append((other, allocation))
    return tuple(_seen(job, allocation, there.get(_gpu(allocation), ()), nodes, cluster, who) for allocation in mine)


def _got(cluster: LiveCluster, job: Job, allocation: Allocation) -> ShareSample | None:
    """GPU time that a rank got of its share, by the newest sample of its node."""
    sample = cluster.run_sample(allocation.node_id, job.id, job.epoch, allocation.rank)
    return None if sample is None else sample.share


def _shares_of(jobs: Iterable[Job]) -> Iterator[_Held]:
    return ((job, allocation) for job in jobs for allocation in job.held if allocation.share is not None)


def _gpu(allocation: Allocation) -> _Gpu:
    return allocation.node_id, allocation.gpus[0]


def _seen(
    job: Job,
    allocation: Allocation,
    there: Iterable[_Held],
    nodes: Mapping[str, Node],
    cluster: LiveCluster,
    who: Access,
) -> ShareSeen:
    share, node = allocation.share, nodes.get(allocation.node_id)
    assert share is not None, "only shares are seen"
    others = [held for held in there if (held[0].id, held[1].rank) != (job.id, allocation.rank)]
    return ShareSeen(
        rank=allocation.rank,
        node_id=allocation.node_id,
        gpu=allocation.gpus[0],
        share=share,
        enforced=node is None or not {NO_SHARES, NOT_HELD_TO_SHARES} & set(node.not_enforced),
        got=_got(cluster, job, allocation),
        beside=tuple(_beside(other, held, cluster, who) for other, held in others),
    )


def _beside(job: Job, allocation: Allocation, cluster: LiveCluster, who: Access) -> BesideSeen:
    share = allocation.share
    assert share is not None, "only shares are beside shares"
    if not may_see(who, job.tenant):
        return BesideSeen(job_id=job.id, share=share)
    sample = _got(cluster, job, allocation)
    return BesideSeen(
        job_id=job.id,
        name=job.name,
        tenant=job.tenant,
        rank=allocation.rank,
        share=share,
        used=None if sample is None else sample.used,
    )
