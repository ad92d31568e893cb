"""Jobs that could start now, but wait for a faster GPU model that is full, because they end sooner that way.

A job waits by its own choice only if all of this is true:

- It says how long it lasts, may have several models, and writes no checkpoints. One that writes them starts at once,
  and moves to the faster model once there is room.
- No job that waits for room is ahead of it: what comes free would be that job's.
- Running jobs whose ends are known free a place for it, behind the jobs that wait for the same. A job that runs for a
  minute longer than expected frees nothing.
- The time that it has waited and will wait is at most half of the time that the faster model saves.

So a wrong estimate costs a job no more than half of what it hoped to save. Its duration counts as that on the slower
model, which is the least that the faster one can save. For example: a job of one hour could start on a T4; an A100 is
four times as fast for it, which saves 45 minutes, and comes free in 10 minutes. The job waits. If the A100 came free in
30 minutes, the job would start on the T4.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from weft.domain.job import Allocation
from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import Place, find, fits_there
from weft.planning.resource_request import PlacementRequest, may_choose, only_on, with_gpus
from weft.planning.scheduling_pass import Awaits, Demand

AWAITS_AT = "awaits_at"  # the number of a cause: when GPUs of the faster model come free at the latest
MARGIN = 2.0  # a job saves at least this many times what it waits
JOBS_MAX = 8  # that wait by their choice at a time; further ones start at once
MODELS_MAX = 2  # faster models that are looked at for one job
ENDINGS_MAX = 8  # jobs on such a model that end, after each of which a place is looked for
LATE_S = 60.0  # a job that should have ended is expected for so long to end any moment
WORK_MAX = 4096  # running jobs that one pass looks at, beyond which jobs start at once
FIND_COUNTS = 64  # the running jobs for which one search for a place counts


class Cluster(Protocol):
    @property
    def free_capacity(self) -> FreeCapacity: ...
    def asked(self, job_id: str) -> PlacementRequest: ...
    def waited_s(self, job_id: str) -> float: ...
    def endings(self) -> Sequence[Ending]: ...
    def held(self, job_id: str) -> Sequence[Allocation]:
        """The allocations of a running job."""
        ...


class Awaiting:
    """The jobs that wait by choice in one scheduling pass. `closed_to`: the nodes on which a job may not start."""

    def __init__(self, cluster: Cluster, now: float, *, closed_to: Callable[[str, Demand], Sequence[str]]) -> None:
        self._cluster, self._now, self._closed_to = cluster, now, closed_to
        self._expected: list[tuple[float, Place]] = []  # by the jobs that wait so far
        self._work = 0

    def awaits(self, job_id: str, demand: Demand, place: Place) -> Awaits | None:
        """The faster model for which the job should wait in place of starting here; None if it should start."""
        lasts_s, free_capacity = demand.lasts_s, self._cluster.free_capacity
        if lasts_s is None or demand.checkpoints or demand.pinned or len(self._expected) >= JOBS_MAX:
            return None
        asked = self._cluster.asked(job_id)
        speeds = free_capacity.speeds_for(asked)
        if not speeds or not may_choose(demand.resource_request):
            return None
        here, waited_s = free_capacity.slowdown(place, asked), self._cluster.waited_s(job_id)
        requests = [want.request for want in demand.resource_request if with_gpus(want.request)]
        faster = [
            (1.0 / speed, model)
            for model, speed in speeds.items()
            if 1.0 / speed < here and all(one.may_have(model) for one in requests)
        ]
        best: tuple[float, Place, Awaits] | None = None
        for least, model in sorted(faster)[:MODELS_MAX]:
            latest = self._now + lasts_s * (1.0 - least / here) / MARGIN - waited_s
            found = self._found(job_id, demand, model, latest)
            if found is None:
                continue
            at, there = found
            then = free_capacity.slowdown(there, asked)
            saves_s = lasts_s * (1.0 - then / here)
            ends = at + lasts_s - saves_s
            if waited_s + at - self._now <= saves_s / MARGIN and (best is None or ends < best[0]):
                best = (ends, there, Awaits(job_id, model, at, at + LATE_S, saves_s))
        if best is None:
            return None
        self._expected.append((best[2].at, best[1]))
        self._expected.sort(key=lambda one: one[0])
        return best[2]

    def _found(self, job_id: str, demand: Demand, model: str, latest: float) -> tuple[float, Place] | None:
        """When, until `latest`, there is room for the job on the model, and where."""
        free_capacity, ended, expected = self._cluster.free_capacity, 0, list(self._expected)
        if latest <= self._now:
            return None
        alone, asked = only_on(demand.resource_request, model), self._cluster.asked(job_id)
        with free_capacity.supposing(closed=self._closed_to(job_id, demand)):
            for ending in self._cluster.endings():
                if ending.at_s > latest or ended >= ENDINGS_MAX or self._work >= WORK_MAX:
                    return None
                self._work += 1
                held = [one for one in self._cluster.held(ending.job_id) if self._is_on(one, model)]
                if ending.at_s + LATE_S <= self._now or not held:
                    continue
                ended += 1
                free_capacity.give_back_all(held)
                while expected and expected[0][0] <= ending.at_s:
                    _, place = expected.pop(0)
                    free_capacity.take_all(place if fits_there(free_capacity, place) else ())
                self._work += FIND_COUNTS
                if (found := find(free_capacity, alone, asked)) is not None:
                    return ending.at_s, found
        return None

    def _is_on(self, one: Allocation, model: str) -> bool:
        node = self._cluster.free_capacity.nodes.get(one.node_id)
        return node is not None and one.share is None and any(node.gpus.models.get(gpu) == model for gpu in one.gpus)
