"""The jobs that hold GPUs: how many GPUs, their expected ends, and which of them may be preempted."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from weft.domain.job import Allocation
from weft.domain.shares import WHOLE
from weft.planning.backfill import Ending
from weft.planning.order import Order
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.quota.decay import DecayedUse, FairRanks
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.surplus import only_extra
from weft.planning.tiers import Tiers
from weft.simulator.job import SimulatedJob


class Running:
    """The running jobs; `live`: those of them that resize live; `services`: the running services; `leaving_jobs`: those
    that stop. `free`: the number of free GPUs on nodes that have not failed. `quotas`: those in force; `tenants`: those
    of all jobs, be it that they wait."""

    def __init__(
        self,
        gpus: int,
        order: Order,
        *,
        durations_known: bool,
        minimum_run: MinimumRun,
        quotas: QuotasInForce,
        tenants: Iterable[str],
    ) -> None:
        self.jobs: dict[str, SimulatedJob] = {}
        self.live: dict[str, SimulatedJob] = {}
        self.services: dict[str, SimulatedJob] = {}
        self.free: float = gpus
        self.endings: list[Ending] = []  # expected, the soonest first
        self._gpus = gpus
        self._order = order
        self._known = durations_known
        self._minimum_run = minimum_run
        self._quotas, self._tenants = quotas, frozenset(tenants)
        self.now = 0.0  # kept by the caller, for an order that goes by use
        self._held: dict[str, float] = {}  # GPUs by tenant
        self._use = DecayedUse()
        self._ranks = FairRanks(self._use)
        self.leaving_jobs: dict[str, SimulatedJob] = {}
        self._tiers = Tiers()

    def add(self, job: SimulatedJob) -> None:
        self.jobs[job.trace.id] = job
        if job.live:
            self.live[job.trace.id] = job
        if job.serves is not None:
            self.services[job.trace.id] = job
        self.free -= job.gpus_needed
        self._hold(job.trace.tenant, job.gpus_needed)

    def leave(self, job: SimulatedJob, at: float) -> None:
        """The job stops, and is gone at that time."""
        self._tiers.remove(job.trace.id)
        self.leaving_jobs[job.trace.id] = job
        self._forget_ending(job)
        job.ending = Ending(at, job.gpus_needed, job.trace.id)
        insort(self.endings, job.ending)

    def remove(self, job: SimulatedJob) -> None:
        self._tiers.remove(job.trace.id)
        self.leaving_jobs.pop(job.trace.id, None)
        if job.ending is not None:
            self.foresee(job)
        del self.jobs[job.trace.id]
        self.live.pop(job.trace.id, None)
        self.services.pop(job.trace.id, None)
        self.free += job.gpus_needed
        self._hold(job.trace.tenant, -job.gpus_needed)

    def resize(self, job: SimulatedJob, place: Sequence[Allocation]) -> None:
        """The running job has these replicas, and its work is counted until now. File its end and its tier again."""
        self._tiers.remove(job.trace.id)
        before = job.gpus_needed
        job.take_place(place)
        self.free -= job.gpus_needed - before
        self._hold(job.trace.tenant, job.gpus_needed - before)

    def _hold(self, tenant: str, gpus: float) -> None:
        self._held[tenant] = self._held.get(tenant, 0) + gpus
        if self._order.by_use:
            self._use.change(tenant, round(gpus * WHOLE), self.now)

    def share(self, tenant: str) -> float:
        """The tenant's part of all GPUs, or its rank by recent use if the order needs that."""
        if self._order.by_use:
            return self._ranks.of(self._quotas.ledger.tree, self._tenants, self.now)[tenant]
        return self._held.get(tenant, 0) / self._gpus if self._gpus else 0.0

    def foresee(self, job: SimulatedJob) -> None:
        """File the expected time at which the job gives its GPUs back."""
        self._forget_ending(job)
        left = job.standing(job.since, known=self._known).left_s
        if job.allocations and left is not None:
            at = max(job.since, job.paused_until) + left * job.stretch
            job.ending = Ending(at, job.gpus_needed, job.trace.id)
            insort(self.endings, job.ending)

    def _forget_ending(self, job: SimulatedJob) -> None:
        if job.ending is not None:
            del self.endings[bisect_left(self.endings, job.ending)]
            job.ending = None

    def rank(self, job: SimulatedJob, now: float) -> float | None:
        """File the job by its tier, for jobs that may preempt it. Returns when its tier changes, if it runs on."""
        if self._order.tier is None:
            return None
        standing = job.standing(now, known=self._known)
        tier = self._order.tier_of_running(standing)
        self._tiers.put(job.trace.id, tier, number=job.number, gpus=job.gpus_needed)
        after = self._order.changes_after_s(standing)
        if after is None:
            return None
        if self._order.by_left:  # the work that is left shrinks only while it works
            return max(now, job.paused_until) + max(after, 0.0) * job.stretch
        return now + max(after, 0.0)

    def leaving(self) -> list[Holder]:
        return [
            Holder(job_id=job_id, worth=LEAVES_FIRST, allocations=job.allocations)
            for job_id, job in sorted(self.leaving_jobs.items())
        ]

    def may_leave(self, tier: int, *, missing: float) -> list[Holder]:
        """The jobs that stop already, those of higher tiers that have run long enough, and the spare ranks of the
        others; none if all these and the jobs that resize live have fewer than `missing` GPUs."""
        missing -= sum(job.gpus_needed for job in self.leaving_jobs.values())
        missing -= sum(job.gpus_needed for shrink in (self.live, self.services) for job in shrink.values())
        higher = self._tiers.above(tier, gpus=missing)
        if higher is None:
            return []
        found = self.leaving()
        for one, job_id in higher:
            job = self.jobs[job_id]
            ran = self.now >= job.settled_at + self.runs_at_least(job)
            if ran or job.live or job.serves is not None:
                parts = job.parts((-float(one),), self.now)
                found += parts if ran else only_extra(parts)
        return found

    def may_be_reclaimed(self, job: SimulatedJob) -> list[Holder]:
        ran = self.now >= job.settled_at + self.runs_at_least(job, reclaimed=True)
        if not ran and not job.live and job.serves is None:
            return []
        parts = job.parts((float(job.trace.priority),), self.now)
        return [one for one in (parts if ran else only_extra(parts)) if one.worth != LEAVES_FIRST]

    def may_leave_at(self, job: SimulatedJob) -> set[float]:
        """The time from which it may be preempted, and from which it gives back borrowed GPUs."""
        least = {self.runs_at_least(job)} | ({self.runs_at_least(job, reclaimed=True)} if self._quotas.on else set())
        return {job.settled_at + one for one in least}

    def runs_at_least(self, job: SimulatedJob, *, reclaimed: bool = False) -> float:
        """For how many seconds the job runs after it began or moved before it may be preempted; 0: nobody is."""
        if (self._order.tier is None and not reclaimed) or not self._minimum_run.seconds:
            return 0.0
        every = job.trace.checkpoint_s
        tries = 0 if reclaimed else job.evictions
        return self._minimum_run.after(None if every is None else every / 2, tries, reclaimed=reclaimed)

    def left_on(self, node_id: str, now: float) -> float:
        """For how many seconds the jobs on a node are expected to run on."""
        return max(
            (
                0.0 if job.leaves else job.runs_on_s(now, known=self._known)
                for job in self.jobs.values()
                if any(one.node_id == node_id for one in job.allocations)
            ),
            default=0.0,
        )
