"""The placement of a waiting job: its GPUs, the address where its ranks meet, and why it is there."""

from collections.abc import Sequence

from msgspec import structs

from libs.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, Placement, Step
from libs.domain.sizes import how_resized
from libs.domain.spec import ResizeHow
from libs.planning.jobs import asked_by, standing_of
from libs.planning.shape import shape_of_job
from libs.planning.slow import SlowGpus
from libs.planning.why import why_there
from services.scheduler.thinking.orders import master_port, ports_needed
from services.scheduler.thinking.picture import Picture


def place(
    picture: Picture, job: Job, allocations: tuple[Allocation, ...], now: float, *, moved_for: str = ""
) -> list[Step]:
    allocations = with_extras(job, allocations)
    address = picture.pool.nodes[allocations[0].node_id].address
    port = port_for(picture, job, allocations)
    name = picture.policy.placement
    asked = asked_by(job, picture.beliefs.learnt)
    shape = shape_of_job(job)
    slow = SlowGpus(picture.beliefs.measured(picture.pool.room.scores.known(asked.job_class)), now)
    why = why_there(picture.pool.room, shape, asked, allocations, placement=name, slow=slow)
    sentence = f"{why.sentence}; {moved_for}" if moved_for else why.sentence
    # Attained time that the order forgot stays forgotten: else the job would be preempted for it at once.
    had = standing_of(job, now, picture.waitlist.queue.order)
    return picture.go(
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


def with_extras(job: Job, allocations: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """The ranks of a job that resizes live, with those beyond the core marked: the first `min` of each role are it."""
    if how_resized(job.spec) is not ResizeHow.LIVE:
        return allocations
    left = {name: role.replicas.least for name, role in job.spec.roles.items()}
    marked: list[Allocation] = []
    for allocation in allocations:
        left[allocation.role] -= 1
        marked.append(structs.replace(allocation, extra=left[allocation.role] < 0))
    return tuple(marked)


def following(picture: Picture, job: Job, allocations: Sequence[Allocation]) -> Placement:
    """The placement of the next epoch where these are: ranks numbered anew, role by role."""
    roles = list(job.spec.roles)
    ordered = sorted(allocations, key=lambda allocation: (roles.index(allocation.role), allocation.rank))
    ranks = tuple(structs.replace(allocation, rank=rank) for rank, allocation in enumerate(ordered))
    return Placement(
        allocations=ranks,
        master_address=picture.pool.nodes[ranks[0].node_id].address,
        why="where it was, with another size",
    )


def port_for(picture: Picture, job: Job, allocations: tuple[Allocation, ...]) -> int:
    """The port where rank 0 of the next epoch listens, with a free one behind it for each other rank."""
    address = picture.pool.nodes[allocations[0].node_id].address
    taken = picture.holdings.ports.get(address, ())
    return master_port(job, ranks=ports_needed(job, allocations), taken=taken)
