"""What is wrong with services when all has settled, and with any answer to a request before. Pure."""

from collections.abc import Iterator

from tests.chaos.finding import Finding
from tests.chaos.services import Request, ServiceSeen
from weft.domain.job import JobState

SERVICES_FAULTY = (
    "replicas_lost",  # a service that has fewer replicas than it wants, or none that runs what is wanted
    "replicas_beyond",  # more of them, or processes of replicas that no service has
    "revision_wrong",  # a replica that runs another revision than the newest
    "loans_astray",  # a loan of a job that is not there, or for a replica that is not
    "misdirected",  # a request that a replica of another job answered
    "unserved",  # a request to a service with replicas that had no good answer when all had settled
)


def audit_services(services: list[ServiceSeen], requests: list[Request]) -> Iterator[Finding]:
    for seen in services:
        yield from unsettled(seen)
    answers = [*requests, *(seen.answer for seen in services if seen.answer is not None)]
    for one in answers:
        if one.answered_by and one.answered_by != one.job_id:
            sentence = f"a request was answered by rank {one.rank} of {one.answered_by}"
            yield Finding(kind="misdirected", job_id=one.job_id, sentence=sentence, at=one.at)


def unsettled(seen: ServiceSeen) -> Iterator[Finding]:
    """What has to hold of one service in the end."""

    def finding(kind: str, sentence: str) -> Finding:
        return Finding(kind=kind, job_id=seen.job_id, sentence=sentence)

    view = seen.view
    alive = sorted({one.rank for one in seen.replicas})
    if view is None or view.state is JobState.CANCELLED:
        if alive:
            yield finding("replicas_beyond", f"ranks {alive} live, and the service is over")
        if view is not None and not seen.cancelled:
            yield finding("replicas_lost", "the service is cancelled, which nobody asked for")
        return
    if view.state is not JobState.RUNNING or view.service is None:
        yield finding("replicas_lost", f"the service is {view.state}, and wants to run")
        return
    held = () if view.placement is None else view.placement.allocations
    ranks = sorted(one.rank for one in held)
    wanted = view.service.wanted
    if len(ranks) < wanted or any(one.leaving for one in held) or set(ranks) - set(alive):
        yield finding("replicas_lost", f"it wants {wanted} replicas and has {ranks}, of which {alive} live")
    if len(ranks) > wanted or set(alive) - set(ranks) or len(seen.replicas) > len(alive):
        yield finding("replicas_beyond", f"it wants {wanted} replicas and has {ranks}, and {alive} live")
    others = [one.rank for one in held if one.revision != view.service.revision]
    others += [one.rank for one in seen.replicas if one.version != seen.version]
    if others:
        yield finding("revision_wrong", f"ranks {others} run no revision {view.service.revision} ({seen.version})")
    for loan in view.service.loans:
        if seen.lenders.get(loan.lender) is None or loan.rank not in ranks:
            sentence = f"replica {loan.rank} of {ranks} owes {loan.gpus:g} GPUs to {loan.lender}"
            yield finding("loans_astray", f"{sentence}, which is {seen.lenders.get(loan.lender)}")
    if wanted and (seen.answer is None or seen.answer.status != 200):
        status = "none" if seen.answer is None else seen.answer.status
        yield finding("unserved", f"it has {ranks}, and the answer to the last request is {status}")
