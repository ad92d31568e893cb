"""The placement of a waiting job: its GPUs, the address where its ranks meet, and why it is there."""

from collections.abc import Sequence

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, Placement, Step
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow
from weft.planning.jobs import asked_by, standing_of
from weft.planning.reasons.failures import why_avoided
from weft.planning.reasons.slow import SlowGpus
from weft.planning.reasons.why import why_there
from weft.planning.resource_request import resource_request_of_job
from weft.planning.surplus import with_extras
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.orders import master_port, ports_needed


def place(
    cluster_state: ClusterState, job: Job, allocations: tuple[Allocation, ...], now: float, *, moved_for: str = ""
) -> list[Step]:
    allocations = _marked(job, allocations)
    address, port = meeting_of(cluster_state, job, allocations)
    name = cluster_state.policy.placement
    asked = asked_by(job, cluster_state.score_cache.learnt)
    resource_request = resource_request_of_job(job)
    slow = SlowGpus(
        cluster_state.score_cache.measured(cluster_state.pool.free_capacity.scores.known(asked.job_class)), now
    )
    why = why_there(cluster_state.pool.free_capacity, resource_request, asked, allocations, placement=name, slow=slow)
    sentence = "; ".join(part for part in (why.sentence, moved_for, why_avoided(job, allocations)) if part)
    # Attained time that the order forgot stays forgotten: else the job would be preempted for it at once.
    had = standing_of(job, now, cluster_state.waitlist.queue.order)
    return cluster_state.go(
        job,
        JobEvent.PLACED,
        Cause(code=CauseCode.FITS, sentence=sentence),
        now,
        placement=Placement(
            allocations=allocations, master_address=address, master_port=port, why=sentence, numbers=why.numbers
        ),
        attained_seconds=had.attained_s if had.attained_s != job.attained_seconds else None,
        attained_gpu_seconds=had.attained_gpu_s if had.attained_gpu_s != job.attained_gpu_seconds else None,
    )


def _marked(job: Job, allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """The ranks of a job that resizes live, with those beyond the core marked. A service has no core."""
    if job.spec.is_service:
        return tuple(structs.replace(each, extra=True, revision=job.revision) for each in allocations)
    if how_resized(job.spec) is not ResizeHow.LIVE:
        return allocations
    return with_extras(allocations, {name: role.replicas.least for name, role in job.spec.roles.items()})


def meeting_of(cluster_state: ClusterState, job: Job, allocations: tuple[Allocation, ...]) -> tuple[str, int]:
    """The address and port where the ranks of a job meet in its next epoch; those of a service do not."""
    if job.spec.is_service:
        return "127.0.0.1", 0
    return cluster_state.pool.nodes[allocations[0].node_id].address, port_for(cluster_state, job, allocations)


def place_nowhere(cluster_state: ClusterState, job: Job, now: float) -> list[Step]:
    """A service that should have no replica runs at once."""
    cause = Cause(code=CauseCode.FITS, sentence="it should have no replica now")
    steps = cluster_state.go(
        job, JobEvent.PLACED, cause, now, placement=Placement(allocations=(), why="it should have no replica")
    )
    for event in (JobEvent.STARTING, JobEvent.STARTED):
        steps += cluster_state.go(cluster_state.jobs[job.id], event, cause, now)
    return steps


def following(
    cluster_state: ClusterState,
    job: Job,
    allocations: Sequence[Allocation],
    why: str = "on the same nodes, with another size",
) -> Placement:
    """The placement of the next epoch where these are: ranks numbered anew, role by role."""
    roles = list(job.spec.roles)
    ordered = sorted(allocations, key=lambda allocation: (roles.index(allocation.role), allocation.rank))
    ranks = tuple(structs.replace(allocation, rank=rank) for rank, allocation in enumerate(ordered))
    return Placement(
        allocations=ranks,
        master_address=cluster_state.pool.nodes[ranks[0].node_id].address,
        why=why,
    )


def port_for(cluster_state: ClusterState, job: Job, allocations: tuple[Allocation, ...]) -> int:
    """The port where rank 0 of the next epoch listens, with a free one behind it for each other rank."""
    address = cluster_state.pool.nodes[allocations[0].node_id].address
    taken = cluster_state.holdings.ports.get(address, ())
    return master_port(job, ranks=ports_needed(job, allocations), taken=taken)
