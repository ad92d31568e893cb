"""Finds ranks that running jobs lend to a service that wants more replicas than fit the free capacity, and their order.

First ranks beyond the core of jobs that resize live, those that lose least work first; then ranks of jobs that shrink
by a restart; then whole jobs that may be pre-empted, by the order of the pool. Services lend nothing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from weft.domain.job import Allocation, Job, JobState, Loan
from weft.domain.shares import gpus_held
from weft.domain.sizes import how_resized
from weft.domain.spec import Kind, ResizeHow
from weft.domain.text import gpu_text, listed, plural
from weft.planning.capacity import FreeCapacity
from weft.planning.preemption import Holder
from weft.planning.preemption.loss import loss
from weft.planning.resizing import grow, shrink
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import GpuKey

SERVICE, NOTEBOOK = "service", "notebook"

Gone = tuple[str, tuple[int, ...]]
"""A job and the ranks of it that leave."""


class Borrowed(Struct, frozen=True, kw_only=True):
    """A place for one replica, and what must leave before it is free: `victims` for this replica, `others` for one that
    was given a part of the same GPU before. `lenders`: by job, how many of its GPUs the replica gets, and how many
    ranks it loses for that (0: all)."""

    place: Allocation
    victims: tuple[Holder, ...]
    others: tuple[Holder, ...]
    lenders: Mapping[str, tuple[float, int]]


def why_not_lend(job: Job, service: Job) -> str:
    """Why a running job cannot lend ranks to a service, in a few words; empty if it can. The order of the pool decides
    if the whole job may stop for the service."""
    if never := why_never_lends(job):
        return never
    if job.priority > service.priority:
        return "of higher priority"
    if not (job.state is JobState.RUNNING and _ranks_to_spare(job)):
        return "without a rank to spare"
    return ""


def why_never_lends(job: Job) -> str:
    """Why a job never lends to any service nor gives way to one as a whole."""
    if job.spec.is_service:
        return SERVICE
    if job.spec.kind is Kind.NOTEBOOK:
        return NOTEBOOK
    return "" if job.spec.preemptible else "not pre-emptible"


def may_ever_lend(job: Job) -> bool:
    """True if the job has ranks that it could lend to a service, whatever the priority of that is."""
    return job.state is JobState.RUNNING and not why_never_lends(job) and bool(_ranks_to_spare(job))


def spare_ranks(job: Job, service: Job, now: float, progress: Mapping[str, float]) -> list[Holder]:
    """The ranks that the job may lend to the service, each for itself, the newest first."""
    if why_not_lend(job, service):
        return []
    is_live = how_resized(job.spec) is ResizeHow.LIVE
    worth = loss(job, now, progress, extra=is_live)
    return [
        Holder(job_id=job.id, worth=(*worth, -float(rank.rank)), allocations=(rank,), extra=True)
        for rank in sorted(_ranks_to_spare(job), key=lambda each: -each.rank)
    ]


def borrow(
    free_capacity: FreeCapacity,
    want: RoleRequest,
    held: Sequence[Allocation],
    asked: PlacementRequest,
    *,
    willing: Iterable[Holder],
    promised: Mapping[GpuKey, Holder],
) -> Borrowed | None:
    """A place for one more replica and what is given back for it; None without such a place. The room holds the replica
    afterwards. `willing` come in the order in which they leave, and only as many are asked for as are needed;
    `promised`: GPUs that come free for another replica, with what leaves there."""
    one = structs.replace(want, least=1, count=1)
    victims: tuple[Holder, ...] = ()
    found = grow(free_capacity, held, one, 1, first_rank=0, asked=asked)
    if not found:
        victims = _who_must_leave(free_capacity, one, willing)
        for victim in victims:
            free_capacity.give_back_all(victim.allocations)
        found = grow(free_capacity, held, one, 1, first_rank=0, asked=asked) if victims else None
    if not found:
        return None
    free_capacity.take_all(found)
    place = found[0]
    there = {(place.node_id, gpu) for gpu in place.gpus}
    others = tuple({id(each): each for gpu in sorted(there) if (each := promised.get(gpu)) is not None}.values())
    return Borrowed(place=place, victims=victims, others=others, lenders=_lenders(place, (*victims, *others)))


def _who_must_leave(free_capacity: FreeCapacity, want: RoleRequest, willing: Iterable[Holder]) -> tuple[Holder, ...]:
    """The first of `willing` whose departure makes room for a replica on one node, and of those only the ones in its
    way. Empty if no node gets room."""
    of_node: dict[str, list[Holder]] = {}
    where = ""
    with free_capacity.supposing():
        for holder in willing:
            free_capacity.give_back_all(holder.allocations)
            for node_id in dict.fromkeys(one.node_id for one in holder.allocations):
                of_node.setdefault(node_id, []).append(holder)
                if _has_room(free_capacity, want, node_id):
                    where = node_id
                    break
            if where:
                break
    if not where:
        return ()
    victims: list[Holder] = []
    with free_capacity.supposing():
        for holder in of_node[where]:
            free_capacity.give_back_all(holder.allocations)
        for holder in reversed(of_node[where]):  # those worth most first: may they stay?
            free_capacity.take_all(holder.allocations)
            if not _has_room(free_capacity, want, where):
                free_capacity.give_back_all(holder.allocations)
                victims.append(holder)
    return tuple(reversed(victims))


def _has_room(free_capacity: FreeCapacity, want: RoleRequest, node_id: str) -> bool:
    request = want.request
    return (
        request.node in (None, node_id)
        and free_capacity.is_open(node_id)
        and free_capacity.nodes[node_id].count(request, 1) > 0
    )


def _lenders(place: Allocation, victims: Iterable[Holder]) -> dict[str, tuple[float, int]]:
    part = 1.0 if place.share is None else gpus_held(place.gpus, place.share)
    found: dict[str, tuple[float, int]] = {}
    own = {(place.node_id, gpu) for gpu in place.gpus}
    for victim in victims:
        gpus = {(one.node_id, gpu) for one in victim.allocations for gpu in one.gpus} & own
        here = any(one.node_id == place.node_id for one in victim.allocations)
        if gpus or here:
            had, ranks = found.get(victim.job_id, (0.0, 0))
            whole = not victim.extra or (victim.job_id in found and not ranks)
            found[victim.job_id] = (had + part * len(gpus), 0 if whole else ranks + len(victim.allocations))
    return found


def _ranks_to_spare(job: Job) -> tuple[Allocation, ...]:
    """The ranks that the job can do without now and that do not leave already."""
    if job.placement is None:
        return ()
    match how_resized(job.spec):
        case ResizeHow.LIVE:
            return tuple(one for one in job.placement.staying if one.extra)
        case ResizeHow.RESTART:
            spare: list[Allocation] = []
            for name, role in job.spec.roles.items():
                beyond = job.granted[name] - role.replicas.least
                if beyond > 0:
                    spare += shrink(job.placement.staying, name, beyond, least=role.replicas.least)[1]
            return tuple(spare)
        case _:
            return ()


# what is owed


def unpaid(loans: Iterable[Loan], ranks: Collection[int], lacks: Callable[[Loan], bool]) -> tuple[Loan, ...]:
    """The loans of these replicas (`ranks`) that are still owed. `lacks(loan)`: the lender is open, and has not grown
    back."""
    return tuple(loan for loan in loans if loan.rank in ranks and lacks(loan))


def still_owed(loans: Iterable[Loan], ranks: Collection[int], lenders: Mapping[str, Job]) -> tuple[Loan, ...]:
    """The loans of these replicas (`ranks`) that are still owed: the lender is open and has not grown back. `lenders`:
    all open jobs, by id."""
    return unpaid(loans, ranks, lambda loan: loan.lender in lenders and _lacks(lenders[loan.lender], loan))


def _lacks(lender: Job, loan: Loan) -> bool:
    """Return True if the lender still lacks the lent ranks."""
    if lender.state is JobState.STOPPING:
        return True
    if not loan.ranks:
        return not lender.state.holding
    granted = lender.granted
    return not lender.state.holding or any(count > granted[role] for role, count in lender.wanted.items())


def loans_text(loans: Iterable[Loan]) -> str:
    """`1 GPU of j-1 and 2 GPUs of j-2`."""
    lent: dict[str, float] = {}
    for loan in loans:
        lent[loan.lender] = lent.get(loan.lender, 0.0) + loan.gpus
    return listed([f"{gpu_text(count)} of {lender}" for lender, count in lent.items()])


def why_nobody_lends(service: Job, holding: Iterable[Job]) -> tuple[str, dict[str, float]]:
    """The number of jobs that lend nothing to the service, with reasons in words and numbers, and the number of jobs
    that may lend."""
    reasons: dict[str, int] = {}
    for job in holding:
        if job.id != service.id and job.gpus_held:
            reason = why_not_lend(job, service)
            reasons[reason] = reasons.get(reason, 0) + 1
    may = reasons.pop("", 0)
    numbers = {"jobs_that_may_lend": float(may), "jobs_that_lend_nothing": float(sum(reasons.values()))}
    told = ", ".join(
        plural(count, reason) if reason in (SERVICE, NOTEBOOK) else f"{count} {reason}"
        for reason, count in sorted(reasons.items())
    )
    if may:
        return f"{plural(may, 'job')} may lend it ranks" + (f", others not: {told}" if told else ""), numbers
    return f"no job may lend it ranks: {told}" if told else "no other job holds GPUs", numbers
