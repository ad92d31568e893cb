"""The refusals of another share of a GPU for a running job, before it is stored. Pure."""

from weft.domain.job import Job, JobState
from weft.domain.shares import thousandths
from weft.messages.asks import Reshare
from weft.messages.http import ShareWanted
from weftd.gateway.errors import RejectedError


def check_share(job: Job, wanted: ShareWanted) -> Reshare:
    """What is asked of the scheduler. Raises RejectedError with the first mistake."""
    sharing = [name for name, role in job.spec.roles.items() if role.share is not None]
    if not sharing:
        raise RejectedError(409, "job", f"{job.id} has no share of a GPU")
    if wanted.role is not None and wanted.role not in sharing:
        raise RejectedError(400, "role", f"{wanted.role} is no role of {job.id} with a share: {', '.join(sharing)}")
    if wanted.role is None and len(sharing) > 1:
        raise RejectedError(400, "role", f"several roles of {job.id} have shares: {', '.join(sharing)}; name one")
    if job.state is not JobState.RUNNING:
        raise RejectedError(409, "job", f"{job.id} is {job.state}: its share can be changed while it runs")
    return Reshare(
        request=None if wanted.request is None else thousandths(wanted.request),
        limit=None if wanted.limit is None else thousandths(wanted.limit),
        role=wanted.role or "",
    )
