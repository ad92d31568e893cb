"""The loans of a job to services, as its explanation shows them."""

from collections.abc import Sequence

from msgspec import structs

from weft.domain.job import Job
from weft.messages.http.explanation import LentSeen
from weft.planning.borrowing import still_owed

LENT_MAX = 20


def lent_seen(job: Job, holding: Sequence[Job]) -> tuple[LentSeen, ...]:
    """The loans of the job to services, those to one service together. `holding`: the jobs that hold GPUs."""
    lent = [
        LentSeen(
            service=service.id,
            name=service.name,
            tenant=service.tenant,
            gpus=loan.gpus,
            ranks=loan.ranks,
            since=loan.since,
        )
        for service in holding
        for loan in still_owed(service.loans, {loan.rank for loan in service.loans}, {job.id: job})
    ]
    by_service: dict[str, LentSeen] = {}
    for one in lent:
        before = by_service.get(one.service)
        by_service[one.service] = one if before is None else _together(before, one)
    return tuple(by_service.values())[:LENT_MAX]


def _together(one: LentSeen, other: LentSeen) -> LentSeen:
    """The sum of two loans of a job to one service."""
    gpus, ranks = one.gpus + other.gpus, one.ranks + other.ranks
    return structs.replace(one, gpus=gpus, ranks=ranks, since=min(one.since, other.since))
