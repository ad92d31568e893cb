"""The views of services that users get."""

import hashlib
from collections.abc import Mapping

import msgspec

from weft.domain.cluster import Node
from weft.domain.job import Cause, Job, JobEvent
from weft.messages.http.services import (
    EndpointsView,
    EndpointView,
    LoanView,
    RequestsView,
    ServiceView,
    UnreadyView,
    UpdateView,
)
from weft.store import GatewayStore
from weft.store.tenants import Access
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.endings import last_cause
from weftd.gateway.readmodel.visibility import may_see
from weftd.gateway.thinking.requests import is_kept

UNATTAINABLE, SHEDDING = "unattainable", "shedding"  # codes of findings on services, which their views have by name
NAMED_MAX = 20  # lenders
UNREADY_MAX = 3  # replicas whose reason for not being ready is shown
NO_NAMES: Mapping[str, str] = {}


def service_view(
    job: Job, cluster: LiveCluster, *, names: Mapping[str, str] = NO_NAMES, sized_for: Cause | None = None
) -> ServiceView | None:
    """The view of a job that serves requests; None for other jobs. `names`: names of the lenders that the caller may
    see."""
    rules = job.spec.service
    if rules is None:
        return None
    live, roles = cluster.serving, job.spec.roles.values()
    heard = [] if job.state.final else live.endpoints(job)
    granted = sum(job.granted.values()) if job.state.holding else 0
    is_known = not granted or live.hears_of(job)
    requests = None if job.state.final else live.requests(job)
    sentences = {finding.code: finding.sentence for finding in cluster.findings_on(job)}
    return ServiceView(
        wanted=sum(job.wanted.values()),
        granted=granted,
        ready=sum(one.ready and not one.draining for _, one in heard) if is_known else None,
        draining=sum(one.draining for _, one in heard),
        least=sum(role.replicas.least for role in roles),
        most=sum(role.replicas.most for role in roles),
        url=live.url(job),
        public=rules.public,
        revision=job.revision,
        update=_update(job),
        requests=requests,
        objective=job.spec.objective,
        kept=is_kept(requests, job.spec.objective),
        unattainable=sentences.get(UNATTAINABLE, "") if _is_asked(requests) else "",
        shedding=sentences.get(SHEDDING, ""),
        sized_for=sized_for,
        loans=tuple(
            LoanView(
                lender=loan.lender,
                name=names.get(loan.lender, ""),
                rank=loan.rank,
                gpus=loan.gpus,
                ranks=loan.ranks,
                since=loan.since,
            )
            for loan in job.loans
        ),
        unready=tuple(
            UnreadyView(rank=one.rank, why=one.why, since=one.started_at)
            for _, one in heard
            if one.why and not one.draining
        )[:UNREADY_MAX],
    )


def _is_asked(requests: RequestsView | None) -> bool:
    """True if requests come, as far as is known. An unreachable objective also shows a load."""
    return requests is None or bool(requests.arrived or requests.in_flight or requests.queued)


def _update(job: Job) -> UpdateView | None:
    """The update in progress: replicas still run an older revision, or no replica of the newest was ready yet."""
    if not job.revisions or job.state.final or job.placement is None:
        return None
    newest, staying = job.revisions[-1], job.placement.staying
    replaced = sum(allocation.revision == newest.number for allocation in staying)
    if replaced == len(staying) and newest.back_to is None:
        return None
    return UpdateView(
        revision=newest.number, replaced=replaced, replicas=len(staying), since=newest.at, back_to=newest.back_to
    )


def endpoints_view(job: Job, nodes: Mapping[str, Node], cluster: LiveCluster) -> EndpointsView:
    """Where the replicas of a job listen: the address is its node's in the store, the port what the node reports."""
    rules = job.spec.service
    found = sorted(cluster.serving.endpoints(job), key=lambda each: each[0].rank)
    view = EndpointsView(
        job_id=job.id,
        name=job.name,
        digest="",
        url=cluster.serving.url(job),
        token=rules is not None and not rules.public,
        endpoints=tuple(
            EndpointView(
                epoch=endpoint.epoch,
                rank=endpoint.rank,
                node_id=allocation.node_id,
                address=nodes[allocation.node_id].address,
                port=endpoint.port,
                ready=endpoint.ready and not endpoint.draining,
                draining=endpoint.draining,
                revision=allocation.revision,
                since=endpoint.ready_at or endpoint.started_at,
                why=endpoint.why,
            )
            for allocation, endpoint in found
            if allocation.node_id in nodes
        ),
    )
    digest = hashlib.sha256(msgspec.json.encode(view)).hexdigest()[:32]
    return msgspec.structs.replace(view, digest=digest)


async def whole_service(store: GatewayStore, cluster: LiveCluster, job: Job, who: Access) -> ServiceView | None:
    """The same view with data from the store: names of its lenders, and the reason for its size."""
    if job.spec.service is None:
        return None
    names: dict[str, str] = {}
    for lender in list(dict.fromkeys(loan.lender for loan in job.loans))[:NAMED_MAX]:
        other = await store.job(lender)
        if other is not None and may_see(who, other.tenant):
            names[lender] = other.name
    sized_for = await last_cause(store, job, [JobEvent.SCALED]) if job.spec.is_service else None
    return service_view(job, cluster, names=names, sized_for=sized_for)
