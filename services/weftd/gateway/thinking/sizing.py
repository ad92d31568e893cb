"""The refusals of another size of a job, before it is stored. Pure."""

from weft.domain.job import FINAL, Job
from weft.domain.sizes import Size, why_never, wrong_size
from weftd.gateway.errors import RejectedError


def check_size(job: Job, size: Size) -> None:
    """Raises RejectedError with the first mistake. A job that waits may have every size in its range."""
    if job.state in FINAL:
        raise RejectedError(409, "job", f"{job.id} is over already: {job.state}")
    if (wrong := wrong_size(job.spec, size)) is not None:
        role, reason = wrong
        raise RejectedError(400, f"size.{role}", reason)
    if (job.state.holding or job.spec.pin is not None) and (why := why_never(job.spec)):
        raise RejectedError(409, "job", f"{job.id} keeps its size: {why}")
