"""Amounts that a job requests and holds under quotas: thousandths of GPUs, in total and by model."""

from collections.abc import Iterable, Mapping, Sequence

from weft.domain.cluster import Node
from weft.domain.job import Allocation, Job
from weft.domain.quotas import ALL, Amounts, Quota
from weft.domain.shares import WHOLE
from weft.planning.quota.ledger import Ledger, TenantHolds
from weft.planning.resource_request import ResourceRequest


def wanted_by(resource_request: ResourceRequest) -> Amounts:
    """The GPUs with which a job of this shape starts. A model counts only if the job names no other."""
    found: Amounts = {ALL: 0}
    for want in resource_request:
        request = want.request
        each = request.gpus * WHOLE if request.share is None else request.share.request
        found[ALL] += want.least * each
        if len(request.models) == 1 and each:
            model = request.models[0]
            found[model] = found.get(model, 0) + want.least * each
    return found


def amounts_in(allocations: Iterable[Allocation], nodes: Mapping[str, Node]) -> Amounts:
    """Amounts that these jobs hold, by actual model. GPUs of a removed node count to no model."""
    found: Amounts = {ALL: 0}
    models: dict[str, dict[int, str]] = {}
    for allocation in allocations:
        if allocation.node_id not in models:
            node = nodes.get(allocation.node_id)
            models[allocation.node_id] = {gpu.index: gpu.model for gpu in node.capacity.gpus} if node else {}
        each = WHOLE if allocation.share is None else allocation.share.request
        for gpu in allocation.gpus:
            found[ALL] += each
            if (model := models[allocation.node_id].get(gpu)) is not None:
                found[model] = found.get(model, 0) + each
    return found


def holds(
    tenant: str, place: Sequence[Allocation], nodes: Mapping[str, Node], *, since: float, preemptible: bool
) -> TenantHolds:
    core = [one for one in place if not one.extra]
    amounts = amounts_in(place, nodes)
    return TenantHolds(
        tenant, amounts, since, preemptible, None if len(core) == len(place) else amounts_in(core, nodes)
    )


def held_by(job: Job, nodes: Mapping[str, Node]) -> TenantHolds:
    return holds(job.tenant, job.held, nodes, since=job.held_since, preemptible=job.spec.preemptible)


def lendable(nodes: Iterable[Node]) -> Amounts:
    """The GPUs of the pool, of all models and of each."""
    found: Amounts = {ALL: 0}
    for node in nodes:
        for gpu in node.capacity.gpus:
            found[ALL] += WHOLE
            found[gpu.model] = found.get(gpu.model, 0) + WHOLE
    return found


def ledger_of(quotas: Iterable[Quota], nodes: Mapping[str, Node], holding: Iterable[Job]) -> Ledger:
    """GPUs that each tenant holds at one moment."""
    ledger = Ledger(quotas)
    for job in holding:
        ledger.hold(job.id, held_by(job, nodes))
    return ledger
