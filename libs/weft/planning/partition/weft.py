"""Weft's partition planner: as much progress as possible, then as fair as possible for at most 2 % less of it.

    most   sum over the jobs of weight x the root of progress
    with   what the pool has; one configuration for each job; a job that runs goes on, a starving one starts
           F <= theta1 x 2 x resources; changed jobs <= ceil(theta2 x jobs that run)
    then   least F + 0.01 x changed jobs, with at least 98 % of that progress

Progress is the speed in parts of the speed at the fair share, without what a restart loses of it within the horizon. By
its root, the first replicas of a job are worth more than its last ones; so large jobs do not outgrow the others where
all scale well. A number of GPUs says little of a share where they are of several models: F has no bound there, and
counts for nothing. Where the bounds leave no solution, theta2 is given up, then theta1; where there is still none, all
stays as it is. Starving jobs that do not fit beside those that run and those that have waited longer wait on. Sizes
that do not fit on the servers are forbidden, and the program is solved again.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, inf

import numpy as np
from msgspec.structs import replace

from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.partition.choosing import ChoiceLimits, Chooser
from weft.planning.partition.configurations import Configurations, Numbers
from weft.planning.partition.fair import dominant_share, resources, whole_of
from weft.planning.partition.levels import Levels
from weft.planning.partition.outcome import kept, partition_of
from weft.planning.partition.packing import Packer, TargetSize, packed
from weft.planning.partition.solving import SolverLimits
from weft.planning.shares import Amounts

CUTS_MOST = 1
GAP = 0.01
BRANCHES = 200
ROUNDING = 1e-9


def weft(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Partition:
    if not jobs or not servers:
        return kept(jobs, servers, "" if not jobs else "no node can take jobs")
    return _Planner(jobs, servers, rules).partition()


class _Planner:
    def __init__(self, jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> None:
        self.jobs, self.servers, self.rules = jobs, servers, rules
        self.options = Configurations(jobs, servers, rules)
        self.models = self.options.levels.models
        self.chooser = Chooser(self.options, SolverLimits(gap=GAP, branches=BRANCHES, iterations=rules.iterations))
        self.packer = Packer(jobs, servers, self.options.levels)
        self.running = [i for i, job in enumerate(jobs) if job.now]
        late = [
            i for i, job in enumerate(jobs) if not job.now and job.waited_s > rules.starved_s and not job.keeps_size
        ]
        self.late = sorted(late, key=lambda i: (-jobs[i].waited_s, i))
        self.whole = whole_of(servers)
        self.unfair_most = rules.theta1 * 2 * resources(jobs, self.whole) if len(self.models) == 1 else inf
        self.changes_most = ceil(rules.theta2 * len(self.running) - ROUNDING)

    def partition(self) -> Partition:
        picked, bounds, impossible = self._chosen()
        if impossible:
            return kept(self.jobs, self.servers, "the jobs that run do not fit at any size")
        packer, short = self._packed(picked, bounds)
        for _ in range(CUTS_MOST):
            if not short or picked is None:
                break
            self._forbid(picked, short)
            picked = self.chooser.choose_again(bounds)
            if picked is None:
                break
            packer, short = self._packed(picked, bounds)
        filled(packer, self.jobs, self.whole, self.options, self.rules)
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
        """The limits, from the strictest to the loosest."""
        starving = self._starving()
        bounded = ((self.unfair_most, self.changes_most), (self.unfair_most, inf), (inf, self.changes_most), (inf, inf))
        for unfairness, changes in dict.fromkeys(bounded):
            yield ChoiceLimits(unfairness=unfairness, changes=changes, must=frozenset((*self.running, *starving)))
        if starving:
            yield ChoiceLimits(unfairness=inf, changes=inf, must=frozenset(self.running))

    def _starving(self) -> list[int]:
        """The jobs that have waited too long and for which there is room, the longest first.

        There is room for a job if all that run and all starving jobs before it fit with the least that they can have,
        each on the model of which it leaves the others most. So there is a solution in which all of these start.
        """
        used = np.zeros(len(self.options.bounds))
        for i in self.running:
            used = self._with_least(i, used)
        starts = []
        for i in self.late:
            after = self._with_least(i, used)
            if (after <= self.options.bounds + ROUNDING).all():
                used = after
                starts.append(i)
        return starts

    def _with_least(self, i: int, used: Numbers) -> Numbers:
        """The use of each row with the configuration of the job that leaves most of the scarcest row; infinite if
        the job has none."""
        columns = self.options.columns[i]
        if not len(columns):
            return np.full(len(used), inf)
        after = used[:, None] + self.options.rows[:, columns]
        bounds = np.maximum(self.options.bounds, ROUNDING)[:, None]
        fullest: Numbers = (after / bounds * (self.options.rows[:, columns] > 0)).max(axis=0, initial=0.0)
        return after[:, int(fullest.argmin())]

    def _packed(self, picked: Mapping[int, int] | None, bounds: ChoiceLimits) -> tuple[Packer, dict[int, int]]:
        """Where the chosen configurations can be, and by job how many replicas fit where not all did.

        If none were chosen, the solver was out of time, and all jobs stay as they are.
        """
        if picked is None:
            return self.packer.copy(), {}
        targets = [self._target(i, job, picked.get(i)) for i, job in enumerate(self.jobs)]
        packer, short = packed(self.packer, targets, [self.jobs[i].job_id for i in self.late if i in bounds.must])
        return packer, {i: short[job.job_id] for i, job in enumerate(self.jobs) if job.job_id in short}

    def _target(self, i: int, job: ElasticJob, column: int | None) -> TargetSize:
        if column is None:
            return TargetSize(job=job, size=0, level=0, changed=False, model=job.model)
        options = self.options
        stays = job.now > 0 and column == options.columns[i][0]
        has_model = job.each[0] > 0 and not stays
        model = self.models[options.model[column]] if has_model else job.model
        size = int(options.size[column])
        restarts = job.now > 0 and job.restart_s > 0 and job.each[0] > 0
        return TargetSize(
            job=job,
            size=size,
            level=int(options.level[column]),
            changed=bool(options.changed[column]),
            model=model,
            anew=restarts and (model != job.model or (len(self.models) > 1 and size != job.now)),
        )

    def _forbid(self, picked: Mapping[int, int], short: Mapping[int, int]) -> None:
        """Forbid more on that model than the number that fitted; the replicas of a running job stay allowed."""
        options = self.options
        for i, fits in short.items():
            columns = options.columns[i]
            starts = not self.jobs[i].now
            over = (options.size[columns] > fits) & (starts | (options.changed[columns] > 0))
            if i in picked:
                over &= options.model[columns] == options.model[picked[i]]
            self.chooser.forbid(i, columns[over])


def filled(packer: Packer, jobs: Sequence[ElasticJob], whole: Amounts, options: Configurations, rules: Rules) -> None:
    """Starts waiting jobs, those that have waited longest first; then jobs grow up to their fair share.

    They grow to the next size that is faster, the job furthest below its fair share for its weight first. Nothing
    shrinks. Including earlier changes, at most theta2 of the running jobs change, and no job restarts for this alone.
    Jobs that shrink do not grow again elsewhere.
    """
    fair = options.fair
    for job in sorted(
        (job for job in jobs if not packer.size(job) and not job.keeps_size), key=lambda job: -job.waited_s
    ):
        unfair = dominant_share(job, job.least, whole) > 2 * fair[job.job_id].share
        if not unfair or job.waited_s > rules.starved_s:
            _start(packer, job, options.levels)
    changed = sum(1 for job in jobs if packer.changed(job))
    may_change = ceil(rules.theta2 * sum(1 for job in jobs if job.now) - ROUNDING) - changed

    def below(job: ElasticJob, size: int) -> float:
        """The distance from its fair share at that size; negative if it is below."""
        return (dominant_share(job, size, whole) - fair[job.job_id].share - ROUNDING) / job.weight

    heap = [
        (below(job, size), at, size)
        for at, job in enumerate(jobs)
        if not job.keeps_size
        and packer.size(job) >= max(job.now, 1)
        and (size := _next_size(packer, job)) is not None
        and below(job, size) <= 0
    ]
    heapify(heap)
    while heap:
        _, at, size = heappop(heap)
        job = jobs[at]
        first = job.now > 0 and not packer.changed(job)
        if first and (may_change <= 0 or job.restart_s):
            continue
        if packer.room(job) < size - packer.size(job):
            continue
        packer.grow(job, size)
        may_change -= first
        more = _next_size(packer, job)
        if more is not None and below(job, more) <= 0:
            heappush(heap, (below(job, more), at, more))


def _start(packer: Packer, job: ElasticJob, levels: Levels) -> None:
    """Start the job with its smallest size, on the fastest model that has room."""
    for model in sorted(levels.models_for(job), key=lambda model: -job.speeds[model][0]):
        if packer.grow(job, job.least, len(levels.scores) - 1, model if job.each[0] else None) >= job.least:
            return
        packer.shrink(job, 0)


def _next_size(packer: Packer, job: ElasticJob) -> int | None:
    """The next size at which the job is faster than now."""
    has = packer.size(job)
    speeds = job.speeds[packer.model(job)]
    speed = speeds[has - job.least] if has >= job.least else 0.0
    after = max(has + 1, job.least)
    return next((size for size, more in enumerate(speeds[after - job.least :], after) if more > speed), None)
