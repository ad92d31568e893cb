"""Explains why a job waits, or why it runs where it runs: a stable code, a sentence, numbers, and the jobs that hold
its resources.

It calls the same functions that place jobs, on a snapshot, so its answer is the scheduler's.
"""

from collections.abc import Sequence

from msgspec import structs

from weft.domain.classes import CLASS_LABEL, JOB_CLASSES, class_of, unknown_class
from weft.domain.cluster import Node
from weft.domain.failure import class_of_cause
from weft.domain.job import HELD_FOR, Cause, CauseCode, Job, JobState
from weft.domain.quantity import duration_text
from weft.domain.quotas import ALL, Quota
from weft.domain.sizes import how_resized, is_elastic, sizes_of, why_never
from weft.domain.text import listed, plural
from weft.health.spares import SPARES
from weft.messages.http.explanation import ClosedSeen, Explanation, HolderSeen, SilentSeen
from weft.planning.awaiting import AWAITS_AT
from weft.planning.borrowing import why_nobody_lends
from weft.planning.capacity import FreeCapacity, free_capacity_of
from weft.planning.finding import find
from weft.planning.in_order import KnownPlaces, order_of, shares_of
from weft.planning.jobs import asked_by, ends_at, standing_of
from weft.planning.queue import place_of
from weft.planning.quota.amounts import ledger_of, lendable, wanted_by
from weft.planning.quota.told import quota_seen, quota_sentence, why_held
from weft.planning.reasons.closed import closed_with_room, silent_seconds
from weft.planning.reasons.failures import avoids_text
from weft.planning.reasons.lent import lent_seen
from weft.planning.reasons.pins import in_the_way, with_holders
from weft.planning.reasons.refusals import never_fits, why_not
from weft.planning.reasons.shortages import models_considered
from weft.planning.reasons.slow import SlowGpus
from weft.planning.resource_request import (
    ResourceRequest,
    gpus_in,
    is_pinned,
    one_more,
    resource_request_of_job,
    with_gpus,
)

HOLDERS_MAX = 10
NAMED_MAX = 3
CLOSED_MAX = 10

# It derives these from the reports of nodes, their orders, and the room it keeps for jobs.
_ONLY_THE_SCHEDULER_SEES = frozenset(
    {CauseCode.STILL_RUNS, CauseCode.STORE_RESTORED, CauseCode.MOVED, CauseCode.ORDERS_FULL, *HELD_FOR}
)
_QUOTAS_MATTER = frozenset(
    map(str, (CauseCode.NO_ROOM, CauseCode.HELD_BACK, CauseCode.MAKING_ROOM, CauseCode.FITS, CauseCode.OVER_QUOTA))
)


def explain(
    job: Job,
    *,
    nodes: Sequence[Node],
    holding: Sequence[Job],
    queued: Sequence[Job],
    now: float,
    ended_for: Cause | None = None,
    policy: str = "",
    slow: SlowGpus | None = None,
    quotas: Sequence[Quota] = (),
    places: KnownPlaces | None = None,
) -> Explanation:
    """`nodes`, `holding` (jobs that hold GPUs) and `queued` are the pool's, of one moment; of a placed job that is no
    service and lends nothing, `holding` and `queued` may be empty.

    `ended_for` is the cause of a final job's last event; `policy`, by which the pool is led, as `Policy` writes itself;
    `slow`, what is known now of GPUs for a job of its class; `quotas`, those of the pool; `places`, those that an
    earlier look at the queue found.
    """
    if job.state.final:
        return _of_ended(job, ended_for)
    if job.state is not JobState.QUEUED:
        placed = _with_short(_of_placed(job, slow), job, nodes, holding)
        placed = _with_update(placed, job, nodes, holding)
        return _with_lent(_with_size(_with_class(_with_silent(placed, job, nodes, now), job), job), job, holding)
    order = order_of(policy)
    places = KnownPlaces(order) if places is None or places.order is not order else places
    found = _of_waiting(job, nodes=nodes, holding=holding, queued=queued, now=now, places=places)
    found = _with_quota(structs.replace(found, policy=policy), job, nodes, holding, quotas)
    if avoids := avoids_text(job):
        found = structs.replace(found, sentence=f"{found.sentence}; {avoids}")
    considered = models_considered(resource_request_of_job(job), nodes)
    found = structs.replace(found, sentence=f"{found.sentence}{considered}")
    return _with_lent(_with_size(_with_class(found, job), job), job, holding)


