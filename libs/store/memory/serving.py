"""What a router knows of a job, from the job itself."""

from libs.domain.job import Job
from libs.store import OpenService


def service_of(job: Job) -> OpenService | None:
    """None: the job serves no requests."""
    if (rules := job.spec.service) is None:
        return None
    return OpenService(
        id=job.id,
        tenant=job.tenant,
        pool=job.pool,
        name=job.name,
        seq=job.seq,
        kind=job.spec.kind,
        rules=rules,
        objective=job.spec.objective,
        wanted=sum(job.wanted.values()),
        state=job.state,
        epoch=job.epoch,
        version=job.version,
        priority=job.priority,
        placement=job.placement,
    )
