"""The quotas of the pool as its scheduler obeys them: who may start, in which order, and whose jobs give back.

Without a quota nothing here does anything. `weft.planning.quota` decides.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import structs

from weft.domain.cluster import Node
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState
from weft.domain.quotas import ALL, Amounts, Quota, gpus_text
from weft.domain.shares import WHOLE
from weft.planning.minimum_run import MinimumRun
from weft.planning.preemption import Holder
from weft.planning.queue import Rank
from weft.planning.quota.amounts import amounts_in, held_by, lendable, wanted_by
from weft.planning.quota.ledger import Ledger, QuotaFit, TenantHolds
from weft.planning.quota.ranks import UNBOUNDED, left_to, rank_of
from weft.planning.quota.reclaim import Returnable, in_turn, may_reclaim, protected
from weft.planning.quota.told import why_held
from weft.planning.shape import Shape
from weftd.scheduler.thinking.state.holders import LEAVES_FIRST, only_extra, parts_of

RECLAIMED_FIRST = -1e18  # in `worth`: after what leaves already, before what the order would pre-empt


class Quotas:
    """`runtime_seconds`: how long a job that borrows keeps its GPUs at least."""

    def __init__(
        self, nodes: Mapping[str, Node], *, runtime_seconds: float = 0.0, minimum_run: MinimumRun | None = None
    ) -> None:
        self.ledger = Ledger()
        self.adopted = 0  # how often other quotas came into force
        self._nodes = nodes
        self._runtime_seconds = runtime_seconds
        self._minimum_run = minimum_run or MinimumRun()
        self._lendable: Amounts = {ALL: 0}
        self._bounded: frozenset[str] = frozenset()  # models of which a quota has a limit

    @property
    def on(self) -> bool:
        return bool(self.ledger.tree)

    def adopt(self, quotas: Sequence[Quota], jobs: Iterable[Job]) -> None:
        """Other quotas are in force. `jobs`: those that hold something."""
        self.adopted += 1
        if not self.on:
            self.ledger = Ledger(quotas)
            for job in jobs if quotas else ():
                self.ledger.hold(job.id, held_by(job, self._nodes))
        elif quotas:
            self.ledger.adopt(quotas)
        else:
            self.ledger = Ledger()
        self._bounded = frozenset(line for quota in quotas for line in quota.limit if line != ALL)
        self.measure()

    def measure(self) -> None:
        """The pool has other nodes than before."""
        if self.on:
            self._lendable = lendable(self._nodes.values())

    def hold(self, job: Job) -> None:
        """A job begins to hold its placement, or holds another."""
        if self.on:
            self.ledger.hold(job.id, held_by(job, self._nodes))

    def let_go(self, job: Job) -> None:
        if self.on:
            self.ledger.let_go(job.id)

    # which jobs may start

    def fit(self, job: Job, shape: Shape) -> QuotaFit:
        return self.ledger.fit(job.tenant, wanted_by(shape), job_id=job.id)

    def why_held(self, job: Job, shape: Shape) -> Cause | None:
        """Why quotas do not let the job start; None if they do."""
        if not self.on:
            return None
        wanted = wanted_by(shape)
        return why_held(job, self.ledger.fit(job.tenant, wanted, job_id=job.id), wanted)

    def rank(self, job: Job, shape: Shape, tier: float) -> Rank:
        """Sorts before the order."""
        return rank_of(self.ledger, self._lendable, job.tenant, wanted_by(shape), tier=tier, job_id=job.id)

    def room(self, job: Job) -> int:
        """How many millis more the job may hold."""
        if not self.on:
            return UNBOUNDED
        return left_to(self.ledger, job.tenant, model=job.spec.gpu_model, preemptible=job.spec.preemptible)

    def most_replicas(self, job: Job, shape: Shape, more: int) -> int:
        """Of so many more replicas of the job's first role with GPUs, as many as its tenant may have."""
        each = max((wanted_by((structs.replace(want, least=1),))[ALL] for want in shape), default=0)
        return min(more, self.room(job) // each) if self.on and each else more

    def closed_to(self, job: Job, shape: Shape) -> list[str]:
        """The nodes with GPUs of a model of which the job's tenant may not have as many as the job needs."""
        if not self._bounded:
            return []
        wanted = wanted_by(shape)[ALL]
        full = [
            model
            for model in sorted(self._bounded)
            if wanted and self.ledger.fit(job.tenant, {model: wanted}, job_id=job.id).over is not None
        ]
        if not full:
            return []
        return [node.id for node in self._nodes.values() if any(gpu.model in full for gpu in node.capacity.gpus)]

    # jobs that give back

    def protects(self, tenant: str, job_id: str) -> bool:
        """Whether no job of `tenant` may take the place of this one, which is inside another tenant's guarantee."""
        return self.on and protected(self.ledger, tenant, job_id)

    def willing(
        self,
        job: Job,
        shape: Shape,
        willing: Sequence[Holder],
        jobs: Mapping[str, Job],
        now: float,
        progress_of: Callable[[Job], Mapping[str, float]],
    ) -> tuple[list[Holder], frozenset[str]]:
        """`willing` without what other tenants own, with what they borrowed of the job's guarantee; and the jobs that
        hold it."""
        if not self.on:
            return list(willing), frozenset()
        level = self.fit(job, shape).level
        mine = [
            job_id
            for job_id in sorted(self.ledger.jobs)
            if jobs[job_id].state is not JobState.STOPPING
            and may_reclaim(self.ledger, job.tenant, level, job_id, now=now, runtime_s=self._runtime_seconds)
        ]
        parts = [
            Returnable(holder, amounts_in(holder.allocations, self._nodes))
            for held in [jobs[job_id] for job_id in mine]
            for holder in self._parts_of(held, now, progress_of(held))
            if holder.worth != LEAVES_FIRST
        ]
        leaving = [one.job_id for one in willing if one.worth == LEAVES_FIRST and not one.extra]
        reclaimed = [_reclaimed(one) for one in in_turn(self.ledger, job.tenant, parts, leaving=leaving)]
        others = [
            one
            for one in willing
            if one.worth == LEAVES_FIRST or (one.job_id not in mine and not self.protects(job.tenant, one.job_id))
        ]
        return [*others, *reclaimed], frozenset(mine)

    def _parts_of(self, job: Job, now: float, progress: Mapping[str, float]) -> list[Holder]:
        parts = parts_of(job, (float(job.priority),), now, progress)
        return only_extra(parts) if self._minimum_run.protects(job, now, reclaimed=True) else parts

    def claim(self, job: Job, shape: Shape, now: float) -> None:
        """Others stop for this job."""
        if self.on:
            self.ledger.claim(job.id, TenantHolds(job.tenant, wanted_by(shape), now, job.spec.preemptible))

    def unclaim(self, job_id: str) -> None:
        self.ledger.unclaim(job_id)

    def why_reclaimed(self, victim: Job, ranks: Collection[Allocation], by: Job) -> Cause:
        amounts = amounts_in(ranks or victim.held, self._nodes)
        own = self.ledger.tree.path(victim.tenant)[0]
        sentence = (
            f"reclaimed by {by.id}, which is inside a guarantee: gives back {gpus_text(amounts[ALL])} that were"
            f" borrowed; tenant {victim.tenant} holds {self.ledger.use(own) / WHOLE:g}, and"
            f" {own.guarantee(ALL) / WHOLE:g} guaranteed"
        )
        numbers = {
            "gpus_reclaimed": amounts[ALL] / WHOLE,
            "quota_held": self.ledger.use(own) / WHOLE,
            "quota_guaranteed": own.guarantee(ALL) / WHOLE,
        }
        return Cause(code=CauseCode.QUOTA_RECLAIMED, sentence=sentence, by=by.id, numbers=numbers)


def _reclaimed(holder: Holder) -> Holder:
    return structs.replace(holder, worth=(RECLAIMED_FIRST, *holder.worth))
