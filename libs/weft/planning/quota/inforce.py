"""The quotas in force: they decide which jobs may start, in which order, and whose jobs give GPUs back. Every cycle
obeys them.

Without a quota nothing here does anything.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from weft.domain.cluster import Node
from weft.domain.job import Allocation
from weft.domain.quotas import ALL, Amounts, Quota
from weft.domain.shares import WHOLE
from weft.planning.preemption import Holder
from weft.planning.queue import Rank
from weft.planning.quota.amounts import amounts_in, holds, lendable, wanted_by
from weft.planning.quota.ledger import Ledger, QuotaFit, TenantHolds
from weft.planning.quota.ranks import UNBOUNDED, left_to, may_start, rank_of
from weft.planning.quota.reclaim import Returnable, in_turn, may_reclaim, protected
from weft.planning.quota.tree import Key
from weft.planning.resource_request import ResourceRequest, gpus_of, smallest
from weft.planning.scheduling_pass import Demand

RECLAIMED_FIRST = -1e18  # in `worth`: after what leaves already, before what the order would pre-empt
REMEMBERED_MAX = 10_000  # ranks, and fits


class QuotasInForce:
    """`nodes`: those of the pool, by id. `runtime_seconds`: how long a job that borrows keeps its GPUs at least."""

    def __init__(self, quotas: Iterable[Quota], nodes: Mapping[str, Node], *, runtime_seconds: float = 0.0) -> None:
        self.ledger = Ledger()
        self.on = False  # no quota is in force
        self._nodes = nodes
        self._runtime_seconds = runtime_seconds
        self._lendable: Amounts = {ALL: 0}
        self._bounded: frozenset[str] = frozenset()  # models of which a quota has a limit
        self._wanted: dict[ResourceRequest, Amounts] = {}
        self._moves: dict[Key, int] = {}  # how often what a tenant or group holds has changed
        self._ranks: dict[tuple[str, ResourceRequest, float], tuple[int, Rank]] = {}  # and after which of these moves
        self._fits: dict[tuple[str, ResourceRequest], tuple[int, QuotaFit]] = {}
        self._adopt(tuple(quotas))

    def _adopt(self, quotas: Sequence[Quota]) -> None:
        if self.on and quotas:
            self.ledger.adopt(quotas)
        else:
            self.ledger = Ledger(quotas)
        self.on = bool(quotas)
        self._bounded = frozenset(line for quota in quotas for line in quota.limit if line != ALL)
        self.measure()

    def measure(self) -> None:
        """Compute the guarantees again after a change of nodes or quotas."""
        self._forget()
        if self.on:
            self._lendable = lendable(self._nodes.values())

    def again(self) -> "QuotasInForce":
        """A copy for another scenario; changes of the copy do not affect this one."""
        other = QuotasInForce((), self._nodes, runtime_seconds=self._runtime_seconds)
        other.ledger, other.on = self.ledger.copy(), self.on
        other._lendable, other._bounded, other._wanted = self._lendable, self._bounded, self._wanted
        return other

    # what is held

    def hold(
        self, job_id: str, tenant: str, place: Iterable[Allocation], *, since: float = 0.0, preemptible: bool = True
    ) -> None:
        if self.on:
            self._hold(job_id, holds(tenant, tuple(place), self._nodes, since=since, preemptible=preemptible))

    def hold_somewhere(
        self, job_id: str, tenant: str, resource_request: ResourceRequest, *, preemptible: bool = True
    ) -> None:
        """The same where it is not known which GPUs: the least that starts the job."""
        if self.on:
            self._hold(job_id, TenantHolds(tenant, self._demand(resource_request), 0.0, preemptible))

    def let_go(self, job_id: str) -> None:
        held = self.ledger.jobs.get(job_id)
        if held is not None:
            self.ledger.let_go(job_id)
            self._note(held.tenant)

    def claim(self, job_id: str, demand: Demand, now: float) -> None:
        """Others give way to this job."""
        if self.on:
            self.ledger.claim(
                job_id, TenantHolds(demand.tenant, self._demand(demand.resource_request), now, demand.preemptible)
            )
            self._note(demand.tenant)

    def unclaim(self, job_id: str) -> None:
        held = self.ledger.claims.get(job_id)
        if held is not None:
            self.ledger.unclaim(job_id)
            self._note(held.tenant)

    # which jobs may start

    def fit(self, tenant: str, resource_request: ResourceRequest, *, job_id: str = "") -> QuotaFit:
        if job_id in self.ledger.claims:
            return self.ledger.fit(tenant, self._demand(resource_request), job_id=job_id)
        moves = self._moves_of(tenant)
        known = self._fits.get((tenant, resource_request))
        if known is None or known[0] != moves:
            known = self._fits[tenant, resource_request] = (
                moves,
                self.ledger.fit(tenant, self._demand(resource_request)),
            )
        return known[1]

    def rank(self, job_id: str, demand: Demand, tier: float) -> Rank:
        """Sorts before the order."""
        tenant, resource_request = demand.tenant, demand.resource_request
        if job_id in self.ledger.claims:
            return rank_of(
                self.ledger, self._lendable, tenant, self._demand(resource_request), tier=tier, job_id=job_id
            )
        moves = self._moves_of(tenant)
        known = self._ranks.get((tenant, resource_request, tier))
        if known is None or known[0] != moves:
            rank = rank_of(self.ledger, self._lendable, tenant, self._demand(resource_request), tier=tier)
            known = self._ranks[tenant, resource_request, tier] = (moves, rank)
        return known[1]

    def may_start(self, job_id: str, demand: Demand) -> bool:
        return may_start(
            self.fit(demand.tenant, demand.resource_request, job_id=job_id), preemptible=demand.preemptible
        )

    def free_capacity(self, tenant: str, *, model: str | None = None, preemptible: bool = True) -> int:
        """How many more thousandths of GPUs a job of the tenant may hold."""
        return left_to(self.ledger, tenant, model=model, preemptible=preemptible) if self.on else UNBOUNDED

    def most_more(
        self,
        tenant: str,
        resource_request: ResourceRequest,
        more: int,
        *,
        model: str | None = None,
        preemptible: bool = True,
    ) -> int:
        """The number of further replicas that the tenant may have of the first role with GPUs, `more` at most."""
        each = max((wanted_by((structs.replace(want, least=1),))[ALL] for want in resource_request), default=0)
        if not self.on or not each:
            return more
        return min(more, self.free_capacity(tenant, model=model, preemptible=preemptible) // each)

    def allowed(self, demand: Demand, resource_request: ResourceRequest) -> ResourceRequest:
        """The part of the request that quotas allow: all of it, or the smallest that starts the job."""
        left = self.free_capacity(demand.tenant, model=demand.model, preemptible=demand.preemptible)
        return smallest(resource_request) if gpus_of(resource_request) * WHOLE > left else resource_request

    def closed_to(self, job_id: str, demand: Demand) -> list[str]:
        """The nodes with GPUs of a model of which the job's tenant may not have as many as the job needs."""
        if not self._bounded:
            return []
        wanted = self._demand(demand.resource_request)[ALL]
        full = [
            model
            for model in sorted(self._bounded)
            if wanted and self.ledger.fit(demand.tenant, {model: wanted}, job_id=job_id).over is not None
        ]
        if not full:
            return []
        return [node.id for node in self._nodes.values() if any(gpu.model in full for gpu in node.capacity.gpus)]

    # jobs that give back

    def protects(self, tenant: str, holder: Holder) -> bool:
        """True if no job of `tenant` may take the place of this one, which is inside another tenant's guarantee."""
        return self.on and protected(self.ledger, tenant, holder)

    def reclaimable(self, job_id: str, demand: Demand, now: float) -> list[str]:
        """The jobs that hold what they borrowed of the guarantee that the waiting job is inside of; their cores may be
        protected."""
        level = self.fit(demand.tenant, demand.resource_request, job_id=job_id).level
        return [
            one
            for one in sorted(self.ledger.jobs)
            if may_reclaim(self.ledger, demand.tenant, level, one, now=now, runtime_s=self._runtime_seconds)
        ]

    def in_turn(self, tenant: str, holders: Iterable[Holder], *, leaving: Iterable[str]) -> list[Holder]:
        """The holders with the `worth` by which they are taken back."""
        parts = [Returnable(holder, amounts_in(holder.allocations, self._nodes)) for holder in holders]
        return [
            structs.replace(one, worth=(RECLAIMED_FIRST, *one.worth))
            for one in in_turn(self.ledger, tenant, parts, leaving=leaving)
        ]

    def _hold(self, job_id: str, held: TenantHolds) -> None:
        for before in (self.ledger.jobs.get(job_id), self.ledger.claims.get(job_id)):
            if before is not None:
                self._note(before.tenant)
        self.ledger.hold(job_id, held)
        self._note(held.tenant)

    def _note(self, tenant: str) -> None:
        for branch in self.ledger.tree.path(tenant):
            self._moves[branch.key] = self._moves.get(branch.key, 0) + 1
        if len(self._ranks) > REMEMBERED_MAX or len(self._fits) > REMEMBERED_MAX or len(self._wanted) > REMEMBERED_MAX:
            self._forget()

    def _forget(self) -> None:
        self._ranks, self._fits, self._wanted = {}, {}, {}

    def _moves_of(self, tenant: str) -> int:
        return sum(self._moves.get(branch.key, 0) for branch in self.ledger.tree.path(tenant))

    def _demand(self, resource_request: ResourceRequest) -> Amounts:
        if resource_request not in self._wanted:
            self._wanted[resource_request] = wanted_by(resource_request)
        return self._wanted[resource_request]
