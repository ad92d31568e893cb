"""Which running jobs move: those that gain more by it than it costs, all counted in GPU-seconds.

A move costs what the job's GPUs do not do while it stops and starts. What it gains is the time that better GPUs, or
GPUs nearer to each other, save for as long as the job still runs, but for no longer than HORIZON_S: by then moves will
have been decided many times more. Jobs that hold shares of GPUs stay where they are: who is beside them changes more
often than a move pays. If it is not known how long a job still runs, the caller assumes as long again as it
has run: the heavier the tail of durations, the truer (the Lindy effect).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct

from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity
from weft.planning.choosing_again import ChoosingAgain, Movable
from weft.planning.finding import find
from weft.planning.order import Key
from weft.planning.resource_request import ResourceRequest
from weft.planning.scores import GpuKey

HORIZON_S = 7200.0
JOINT_MOST = 64  # up to so many jobs choose again together; if there are more, each by itself
AT_ONCE_MOST = 16  # moves at once where each job chooses by itself
REST = 10.0  # a job that was stopped before runs this many times the cost of a move before it moves


class MoveRules(Struct, frozen=True, kw_only=True):
    """`margin`: a move gains at least this many times its cost.

    `cost_seconds`: the cost besides the job's grace and its work since the last checkpoint.
    """

    on: bool = True
    margin: float = 2.0
    at_once_max: int = 4
    cost_seconds: float = 60.0
    every_seconds: float = 10.0


class Move(Struct, frozen=True):
    """`gain`: the GPU-seconds that the move saves, less `margin` times what it costs. Of several moves that only make
    sense together, one may have a negative gain."""

    job_id: str
    allocations: tuple[Allocation, ...]
    gain: float


def moves_for(
    free_capacity: FreeCapacity,
    movable: Sequence[Movable],
    *,
    margin: float = 1.0,
    choosing: ChoosingAgain | None = None,
) -> list[Move]:
    """Moves that are all made at once. `movable` is in the order of service; the room stays as it was. `choosing`, kept
    by the caller from call to call, remembers what was found for the same jobs; the moves are those without it."""
    movable = [job for job in movable if all(one.share is None for one in job.allocations)]
    if len(movable) > JOINT_MOST:
        return _one_by_one(free_capacity, movable, margin)
    return _together(free_capacity, movable, margin, choosing or ChoosingAgain())


def together(moves: Sequence[Move], held: Mapping[str, tuple[Allocation, ...]], *, most: int) -> list[list[Move]]:
    """The moves in independent groups: a job that moves onto another job's GPUs moves together with it. The groups that
    gain most come first; no more than `most` moves in all, and no group without a gain.
    """
    by_job = {move.job_id: move for move in moves}
    owner = {gpu: job_id for job_id in by_job for gpu in gpus_of(held[job_id])}
    groups = {frozenset(_with_owners(job_id, by_job, owner)) for job_id in by_job}
    gains = {group: sum(by_job[job_id].gain for job_id in group) for group in groups}
    chosen: list[list[Move]] = []
    taken: set[str] = set()
    for group in sorted(groups, key=lambda group: (-gains[group], sorted(group))):
        if gains[group] > 0 and taken.isdisjoint(group) and len(taken) + len(group) <= most:
            taken |= group
            chosen.append([by_job[job_id] for job_id in sorted(group)])
    return chosen


def _with_owners(job_id: str, moves: Mapping[str, Move], owner: Mapping[GpuKey, str]) -> set[str]:
    found, ahead = {job_id}, [job_id]
    while ahead:
        owners = {owner[gpu] for gpu in gpus_of(moves[ahead.pop()].allocations) if gpu in owner} - found
        found |= owners
        ahead += owners
    return found


def gpus_of(allocations: Iterable[Allocation]) -> set[GpuKey]:
    """The GPUs that these allocations hold."""
    return {(allocation.node_id, gpu) for allocation in allocations for gpu in allocation.gpus}


def _together(
    free_capacity: FreeCapacity, jobs: Sequence[Movable], margin: float, choosing: ChoosingAgain
) -> list[Move]:
    """All jobs give back their GPUs and choose again; all of the moves that follow, or none if they gain nothing."""
    before = {job.job_id: _slowdown(free_capacity, job) for job in jobs}
    by_node = sorted([allocation for job in jobs for allocation in job.allocations], key=attrgetter("node_id"))
    with free_capacity.supposing(given_back=by_node):
        after = choosing.places(free_capacity, sorted(jobs, key=_turn(free_capacity)), before, margin)
    if len(after) < len(jobs):
        return []
    moves = _worth(free_capacity, jobs, before, after, margin)
    return moves if sum(move.gain for move in moves) > 0 else []


def _turn(free_capacity: FreeCapacity) -> Callable[[Movable], Key]:
    """Which job chooses first: gangs that one node can hold, then gangs that need several, then single GPUs, which fit
    anywhere. Among those, the most sensitive class; among those, the job that is served first."""

    def turn(job: Movable) -> Key:
        size = 2 if job.gpus == 1 else 1 if job.gpus > free_capacity.largest else 0
        return (size, free_capacity.scores.sensitivity(job.asked.job_class))

    return turn


def _worth(
    free_capacity: FreeCapacity,
    jobs: Sequence[Movable],
    before: Mapping[str, float],
    after: Mapping[str, tuple[Allocation, ...]],
    margin: float,
) -> list[Move]:
    """The moves from the places before to those after. A loss counts only for as long as another job gains."""
    faster: dict[str, float] = {}
    for job in jobs:
        if after[job.job_id] is not job.allocations and set(after[job.job_id]) != set(job.allocations):
            slowdown = free_capacity.slowdown(after[job.job_id], job.asked)
            faster[job.job_id] = 1.0 / slowdown - 1.0 / before[job.job_id]
    moving = [job for job in jobs if job.job_id in faster]
    lasts = max((job.left_s * before[job.job_id] for job in moving if faster[job.job_id] > 0), default=0.0)
    lasts = min(lasts, HORIZON_S)
    return [
        Move(
            job.job_id,
            after[job.job_id],
            job.gpus * (faster[job.job_id] * min(lasts, job.left_s * before[job.job_id]) - margin * job.cost_s),
        )
        for job in moving
    ]


def _one_by_one(free_capacity: FreeCapacity, jobs: Sequence[Movable], margin: float) -> list[Move]:
    """The jobs that gain most by what is free now, one after the other."""
    free: dict[tuple[ResourceRequest, str, float], float | None] = {}  # the slowdown of the best free place, by need
    hopeful: list[tuple[float, str, Movable, float]] = []
    for job in jobs:
        slowdown = _slowdown(free_capacity, job)
        penalty = free_capacity.locality.across(job.asked.workload)
        need = (job.resource_request, job.asked.job_class, penalty)
        if need not in free:
            found = find(free_capacity, job.resource_request, job.asked)
            free[need] = None if found is None else free_capacity.slowdown(found, job.asked)
        best = free[need]
        gain = 0.0 if best is None else _gain(job, slowdown, best, margin)
        if gain > 0:
            hopeful.append((-gain, job.job_id, job, slowdown))
    moves: list[Move] = []
    with free_capacity.supposing():
        for _, _, job, slowdown in sorted(hopeful, key=lambda hope: hope[:2])[:AT_ONCE_MOST]:
            free_capacity.give_back_all(job.allocations)
            found = find(free_capacity, job.resource_request, job.asked)
            gain = 0.0 if found is None else _gain(job, slowdown, free_capacity.slowdown(found, job.asked), margin)
            if found is None or gain <= 0:
                free_capacity.take_all(job.allocations)
            else:
                free_capacity.take_all(found)
                moves.append(Move(job.job_id, found, gain))
    return moves


def _slowdown(free_capacity: FreeCapacity, job: Movable) -> float:
    return free_capacity.slowdown(job.allocations, job.asked) if job.slowdown is None else job.slowdown


def _gain(job: Movable, slowdown: float, instead: float, margin: float) -> float:
    faster = 1.0 / instead - 1.0 / slowdown
    return job.gpus * (faster * min(HORIZON_S, job.left_s * slowdown) - margin * job.cost_s)
