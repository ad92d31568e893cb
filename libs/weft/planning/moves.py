"""Decides which running jobs move, and where to: jobs whose gain exceeds the cost, both in GPU-seconds.

The scheduler and the simulator use it, behind the scheduling cycle and the growth of jobs. A job moves by a stop: its
new place is kept for it until it has stopped, and until the jobs there have left, then it starts in that place. Nothing
here changes the state of a cluster: the caller applies each decision before it takes the next.

A move costs what the job's GPUs do not do while it stops and starts, and the work since its last checkpoint. What it
gains is the time that better GPUs, or GPUs nearer to each other, save for as long as the job still runs, but for no
longer than HORIZON_S: by then moves will have been decided many times more. Jobs that hold shares of GPUs stay where
they are: who is beside them changes more often than a move pays. If it is not known how long a job still runs, it is
assumed to run as long again as it has run: the heavier the tail of durations, the truer (the Lindy effect).

The partition planner alone changes the model of a job for which it chose one: such a job moves only among the GPUs of
that model. Otherwise the two could undo each other's decisions, at the price of a restart each.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from math import inf
from operator import attrgetter
from typing import Protocol

from msgspec import Struct

from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity
from weft.planning.choosing_again import ChoosingAgain, Movable
from weft.planning.finding import Place, find, fits_there
from weft.planning.order import Key
from weft.planning.policy import GAINFUL, Policy
from weft.planning.queue import Place as PlaceInOrder
from weft.planning.resource_request import PlacementRequest, ResourceRequest, only_on, with_gpus
from weft.planning.scores import TYPICAL, GpuKey

HORIZON_S = 7200.0
REST = 10.0  # a job that was stopped before runs this many times the cost of a move before it moves
JOINT_MOST = 64  # up to so many jobs choose again together; if there are more, each by itself
AT_ONCE_MOST = 16  # moves at once where each job chooses by itself
LOOKED_AT_MAX = 128  # jobs that choose again: those with most to gain
IN_VAIN_MAX = 6  # looks in vain in a row, after each of which the time to the next doubles
KEEP_SECONDS = 60.0  # beyond the time in which the job stops, how long its new place is kept


class MoveRules(Struct, frozen=True, kw_only=True):
    """`margin`: a move gains at least this many times its cost.

    `cost_seconds`: the cost besides the job's grace and its work since the last checkpoint. Every `every_seconds` jobs
    that would gain are looked for; at most `at_once_max` jobs move at a time.
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


class Candidate(Struct, frozen=True, kw_only=True):
    """A running job that may move. `cost_s`: the cost of a move besides `MoveRules.cost_seconds`; `stop_s`: the time in
    which the job stops; `epoch`: the number of stops before; `since`: the time at which it got its place. `model`: the
    model of GPUs that the partition planner chose for it, which no move changes; empty if none.

    It is expected to run until `ends`, or, with None, for as long again as it has run since `began`.
    """

    allocations: Place
    gpus: float
    cost_s: float
    stop_s: float
    epoch: int
    since: float
    began: float
    ends: float | None
    model: str = ""

    def left_s(self, now: float) -> float:
        return max(0.0, now - self.began if self.ends is None else self.ends - now)


class Target(Struct, frozen=True, kw_only=True):
    """The place of a job that is stopped in `epoch` to move, kept for it until `until`; and why: what it saves, at what
    cost, and the job that gains most of those that move together (`for_whom`)."""

    job_id: str
    place: Place
    resource_request: ResourceRequest
    epoch: int
    until: float
    for_whom: str
    slowdown_before: float
    slowdown_after: float
    saves_s: float
    cost_s: float


class LetsGo(Struct, frozen=True):
    """Release the place that was reserved for the job."""

    job_id: str


class Arrives(Struct, frozen=True):
    """The job starts in its new place."""

    target: Target


class Cluster(Protocol):
    """The state of a cluster, as moves read it."""

    @property
    def free_capacity(self) -> FreeCapacity: ...
    def running(self) -> Iterable[tuple[str, int]]:
        """The jobs that hold GPUs, each with a number that is another one whenever its candidate may be."""
        ...

    def candidate(self, job_id: str) -> Candidate | None:
        """The job as a candidate for a move; None: it stays where it is."""
        ...

    def place_in_order(self, job_id: str) -> PlaceInOrder: ...
    def as_placed(self, job_id: str) -> ResourceRequest:
        """The request for the ranks that the job has, which may be fewer than it wanted."""
        ...

    def asked(self, job_id: str) -> PlacementRequest: ...
    def score_news(self) -> int:
        """Counts the changes of scores."""
        ...

    def stopping_to_move(self) -> Collection[str]: ...
    def is_on_its_way(self, job_id: str, epoch: int) -> bool:
        """True if the job still stops to move, or waits since it has stopped; it was stopped in `epoch`."""
        ...

    def waits(self, job_id: str) -> bool: ...
    def is_left(self, gpus: Collection[GpuKey]) -> bool:
        """True if no job holds any of these GPUs any more."""
        ...


