"""Words for the failures of a job: whose fault they were, and which nodes its next try avoids for them."""

from collections.abc import Iterable, Mapping

from weft.domain.failure import FailureClass, avoided
from weft.domain.job import Allocation, Job
from weft.domain.text import listed

NAMED_MAX = 3

FAULTS: Mapping[FailureClass, str] = {
    FailureClass.PROGRAM: "its program failed",
    FailureClass.MEMORY: "it needs more memory than it asks for",
    FailureClass.LIMIT: "it reached its time limit",
    FailureClass.GPU: "a GPU failed",
    FailureClass.NODE: "its node failed it",
    FailureClass.NETWORK: "its ranks lost each other",
    FailureClass.STORE: "Weft could not store or decide what followed, or an object store did not give its data",
    FailureClass.UNKNOWN: "nothing shows whose fault it was",
}


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
