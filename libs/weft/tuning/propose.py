"""What to try for a job, by what holds it back: first another split of what it has; then more, within bounds."""

from collections.abc import Callable

from weft.domain.spec import Kind
from weft.samples.thresholds import THROTTLED
from weft.tuning import cpus, limits
from weft.tuning.proposal import Case, Proposal
from weft.tuning.verdict import Verdict

_Way = tuple[str, Callable[[Case], Proposal | None]]
_AT_EASE = (Verdict.OVER_PROVISIONED, Verdict.HEALTHY, Verdict.GPU_BOUND)


def propose(case: Case) -> Proposal | None:
    """The first proposal whose direction is open and that is predicted to pay; None if there is none."""
    for direction, way in _ways(case):
        if case.open(direction) and (found := way(case)) is not None:
            return found
    return None


def _ways(case: Case) -> list[_Way]:
    role, code = case.stood.role, case.stood.reading.code
    more_cpu: list[_Way] = [("cpus:split", cpus.split), (f"cpus:up:{role}", cpus.more)]
    if code is Verdict.CPU_QUOTA_BOUND:
        return more_cpu
    if code is Verdict.INPUT_BOUND:
        window = case.windows.get(case.stood.rank)
        return more_cpu if window is not None and (window.cpu_throttled or 0.0) >= THROTTLED else []
    if code is Verdict.MEMORY_BOUND:
        return [(f"memory:up:{role}", limits.more_memory)]
    if code is Verdict.NETWORK_BOUND:
        return [("egress:split", limits.split_egress), (f"egress:up:{role}", limits.more_egress)]
    if code in _AT_EASE and case.job.spec.kind in (Kind.TRAINING, Kind.BATCH):
        less_cpu: list[_Way] = [("cpus:less", cpus.less)] if code is Verdict.OVER_PROVISIONED else []
        return [*less_cpu, ("memory:less", limits.less_memory), ("egress:less", limits.less_egress)]
    return []  # a notebook and a service keep their slack for load to come
