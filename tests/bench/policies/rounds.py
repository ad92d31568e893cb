"""The PAL artifact's own rules: time passes in rounds, and every round decides anew.

Its driver has quirks, kept here so that results agree to the second: jobs start and end only at the beginning of a
round; FIFO takes the longest prefix of the queue that the cluster holds, and no job behind it; that prefix is placed
most sensitive class first, and the first job without a place ends the round's placing; moves cost nothing. Places are
found by the scheduler's own placement functions.
"""

from collections.abc import Callable, Sequence
from math import ceil

from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity, Placer
from weft.planning.finding import find
from weft.planning.placement.pal import pal
from weft.planning.placement.pm_first import pm_first
from weft.planning.placement.unscored import packed
from weft.planning.resource_request import PlacementRequest
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import JobOutcome, Outcome, Spell, outcome_of
from weft.simulator.pool import gpus_in, room_of, shape_of
from weft.simulator.workload import TraceJob, Workload

ARTIFACT_GROUPS = 2  # PAL's published code stops its search for the best number of groups at the first one
ROUND_S = 360.0
GRAIN = 1e-9  # tolerance for rounding errors of adding up rounds, as a part of the work

PLACERS: dict[str, Placer] = {"pal": pal, "pm-first": pm_first, "packed-sticky": packed, "packed": packed}


class _Job:
    """One job on its way; `number` is its place in the workload."""

    __slots__ = (
        "allocations",
        "asked",
        "begun",
        "done_s",
        "moves",
        "number",
        "slowdown",
        "spell_begin",
        "spells",
        "trace",
    )

    def __init__(self, number: int, trace: TraceJob) -> None:
        self.number = number
        self.trace = trace
        self.done_s = 0.0
        self.asked = PlacementRequest(trace.job_class, trace.id)
        self.allocations: tuple[Allocation, ...] = ()
        self.slowdown = 1.0
        self.begun: float | None = None
        self.spell_begin = 0.0
        self.spells: list[Spell] = []
        self.moves = 0

    def rounds_left(self, round_s: float) -> int:
        left = self.trace.work_s * (1.0 - GRAIN) - self.done_s
        return max(1, ceil(left * self.slowdown / round_s))

    def settle(self, now: float, allocations: tuple[Allocation, ...], free_capacity: FreeCapacity) -> None:
        """The job runs there from now on."""
        if allocations == self.allocations:
            return
        self.leave(now)
        if self.allocations:
            self.moves += 1
        self.begun = now if self.begun is None else self.begun
        self.allocations, self.spell_begin = allocations, now
        self.slowdown = free_capacity.slowdown(allocations, self.asked)

    def leave(self, now: float) -> None:
        if self.allocations and now > self.spell_begin:
            self.spells.append(Spell(self.number, self.spell_begin, now, gpus_in(self.allocations), self.slowdown))


def simulate_rounds(
    workload: Workload,
    cluster: Cluster,
    placement: str,
    *,
    penalty: float,
    round_s: float = ROUND_S,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """FIFO in rounds of `round_s` seconds. `progress(done, all)` is called as jobs end.

    Raises ValueError if `placement` is not one of the artifact's.
    """
    if placement not in PLACERS:
        raise ValueError(f"placement: the artifact's rules know {', '.join(PLACERS)}, not {placement}")
    free_capacity = room_of(cluster, World(penalty=penalty), placer=PLACERS[placement], groups=ARTIFACT_GROUPS)
    arriving = [_Job(number, job) for number, job in enumerate(workload.jobs)]
    arriving.sort(key=lambda job: job.trace.arrival_s)
    active: list[_Job] = []
    ended: dict[int, JobOutcome] = {}
    spells: list[Spell] = []
    now, at, decisions, placements = 0.0, 0, 0, 0
    while len(ended) < len(workload.jobs):
        while at < len(arriving) and arriving[at].trace.arrival_s <= now:
            active.append(arriving[at])
            at += 1
        decisions += 1
        running = _place(active, free_capacity, now, cluster.gpus, placement)
        placements += len(running)
        # Decisions stay the same until a job arrives or ends: the rounds before that pass at once.
        until_end = min((job.rounds_left(round_s) for job in running), default=None)
        until_arrival = (
            max(1, ceil((arriving[at].trace.arrival_s - now) / round_s)) if at < len(arriving) else until_end
        )
        rounds = min(count for count in (until_end, until_arrival) if count is not None)
        now += rounds * round_s
        for job in running:
            job.done_s += rounds * round_s / job.slowdown
            if job.done_s >= job.trace.work_s * (1.0 - GRAIN):
                job.leave(now)
                free_capacity.give_back_all(job.allocations)
                active.remove(job)
                spells += job.spells
                assert job.begun is not None
                ended[job.number] = outcome_of(job.trace, started_s=job.begun, completed_s=now, moves=job.moves)
        if progress is not None:
            progress(len(ended), len(workload.jobs))
    return Outcome(
        workload=workload.name,
        policy=f"fifo+{placement}+none",
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        jobs=tuple(ended[number] for number in range(len(workload.jobs))),
        spells=tuple(sorted(spells, key=lambda spell: (spell.begin_s, spell.job))),
        settings={"round_s": f"{round_s:g}", "penalty": f"{penalty:g}"},
        notes=workload.notes,
        decisions=decisions,
        placements=placements,
    )


def _place(active: Sequence[_Job], free_capacity: FreeCapacity, now: float, gpus: int, placement: str) -> list[_Job]:
    """The jobs that run in this round, each with its place."""
    prefix: list[_Job] = []
    for job in active:
        gpus -= job.trace.gpus
        if gpus < 0:
            break
        prefix.append(job)
    sticky = placement == "packed-sticky"
    if sticky:
        waiting = [job for job in prefix if not job.allocations]
    else:
        for job in active:
            free_capacity.give_back_all(job.allocations)
        by_class = placement in ("pal", "pm-first")
        waiting = (
            sorted(prefix, key=lambda job: free_capacity.scores.sensitivity(job.trace.job_class))
            if by_class
            else prefix
        )
    placed: dict[int, tuple[Allocation, ...]] = {}
    for job in waiting:
        found = find(free_capacity, shape_of(job.trace.gpus), job.asked)
        if found is None:
            break
        placed[job.number] = found
        free_capacity.take_all(found)
    for job in active:
        if job.number in placed:
            job.settle(now, placed[job.number], free_capacity)
        elif not sticky and job.allocations:
            job.leave(now)
            job.allocations = ()
    return [job for job in active if job.allocations]
