"""One more replica of a service, the nodes that can start none, and updates that wait for room for it."""

from collections.abc import Iterable

from msgspec import structs

from libs.domain.cluster import Node
from libs.domain.job import Job, JobState
from libs.domain.quantity import count_text
from libs.planning.shape import Shape, shape_of_job

NAMED_MAX = 2


def one_more(job: Job) -> Shape:
    return tuple(structs.replace(want, least=1, count=1) for want in shape_of_job(job))


def why_not_serving(job: Job, nodes: Iterable[Node]) -> str:
    """Such as `2 nodes start no replica of a service, their executors are of an earlier version: node-1, node-2`;
    empty if there are none."""
    earlier = of_earlier_version(job, nodes)
    if not earlier:
        return ""
    what = "replica of a service"
    if job.spec.all_secrets or job.spec.context:
        what = "job that has secrets" if job.spec.all_secrets else "job that has files with it"
    named = ", ".join(earlier[:NAMED_MAX]) + (f" and {more} more" if (more := len(earlier) - NAMED_MAX) > 0 else "")
    verb, whose = ("starts", "its executor is") if len(earlier) == 1 else ("start", "their executors are")
    return f"{count_text(len(earlier), 'node')} {verb} no {what}, {whose} of an earlier version: {named}"


def of_earlier_version(job: Job, nodes: Iterable[Node]) -> list[str]:
    """The nodes that are there and whose executor cannot start what the job is."""
    requests = [want.request for want in shape_of_job(job)]
    return sorted(node.id for node in nodes if node.ready and not all(map(node.knows, requests)))


def waits_to_update(job: Job) -> bool:
    """Does the service have one replica, of an earlier revision, which is not given up for the next revision?"""
    if not job.spec.is_service or job.state is not JobState.RUNNING or job.placement is None:
        return False
    held = job.placement.allocations
    return sum(job.wanted.values()) == 1 == len(held) and held[0].revision != job.revision
