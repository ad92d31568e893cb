"""What needs no solver: free room goes to the jobs that are furthest below their fair share."""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil

from weft.planning.partition import ElasticJob, Rules
from weft.planning.partition.fair import FairShare, dominant_share
from weft.planning.partition.packing import Packer
from weft.planning.shares import Amounts

ROUNDING = 1e-9


def filled(
    packer: Packer, jobs: Sequence[ElasticJob], whole: Amounts, fair: Mapping[str, FairShare], rules: Rules
) -> None:
    """Starts waiting jobs, those that have waited longest first; then jobs grow up to their fair share.

    They grow by one replica at a time, the job furthest below its fair share for its weight first. Nothing shrinks. Of
    the running jobs no more change than theta2 allows, with those that have changed already, and no job is restarted
    for this alone; what was to shrink does not grow again elsewhere.
    """
    for job in sorted((job for job in jobs if not packer.size(job) and not job.fixed), key=lambda job: -job.waited_s):
        unfair = dominant_share(job, job.least, whole) > 2 * fair[job.job_id].share
        if (not unfair or job.waited_s > rules.starved_s) and packer.grow(job, job.least) < job.least:
            packer.shrink(job, 0)
    changed = sum(1 for job in jobs if packer.changed(job))
    may_change = ceil(rules.theta2 * sum(1 for job in jobs if job.now) - ROUNDING) - changed

    def below(job: ElasticJob, size: int) -> float:
        """How far from its fair share it is with one replica more: less than 0 if it is still below."""
        return (dominant_share(job, size + 1, whole) - fair[job.job_id].share - ROUNDING) / job.weight

    heap = [
        (below(job, size), at, size)
        for at, job in enumerate(jobs)
        if not job.fixed and max(job.now, 1) <= (size := packer.size(job)) < job.most and below(job, size) <= 0
    ]
    heapify(heap)
    while heap:
        _, at, size = heappop(heap)
        job = jobs[at]
        first = job.now > 0 and not packer.changed(job)
        if (first and (may_change <= 0 or job.restart_s)) or packer.grow(job, size + 1) <= size:
            continue
        may_change -= first
        if size + 1 < job.most and below(job, size + 1) <= 0:
            heappush(heap, (below(job, size + 1), at, size + 1))