def _of_waiting(
    job: Job, *, nodes: Sequence[Node], holding: Sequence[Job], queued: Sequence[Job], now: float, places: KnownPlaces
) -> Explanation:
    ahead = _ahead_of(job, nodes=nodes, holding=holding, queued=queued, now=now, places=places)
    cause = job.waiting_for
    if job.not_before > now and (cause is None or cause.code is not CauseCode.ORDERS_FULL):
        sentence = f"waits {duration_text(job.not_before - now)} before it is tried again (try {job.attempts + 1})"
        numbers = {"not_before": job.not_before, "attempts": float(job.attempts)}
        return _waiting(job, CauseCode.BACKOFF, sentence, numbers, ahead=ahead, estimate_at=job.not_before)
    if cause is not None and cause.code in _ONLY_THE_SCHEDULER_SEES:
        return _waiting(job, cause.code, cause.sentence, cause.numbers, ahead=ahead)
    too_big = never_fits(job.spec, nodes, job.tenant) if nodes else None
    if too_big is not None:
        return _waiting(job, too_big.code, too_big.sentence, too_big.numbers, ahead=ahead)
    free_capacity = free_capacity_of(nodes, holding)
    resource_request = resource_request_of_job(job)
    refusal = why_not(free_capacity, resource_request)
    if refusal is None:
        if cause is not None and not {"gpus_occupied", SPARES, AWAITS_AT}.isdisjoint(cause.numbers):
            return _waiting(job, cause.code, cause.sentence, cause.numbers, ahead=ahead)
        if cause is not None and cause.code is CauseCode.HELD_BACK and cause.by:
            held_back = _waiting(job, cause.code, cause.sentence, cause.numbers, ahead=ahead)
            return structs.replace(held_back, held_back_for=cause.by)
        sentence = "it fits, and is placed in the next cycle"
        if ahead:
            served = f"{plural(ahead, 'job')} {'is' if ahead == 1 else 'are'}"
            sentence = f"it would fit now, but {served} served before it"
        return _waiting(job, CauseCode.HELD_BACK if ahead else CauseCode.FITS, sentence, {}, ahead=ahead)
    cause, relevant = refusal, [held for held in holding if _is_where_it_starts(held, free_capacity, resource_request)]
    if is_pinned(resource_request):
        relevant = in_the_way(resource_request, holding)
        cause = with_holders(cause, relevant)
    closed = _closed(resource_request, free_capacity)
    holders, estimate_at = _holders(resource_request, free_capacity, relevant)
    known = job.waiting_for
    if known is not None and (known.code is CauseCode.MAKING_ROOM or known.numbers.get("stops_at", 0.0) > now):
        cause = known
    waiting = _waiting(
        job, cause.code, cause.sentence, cause.numbers, ahead=ahead, holders=holders, estimate_at=estimate_at
    )
    return structs.replace(waiting, closed=closed)


def _ahead_of(
    job: Job, *, nodes: Sequence[Node], holding: Sequence[Job], queued: Sequence[Job], now: float, places: KnownPlaces
) -> int:
    """The number of waiting jobs that are served before it."""
    shares = shares_of(nodes, holding) if places.order.by_share else None
    own = place_of(places.order, standing_of(job, now, places.order))
    count = 0
    for place, other in places.of(queued, now):
        if other.not_before > now or other.is_held:
            continue
        if shares is None or other.tenant == job.tenant:
            count += place < own
        else:
            count += (shares.of(other.tenant), place) < (shares.of(job.tenant), own)
    return count


def _is_where_it_starts(job: Job, free_capacity: FreeCapacity, resource_request: ResourceRequest) -> bool:
    """True if the job holds something on a node that takes such work: only then does its end help the waiting job."""
    held = {allocation.node_id for allocation in job.placement.allocations} if job.placement else set[str]()
    return any(
        free_capacity.is_open(node_id)
        and any(free_capacity.nodes[node_id].starts(want.request) for want in resource_request)
        for node_id in held
    )


def _closed(resource_request: ResourceRequest, free_capacity: FreeCapacity) -> tuple[ClosedSeen, ...]:
    found: dict[str, ClosedSeen] = {}
    for want in resource_request:
        for each in closed_with_room(free_capacity, want.request):
            node, free = each.node, len(each.gpus_for(want.request))
            found[node.id] = ClosedSeen(node_id=node.id, drained=node.drained, ready=node.ready, gpus_free=free)
    return tuple(found.values())[:CLOSED_MAX]


def _with_class(found: Explanation, job: Job) -> Explanation:
    """Add the class of the job, if its user's label names none."""
    if not (said := unknown_class(job.spec)):
        return found
    known = ", ".join(JOB_CLASSES)
    counts = f"its label {CLASS_LABEL} says {said}, which is none of {known}: it counts as {class_of(job.spec)}"
    sentence = f"{found.sentence} ({counts})"
    return structs.replace(found, sentence=sentence)


