"""How much of the time a chart shows: not the long tail in which nothing waits and a few jobs go on. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from weft.simulator.metrics import queue_over_time
from weft.simulator.outcome import Outcome
from weft.simulator.report.compared import Contender

PART = 0.9  # of the jobs, whose ends are always shown
BEYOND = 1.15  # how much is shown behind the last moment that matters, as a part of the time until then
WORTH = 0.75  # a crop that leaves more than this of the axis is not worth it


def span_shown(runs: Sequence[Contender]) -> float:
    """Seconds from the first arrival on: charts over time share this axis. All of it, unless much of it is a tail."""
    whole = max(run.metrics.makespan_s for run in runs)
    most = max(_matters_until(run.outcome) for run in runs) * BEYOND
    return most if 0 < most < WORTH * whole else whole


def _matters_until(outcome: Outcome) -> float:
    """When no job waits any more, and nearly all have ended; from the first arrival."""
    begin = min(job.arrival_s for job in outcome.jobs)
    ends = sorted(job.completed_s for job in outcome.jobs)
    curve = queue_over_time(outcome)
    waits = [at for (_, value), (at, _) in pairwise(curve) if value > 0]
    return max(max(waits, default=begin), ends[int(PART * (len(ends) - 1))]) - begin
