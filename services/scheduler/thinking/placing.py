"""The placement of a waiting job: its GPUs, the address where its ranks meet, and why it is there."""

from libs.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, Placement, Step
from libs.planning.jobs import asked_by, standing_of
from libs.planning.shape import shape_of
from libs.planning.slow import SlowGpus
from libs.planning.why import why_there
from services.scheduler.thinking.orders import master_port
from services.scheduler.thinking.picture import Picture


def place(
    picture: Picture, job: Job, allocations: tuple[Allocation, ...], now: float, *, moved_for: str = ""
) -> list[Step]:
    address = picture.pool.nodes[allocations[0].node_id].address
    port = master_port(job, ranks=len(allocations), taken=picture.holdings.ports.get(address, ()))
    name = picture.policy.placement
    asked = asked_by(job, picture.beliefs.learnt)
    shape = shape_of(job.spec)
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