def _with_size(found: Explanation, job: Job) -> Explanation:
    """Add the size of a job that may have several, and how it resizes."""
    if not is_elastic(job.spec):
        return found
    return structs.replace(found, size=sizes_of(job), resize=how_resized(job.spec), keeps_size_for=why_never(job.spec))


def _of_ended(job: Job, cause: Cause | None) -> Explanation:
    verb = {JobState.CANCELLED: "was cancelled"}.get(job.state, f"has {job.state}")
    if cause is None:
        return Explanation(job_id=job.id, name=job.name, state=job.state, code=str(job.state), sentence=f"it {verb}")
    return Explanation(
        job_id=job.id,
        name=job.name,
        state=job.state,
        code=str(cause.code),
        sentence=f"it {verb}: {cause.sentence}",
        numbers=cause.numbers,
        fault=class_of_cause(cause) if job.state is JobState.FAILED else None,
    )


def _of_placed(job: Job, slow: SlowGpus | None) -> Explanation:
    assert job.placement is not None, f"{job.id} is {job.state} without a placement"
    nodes = sorted({allocation.node_id for allocation in job.placement.allocations})
    if job.stopping_for is not None:
        code, sentence = str(job.stopping_for.code), f"it is being stopped: {job.stopping_for.sentence}"
    else:
        where = f"it is on {', '.join(nodes)}: {job.placement.why}" if nodes else "it has no replica now"
        code, sentence = str(CauseCode.FITS), where
        gpus = [(one.node_id, gpu) for one in job.placement.allocations for gpu in one.gpus]
        if slow is not None and (known := slow.taken(gpus)):
            sentence += f"; now {known}"
    numbers = {
        "nodes": float(len(nodes)),
        "ranks": float(len(job.placement.allocations)),
        "gpus": float(gpus_in(job.placement.allocations)),
        **job.placement.numbers,
    }
    return Explanation(job_id=job.id, name=job.name, state=job.state, code=code, sentence=sentence, numbers=numbers)


def _with_short(found: Explanation, job: Job, nodes: Sequence[Node], holding: Sequence[Job]) -> Explanation:
    """Adds why a running service has fewer replicas than it should have, if no more of them fit."""
    has, wanted = sum(job.granted.values()), sum(job.wanted.values())
    if not job.spec.is_service or job.state is not JobState.RUNNING or has >= wanted or not holding:
        return found
    free_capacity, resource_request = free_capacity_of(nodes, holding), one_more(resource_request_of_job(job))
    refusal = why_not(free_capacity, resource_request, asked_by(job))
    numbers = {"replicas": float(has), "replicas_missing": float(wanted - has)}
    short = f"has {has} of {wanted} replicas"
    if refusal is None:
        sentence = f"{short}: there is room for one more, which joins in the next cycle"
        return structs.replace(found, sentence=f"{found.sentence}; {sentence}", numbers={**found.numbers, **numbers})
    leaving = [held for held in holding if _leaves_for(held, job)]
    lenders, of_lenders = why_nobody_lends(job, holding)
    if leaving:
        lenders = f"these jobs leave to make room: {listed([held.id for held in leaving], NAMED_MAX)}"
    relevant = [
        held for held in holding if held.id != job.id and _is_where_it_starts(held, free_capacity, resource_request)
    ]
    return structs.replace(
        found,
        code=str(refusal.code),
        sentence=f"{short}: {refusal.sentence}; {lenders}; {found.sentence}",
        numbers={**refusal.numbers, **found.numbers, **numbers, **of_lenders},
        holders=_holders(resource_request, free_capacity, relevant)[0],
    )


def _with_update(found: Explanation, job: Job, nodes: Sequence[Node], holding: Sequence[Job]) -> Explanation:
    """Adds why an update does not begin: there is no room beside the only replica, which is not given up for it."""
    if not (holding and job.spec.is_service and job.state is JobState.RUNNING and job.placement is not None):
        return found
    held = job.placement.allocations
    if not (sum(job.wanted.values()) == 1 == len(held) and held[0].revision != job.revision):
        return found
    free_capacity, resource_request = free_capacity_of(nodes, holding), one_more(resource_request_of_job(job))
    refusal = why_not(free_capacity, resource_request, asked_by(job))
    if refusal is None:
        return found
    waits = f"its update to revision {job.revision} waits for room beside its only replica, which serves meanwhile"
    relevant = [
        held for held in holding if held.id != job.id and _is_where_it_starts(held, free_capacity, resource_request)
    ]
    return structs.replace(
        found,
        code=str(refusal.code),
        sentence=f"{waits}: {refusal.sentence}; {found.sentence}",
        numbers={**refusal.numbers, **found.numbers, "replicas_to_update": 1.0},
        holders=_holders(resource_request, free_capacity, relevant)[0],
    )


