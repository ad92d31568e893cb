"""All jobs that may move choose again, one after the other, as if none of them had begun.

Most of the jobs that choose again now chose again a moment ago, in the same turn and from the same room: what each
chose then is remembered, and a place is looked for only from the first job on that finds something else.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import Place, find
from weft.planning.resource_request import PlacementRequest, ResourceRequest

REMEMBERED_MAX = 10_000  # choices


class Movable(Struct, frozen=True, kw_only=True):
    """A running job. `left_s`: how much work it still has, in seconds on typical GPUs in one node, as far as is known;
    `cost_s`: for how long it does no work if it moves; `slowdown`: its `room.slowdown`, if the caller knows it.
    """

    job_id: str
    resource_request: ResourceRequest
    asked: PlacementRequest
    allocations: tuple[Allocation, ...]
    gpus: float
    left_s: float
    cost_s: float
    slowdown: float | None = None


class _Choice(Struct):
    """The result of one job in one capacity: a place, the speed there, and whether its own place is free."""

    resource_request: ResourceRequest
    asked: PlacementRequest
    allocations: tuple[Allocation, ...]
    place: Place | None
    slowdown: float
    own_is_free: bool
    behind_it: dict[str, "_Choice"]  # by job: what was found once this job had taken its new place
    behind_own: dict[str, "_Choice"]  # the same once it had kept its own

    def is_of(self, job: Movable) -> bool:
        return (
            (self.allocations is job.allocations or self.allocations == job.allocations)
            and (self.resource_request is job.resource_request or self.resource_request == job.resource_request)
            and (self.asked is job.asked or self.asked == job.asked)
        )


class ChoosingAgain:
    """Choices of earlier calls count for as long as the room is, before the first choice, as it was then."""

    def __init__(self) -> None:
        self._free_capacity: object = None  # as the first job found it
        self._first: dict[str, _Choice] = {}
        self._count = 0

    def places(
        self, free_capacity: FreeCapacity, jobs: Sequence[Movable], before: Mapping[str, float], margin: float
    ) -> dict[str, tuple[Allocation, ...]]:
        """The place of each job, in turn, up to the first that finds none. A job that finds no other place, or gains
        too little by it, keeps its own, if that is free. `before`: the slowdown of each job. The room is left holding
        some of them."""
        self._heed(free_capacity)
        after: dict[str, tuple[Allocation, ...]] = {}
        known, ahead = self._first, list[tuple[Allocation, ...]]()  # `ahead`: places that the room does not hold yet
        for job in jobs:
            choice = known.get(job.job_id)
            if choice is None or not choice.is_of(job):
                for one in ahead:
                    free_capacity.take_all(one)
                ahead.clear()
                choice = known[job.job_id] = _choice(free_capacity, job)
                self._count += 1
            saved = job.left_s * (before[job.job_id] - choice.slowdown)
            keeps = choice.own_is_free and (choice.place is None or saved <= margin * job.cost_s)
            place = job.allocations if keeps else choice.place
            if place is None:
                break
            after[job.job_id] = place
            known = choice.behind_own if keeps else choice.behind_it
            ahead.append(after[job.job_id])
        return after

    def _heed(self, free_capacity: FreeCapacity) -> None:
        present = free_capacity.present()
        if self._count > REMEMBERED_MAX or present != self._free_capacity:
            self._free_capacity, self._first, self._count = present, {}, 0


def _choice(free_capacity: FreeCapacity, job: Movable) -> _Choice:
    place = find(free_capacity, job.resource_request, job.asked)
    slowdown = 0.0 if place is None else free_capacity.slowdown(place, job.asked)
    return _Choice(
        job.resource_request,
        job.asked,
        job.allocations,
        place,
        slowdown,
        _is_free(free_capacity, job.allocations),
        {},
        {},
    )


def _is_free(free_capacity: FreeCapacity, allocations: Sequence[Allocation]) -> bool:
    nodes = free_capacity.nodes
    return all(one.node_id in nodes and nodes[one.node_id].gpus.has(one.gpus) for one in allocations)
