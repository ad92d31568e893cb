"""The quotas of the pool as its scheduler obeys them: why jobs are held, and whose jobs give back.

Without a quota nothing here does anything. `weft.planning.quota` decides.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from weft.domain.cluster import Node
from weft.domain.job import Allocation, Cause, CauseCode, Job
from weft.domain.quotas import ALL, Quota, gpus_text
from weft.domain.shares import WHOLE
from weft.planning.quota.amounts import amounts_in
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.quota.told import why_held
from weft.planning.resource_request import ResourceRequest


class Quotas(QuotasInForce):
    """`runtime_seconds`: how long a job that borrows keeps its GPUs at least."""

    def __init__(self, nodes: Mapping[str, Node], *, runtime_seconds: float = 0.0) -> None:
        super().__init__((), nodes, runtime_seconds=runtime_seconds)
        self.adopted = 0  # how often other quotas came into force

    def adopt(self, quotas: Sequence[Quota], jobs: Iterable[Job]) -> None:
        """Other quotas are in force. `jobs`: those that hold something."""
        self.adopted += 1
        was_on = self.on
        self._adopt(quotas)
        for job in jobs if self.on and not was_on else ():
            self.holds(job)

    def holds(self, job: Job) -> None:
        """A job begins to hold its placement, or holds another."""
        self.hold(job.id, job.tenant, job.held, since=job.held_since, preemptible=job.spec.preemptible)

    def why_held(self, job: Job, resource_request: ResourceRequest) -> Cause | None:
        """Why quotas do not let the job start; None if they do."""
        if not self.on:
            return None
        return why_held(job, self.fit(job.tenant, resource_request, job_id=job.id), self._demand(resource_request))

    def most_replicas(self, job: Job, resource_request: ResourceRequest, more: int) -> int:
        return self.most_more(
            job.tenant, resource_request, more, model=job.spec.only_model, preemptible=job.spec.preemptible
        )

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