class _Chance(Struct, frozen=True, kw_only=True):
    """The most that a job could gain: `part` of its time, on the best GPUs of all."""

    version: int
    candidate: Candidate | None
    part: float = 0.0
    needed: float = 0.0
    not_before: float = -inf

    def gain(self, now: float) -> float:
        """The possible gain in GPU-seconds, beyond the least that a move must gain."""
        if not self.part or now < self.not_before or self.candidate is None:
            return 0.0
        return self.candidate.gpus * (self.candidate.left_s(now) * self.part - self.needed)


class Moves:
    """`targets`: by job that is on its way, its place; `next_at`: from when on it is looked again who would gain."""

    def __init__(self, cluster: Cluster, policy: Policy, rules: MoveRules) -> None:
        self.targets: dict[str, Target] = {}
        self.next_at = -inf if rules.on and policy.placing.moves == GAINFUL else inf
        self._cluster = cluster
        self._rules = rules
        self._in_vain = 0  # looks in a row that found no move
        self._chances: dict[str, _Chance] = {}  # by job
        self._fastest: dict[str, float] = {}  # by class, the best score of any GPU
        self._scored: tuple[object, ...] = ()  # the scores, penalties and speeds for which these were worked out
        self._choosing = ChoosingAgain()

    def __getstate__(self) -> dict[str, object]:
        """The state without caches."""
        return {**self.__dict__, "_choosing": ChoosingAgain()}

    def arrive(self, now: float) -> Iterator[LetsGo | Arrives]:
        """The places of jobs that have stopped, and of those that took too long, are let go; the former start there."""
        cluster = self._cluster
        for job_id, target in sorted(self.targets.items()):
            goes_on = cluster.is_on_its_way(job_id, target.epoch)
            arrives = goes_on and cluster.waits(job_id) and cluster.is_left(gpus_of(target.place))
            if goes_on and not arrives and now < target.until:
                continue
            del self.targets[job_id]
            yield LetsGo(job_id)
            if arrives and self._fits(target):
                yield Arrives(target)

    def _fits(self, target: Target) -> bool:
        """Return True if the job still fits. Only GPUs are reserved: CPUs and memory may be taken, the node closed or
        lost."""
        free_capacity = self._cluster.free_capacity
        nodes = [node for one in target.place if (node := free_capacity.nodes.get(one.node_id)) is not None]
        return fits_there(free_capacity, target.place) and all(
            node.starts(want.request) for node in nodes for want in target.resource_request
        )

    def decide(self, now: float, *, closed: Sequence[str]) -> Iterator[tuple[Target, ...]]:
        """Every `every_seconds`, where many jobs run less often after looks in vain: the jobs that stop to move. Those
        of one decision move together, or none does. `closed` nodes are kept for a waiting job."""
        if now < self.next_at:
            return
        self.next_at = now + self._rules.every_seconds * 2.0**self._in_vain
        most = self._rules.at_once_max - len(self.targets.keys() | self._cluster.stopping_to_move())
        running = list(self._cluster.running())
        movable = self._movable(running, now) if most > 0 else []
        costly = most > 0 and len(running) > JOINT_MOST
        self._in_vain = min(self._in_vain + 1, IN_VAIN_MAX) if costly else 0
        if not movable:
            return
        free_capacity = self._cluster.free_capacity
        with free_capacity.supposing(closed=closed):
            found = moves_for(free_capacity, movable, margin=self._rules.margin, choosing=self._choosing)
        jobs = {job.job_id: job for job in movable}
        for group in together(found, {job_id: job.allocations for job_id, job in jobs.items()}, most=most):
            for_whom = max(group, key=lambda move: (move.gain, move.job_id)).job_id
            targets = tuple(self._target(move, jobs[move.job_id], for_whom, now) for move in group)
            self.targets.update((target.job_id, target) for target in targets)
            self._in_vain, self.next_at = 0, now + self._rules.every_seconds
            yield targets

    def _target(self, move: Move, job: Movable, for_whom: str, now: float) -> Target:
        free_capacity, candidate = self._cluster.free_capacity, self._chances[move.job_id].candidate
        assert candidate is not None, "it is among the movable"
        before = free_capacity.slowdown(job.allocations, job.asked)
        after = free_capacity.slowdown(move.allocations, job.asked)
        return Target(
            job_id=move.job_id,
            place=move.allocations,
            resource_request=job.resource_request,
            epoch=candidate.epoch,
            until=now + candidate.stop_s + KEEP_SECONDS,
            for_whom=for_whom,
            slowdown_before=before,
            slowdown_after=after,
            saves_s=job.left_s * (before - after),
            cost_s=job.cost_s,
        )

    def _movable(self, running: Sequence[tuple[str, int]], now: float) -> list[Movable]:
        """The jobs with most to gain on the best GPUs of all, in the order of service."""
        self._forget_scores()
        gains = list[tuple[float, str]]()
        for job_id, version in running:
            chance = self._chances.get(job_id)
            if chance is None or chance.version != version:
                chance = self._chances[job_id] = self._chance(job_id, version)
            gain = chance.gain(now)
            if gain > 0:
                gains.append((-gain, job_id))
        if len(self._chances) > 2 * len(running) + LOOKED_AT_MAX:
            self._chances = {job_id: self._chances[job_id] for job_id, _ in running}
        chosen = [job_id for _, job_id in nsmallest(LOOKED_AT_MAX, gains)]
        return [self._as_movable(job_id, now) for job_id in sorted(chosen, key=self._cluster.place_in_order)]

    def _chance(self, job_id: str, version: int) -> _Chance:
        candidate = self._cluster.candidate(job_id)
        if candidate is None:
            return _Chance(version=version, candidate=None)
        cost_s, asked = self._rules.cost_seconds + candidate.cost_s, self._cluster.asked(job_id)
        slowdown = self._cluster.free_capacity.slowdown(candidate.allocations, asked)
        return _Chance(
            version=version,
            candidate=candidate,
            part=1.0 - self._fastest_of(asked.job_class) / self._fastest_model(job_id, candidate, asked) / slowdown,
            needed=self._rules.margin * cost_s,
            not_before=candidate.since + REST * cost_s if candidate.epoch else -inf,
        )

    def _as_movable(self, job_id: str, now: float) -> Movable:
        candidate = self._chances[job_id].candidate
        assert candidate is not None, "it has something to gain"
        asked = self._cluster.asked(job_id)
        slowdown = self._cluster.free_capacity.slowdown(candidate.allocations, asked)
        return Movable(
            job_id=job_id,
            resource_request=self._request(job_id, candidate),
            asked=asked,
            allocations=candidate.allocations,
            gpus=candidate.gpus,
            left_s=candidate.left_s(now) / slowdown,
            cost_s=self._rules.cost_seconds + candidate.cost_s,
            slowdown=slowdown,
        )

    def _fastest_of(self, job_class: str) -> float:
        if job_class not in self._fastest:
            scores = self._cluster.free_capacity.scores.of(job_class)
            self._fastest[job_class] = min([TYPICAL, *scores.values()])  # a GPU without a score counts as typical
        return self._fastest[job_class]

    def _request(self, job_id: str, candidate: Candidate) -> ResourceRequest:
        """The request for the ranks that the job has, on GPUs of the model that was chosen for it."""
        as_placed = self._cluster.as_placed(job_id)
        return only_on(as_placed, candidate.model) if candidate.model else as_placed

    def _fastest_model(self, job_id: str, candidate: Candidate, asked: PlacementRequest) -> float:
        """The speed of the fastest model that the job may have, in parts of the fastest of all."""
        speeds = self._cluster.free_capacity.speeds_for(asked)
        requests = [want.request for want in self._request(job_id, candidate) if speeds and with_gpus(want.request)]
        suited = [speed for model, speed in speeds.items() if all(one.may_have(model) for one in requests)]
        return max(suited, default=1.0)

    def _forget_scores(self) -> None:
        free_capacity = self._cluster.free_capacity
        if self._scored != (scored := (self._cluster.score_news(), free_capacity.locality, free_capacity.model_speeds)):
            self._scored = scored
            self._chances.clear()
            self._fastest.clear()


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
    """The jobs that gain most from the GPUs that are free now, one after the other."""
    free: dict[tuple[object, ...], float | None] = {}  # the slowdown of the best free place, by need
    hopeful: list[tuple[float, str, Movable, float]] = []
    for job in jobs:
        slowdown = _slowdown(free_capacity, job)
        penalty = free_capacity.locality.across(job.asked.workload)
        workload = job.asked.workload if free_capacity.model_speeds else ""
        need = (job.resource_request, job.asked.job_class, penalty, workload)
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
