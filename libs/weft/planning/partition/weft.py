"""Weft's partition planner: as much progress as possible, then as fair as possible for at most 2 % less of it.

    most   sum over the jobs of weight x the root of progress
    with   what the pool has; one configuration for each job; a job that runs goes on, a starving one starts
           F <= theta1 x 2 x resources; changed jobs <= ceil(theta2 x jobs that run)
    then   least F + 0.01 x changed jobs, with at least 98 % of that progress

Progress is the speed in parts of the speed at the fair share, without what a restart loses of it within the horizon. By
its root, the first replicas of a job are worth more than its last ones; so large jobs do not outgrow the others where
all scale well. Where the bounds leave no solution, theta2 is given up,
then theta1, then starving jobs wait on, the one that has waited longest last; where there is still none, all stays as
it is. Sizes that do not fit on the servers are forbidden, and the program is solved again.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, inf

import numpy as np
from msgspec.structs import replace

from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.partition.choosing import ChoiceLimits, Chooser
from weft.planning.partition.configurations import Configurations
from weft.planning.partition.fair import FairShare, dominant_share, resources, whole_of
from weft.planning.partition.outcome import kept, partition_of
from weft.planning.partition.packing import Packer, TargetSize, pack
from weft.planning.partition.solving import SolverLimits
from weft.planning.shares import Amounts

CUTS_MOST = 1
GAP = 0.01
BRANCHES = 200
ROUNDING = 1e-9


def weft(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Partition:
    if not jobs or not servers:
        return kept(jobs, servers, "" if not jobs else "there is no server")
    return _Planner(jobs, servers, rules).partition()


class _Planner:
    def __init__(self, jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> None:
        self.jobs, self.servers, self.rules = jobs, servers, rules
        self.options = Configurations(jobs, servers, rules)
        limits = SolverLimits(gap=GAP, branches=BRANCHES, seconds=rules.solver_seconds)
        self.chooser = Chooser(self.options, limits)
        self.packer = Packer(jobs, servers, self.options.levels)
        self.running = [i for i, job in enumerate(jobs) if job.now]
        late = [i for i, job in enumerate(jobs) if not job.now and job.waited_s > rules.starved_s and not job.fixed]
        self.late = sorted(late, key=lambda i: (-jobs[i].waited_s, i))
        self.whole = whole_of(servers)
        self.unfair_most = rules.theta1 * 2 * resources(jobs, self.whole)
        self.changes_most = ceil(rules.theta2 * len(self.running) - ROUNDING)

    def partition(self) -> Partition:
        picked, bounds, impossible = self._chosen()
        if impossible:
            return kept(self.jobs, self.servers, "the jobs that run do not fit at any size")
        packer, short = self._packed(picked, bounds)
        for _ in range(CUTS_MOST):
            if not short:
                break
            self._forbid(short)
            picked = self.chooser.choose_again(bounds)
            if picked is None:
                break
            packer, short = self._packed(picked, bounds)
        filled(packer, self.jobs, self.whole, self.options.fair, self.rules)
        return self._result(packer)

    def _result(self, packer: Packer) -> Partition:
        sizes = {job.job_id: packer.size(job) for job in self.jobs}
        found = partition_of(sizes, packer.where(), self.jobs, self.servers, self.options.fair)
        waits = [f"starved:{self.jobs[i].job_id}" for i in self.late if not sizes[self.jobs[i].job_id]]
        unfair = ["theta1"] if found.unfairness > self.unfair_most + ROUNDING else []
        many = ["theta2"] if sum(map(packer.changed, self.jobs)) > self.changes_most else []
        return replace(found, relaxed=(*waits, *unfair, *many))

    def _chosen(self) -> tuple[Mapping[int, int] | None, ChoiceLimits, bool]:
        """By job the configuration that it gets, within the strictest bounds possible; and whether none can exist."""
        impossible = True
        for bounds in self._bounds():
            picked = self.chooser.choose(bounds)
            if picked is not None:
                return picked, bounds, False
            impossible &= self.chooser.infeasible
        return None, bounds, impossible

    def _bounds(self) -> Iterator[ChoiceLimits]:
        """From the strictest to the loosest."""
        starving = self._starving()
        must = frozenset((*self.running, *starving))
        bounded = ((self.unfair_most, self.changes_most), (self.unfair_most, inf), (inf, self.changes_most))
        for unfairness, changes in (*bounded, (inf, inf)):
            yield ChoiceLimits(unfairness=unfairness, changes=changes, must=must)
        for count in reversed(range(len(starving))):
            yield ChoiceLimits(unfairness=inf, changes=inf, must=frozenset((*self.running, *starving[:count])))

    def _starving(self) -> list[int]:
        """The jobs that have waited too long and for which there is room, the longest first.

        There is room for a job if all that run and all starving jobs before it fit with the least that they can have.
        """
        rows, used = self.options.rows, np.zeros(len(self.options.bounds))
        for i in self.running:
            used += rows[:, self.options.columns[i]].min(axis=1, initial=inf)
        starts = []
        for i in self.late:
            least = rows[:, self.options.columns[i]].min(axis=1, initial=inf)
            if (used + least <= self.options.bounds + ROUNDING).all():
                used += least
                starts.append(i)
        return starts

    def _packed(self, picked: Mapping[int, int] | None, bounds: ChoiceLimits) -> tuple[Packer, dict[int, int]]:
        """Where the chosen configurations can be, and by job how many replicas fit where not all did.

        If none were chosen, the solver was out of time, and all jobs stay as they are.
        """
        packer = self.packer.copy()
        if picked is None:
            return packer, {}
        targets = [
            TargetSize(
                job=job,
                size=int(self.options.size[picked[i]]) if i in picked else 0,
                level=int(self.options.level[picked[i]]) if i in picked else 0,
                changed=i in picked and bool(self.options.changed[picked[i]]),
            )
            for i, job in enumerate(self.jobs)
        ]
        short = pack(packer, targets, [self.jobs[i].job_id for i in self.late if i in bounds.must])
        return packer, {i: short[job.job_id] for i, job in enumerate(self.jobs) if job.job_id in short}

    def _forbid(self, short: Mapping[int, int]) -> None:
        """No more than what did fit; what a running job has stays allowed."""
        for i, fits in short.items():
            columns = self.options.columns[i]
            starts = not self.jobs[i].now
            over = (self.options.size[columns] > fits) & (starts | (self.options.changed[columns] > 0))
            self.chooser.forbid(i, columns[over])


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
