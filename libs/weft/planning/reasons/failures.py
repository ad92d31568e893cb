"""Words for the failures of a job: whose fault they were, and which nodes its next try avoids for them."""

from collections.abc import Iterable

from weft.domain.failure import avoided
from weft.domain.job import Allocation, Job
from weft.domain.text import listed

NAMED_MAX = 3


def why_avoided(job: Job, allocations: Iterable[Allocation]) -> str:
    """Such as `not on node-1, where it failed before`; empty if it avoids no node."""
    avoids = avoided(job.failures)
    if not avoids:
        return ""
    again = sorted({each.node_id for each in allocations}.intersection(avoids))
    if again:
        return f"again on {listed(again, NAMED_MAX)}, where it failed before: no other place is free"
    return f"not on {listed(avoids, NAMED_MAX)}, where it failed before"


def avoids_text(job: Job) -> str:
    """Such as `its next try avoids node-1, where it failed before, if another place is free`."""
    avoids = avoided(job.failures)
    if not avoids:
        return ""
    return f"its next try avoids {listed(avoids, NAMED_MAX)}, where it failed before, if another place is free"