def _leaves_for(held: Job, service: Job) -> bool:
    """Return True if the job stops for the service, or ranks of it leave that may be for it."""
    if held.state is JobState.STOPPING:
        why = held.stopping_for
        return why is not None and why.code is CauseCode.LENT and why.by == service.id
    return not held.spec.is_service and any(one.leaving for one in held.held)


def _with_quota(
    found: Explanation, job: Job, nodes: Sequence[Node], holding: Sequence[Job], quotas: Sequence[Quota]
) -> Explanation:
    """Adds the free part of its tenant's quota, and whether the quota holds a waiting job back."""
    wanted = wanted_by(resource_request_of_job(job))
    if not quotas or not wanted[ALL] or found.code not in _QUOTAS_MATTER:
        return found
    ledger = ledger_of(quotas, {node.id: node for node in nodes}, holding)
    seen = quota_seen(ledger, job.tenant, lendable(nodes))
    fit = ledger.fit(job.tenant, wanted)
    held = why_held(job, fit, wanted)
    if held is not None:
        found = structs.replace(
            found, code=str(held.code), sentence=held.sentence, numbers={**found.numbers, **held.numbers}
        )
    elif found.code != str(CauseCode.FITS):
        found = structs.replace(found, sentence=f"{found.sentence}; {quota_sentence(seen)}")
    numbers = {
        "quota_held": seen.holds,
        "quota_guaranteed": seen.guaranteed,
        "quota_borrowed": seen.borrows,
        "quota_lent": seen.lends,
    }
    return structs.replace(found, numbers={**numbers, **found.numbers}, quota=seen)


def _with_lent(found: Explanation, job: Job, holding: Sequence[Job]) -> Explanation:
    """Adds what the job lent to services."""
    lent = lent_seen(job, holding)
    return structs.replace(found, lent=lent) if lent else found


def _with_silent(found: Explanation, job: Job, nodes: Sequence[Node], now: float) -> Explanation:
    """Adds the job's nodes that do not report: its progress is as old as their last report."""
    held = {allocation.node_id for allocation in job.placement.allocations} if job.placement else set[str]()
    silent = tuple(
        SilentSeen(node_id=node.id, seconds=seconds)
        for node in nodes
        if node.id in held and (seconds := silent_seconds(node, now))
    )
    told = "".join(f"; {each.node_id} has been silent for {duration_text(each.seconds)}" for each in silent)
    return structs.replace(found, sentence=found.sentence + told, silent=silent) if silent else found


def _waiting(
    job: Job,
    code: CauseCode,
    sentence: str,
    numbers: dict[str, float],
    *,
    ahead: int,
    holders: tuple[HolderSeen, ...] = (),
    estimate_at: float | None = None,
) -> Explanation:
    return Explanation(
        job_id=job.id,
        name=job.name,
        state=job.state,
        code=str(code),
        sentence=sentence,
        numbers={**numbers, "ahead": float(ahead)},
        holders=holders,
        ahead=ahead,
        estimate_at=estimate_at,
    )


def _holders(
    resource_request: ResourceRequest, free_capacity: FreeCapacity, holding: Sequence[Job]
) -> tuple[tuple[HolderSeen, ...], float | None]:
    """The jobs that hold most of what the job needs, and when time limits will have freed enough of it."""
    wants_gpus = any(with_gpus(want.request) for want in resource_request)
    relevant = [held for held in holding if not wants_gpus or held.gpus_held]
    largest = sorted(relevant, key=lambda held: (-held.gpus_held, held.seq))[:HOLDERS_MAX]
    estimate_at = None
    bounded = sorted((ends, held.seq, held) for held in relevant if (ends := ends_at(held)) is not None)
    for ends, _, held in bounded:
        free_capacity.give_back_all(held.placement.allocations if held.placement else ())
        if find(free_capacity, resource_request) is not None:
            estimate_at = ends
            break
    return tuple(_seen(held) for held in largest), estimate_at


def _seen(job: Job) -> HolderSeen:
    return HolderSeen(
        job_id=job.id,
        name=job.name,
        tenant=job.tenant,
        state=job.state,
        priority=job.priority,
        gpus=job.gpus_held,
        nodes=tuple(sorted({allocation.node_id for allocation in job.placement.allocations}) if job.placement else ()),
        since=job.since,
        ends_at=ends_at(job),
        submitter=job.submitter,
    )
