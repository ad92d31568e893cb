"""The quotas of a pool in a look ahead: what each tenant would hold as jobs start and end there."""

from collections import Counter
from collections.abc import Iterable, Mapping

from weft.domain.cluster import Node
from weft.domain.job import Allocation
from weft.domain.quotas import Amounts, Quota
from weft.domain.shares import WHOLE
from weft.planning.preemption import Holder
from weft.planning.queue import Rank
from weft.planning.quota.amounts import amounts_in, lendable, wanted_by
from weft.planning.quota.ledger import Ledger, QuotaFit, TenantHolds
from weft.planning.quota.ranks import left_to, may_start, rank_of
from weft.planning.quota.reclaim import Returnable, in_turn, may_reclaim, protected
from weft.planning.quota.tree import Key
from weft.planning.shape import Shape, gpus_of, smallest


class QuotasAhead:
    """Without quotas nothing here holds a job back."""

    def __init__(self, quotas: Iterable[Quota], nodes: Iterable[Node]) -> None:
        self._ledger = Ledger(quotas)
        self._nodes: Mapping[str, Node] = {node.id: node for node in nodes}
        self._lendable = lendable(self._nodes.values())
        self._wanted: dict[Shape, Amounts] = {}
        self._moves: Counter[Key] = Counter()  # how often what a tenant or group holds has changed
        self._ranks: dict[tuple[str, Shape, float], tuple[int, Rank]] = {}  # and after which of these moves
        self._fits: dict[tuple[str, Shape], tuple[int, QuotaFit]] = {}

    @property
    def on(self) -> bool:
        return bool(self._ledger.tree)

    def again(self) -> "QuotasAhead":
        """The same for another course of things: what is held there changes nothing here."""
        other = QuotasAhead((), ())
        other._ledger = self._ledger.copy()
        other._nodes, other._lendable, other._wanted = self._nodes, self._lendable, self._wanted
        return other

    def hold(
        self, job_id: str, tenant: str, place: Iterable[Allocation], *, since: float = 0.0, preemptible: bool = True
    ) -> None:
        self._hold(job_id, TenantHolds(tenant, amounts_in(place, self._nodes), since, preemptible))

    def hold_somewhere(self, job_id: str, tenant: str, shape: Shape, *, preemptible: bool = True) -> None:
        """The same where it is not known which GPUs: the least that starts the job."""
        self._hold(job_id, TenantHolds(tenant, self._wants(shape), 0.0, preemptible))

    def let_go(self, job_id: str) -> None:
        held = self._ledger.jobs.get(job_id)
        if held is not None:
            self._ledger.let_go(job_id)
            self._note(held.tenant)

    def rank(self, tenant: str, shape: Shape, tier: float = 0.0) -> Rank:
        moves = self._moves_of(tenant)
        known = self._ranks.get((tenant, shape, tier))
        if known is None or known[0] != moves:
            rank = rank_of(self._ledger, self._lendable, tenant, self._wants(shape), tier=tier)
            known = self._ranks[tenant, shape, tier] = (moves, rank)
        return known[1]

    def may_start(self, tenant: str, shape: Shape, *, preemptible: bool = True) -> bool:
        moves = self._moves_of(tenant)
        known = self._fits.get((tenant, shape))
        if known is None or known[0] != moves:
            known = self._fits[tenant, shape] = (moves, self._ledger.fit(tenant, self._wants(shape)))
        return may_start(known[1], preemptible=preemptible)

    def allowed(self, tenant: str, shape: Shape, *, preemptible: bool = True) -> Shape:
        """As much of it as a job of the tenant may have: all, or else the least that starts it."""
        if not self.on:
            return shape
        model = next((want.request.model for want in shape if want.request.model is not None), None)
        left = left_to(self._ledger, tenant, model=model, preemptible=preemptible)
        return smallest(shape) if gpus_of(shape) * WHOLE > left else shape

    def protects(self, tenant: str, job_id: str) -> bool:
        """Whether no job of `tenant` may take the place of this one, which is inside another tenant's guarantee."""
        return self.on and protected(self._ledger, tenant, job_id)

    def reclaimed(self, tenant: str, shape: Shape, holders: Iterable[Holder], now: float) -> list[Holder]:
        """Those of the holders that give back what they borrowed to a job of the tenant that is inside a guarantee."""
        level = self._ledger.fit(tenant, self._wants(shape)).level
        parts = [
            Returnable(holder, amounts_in(holder.allocations, self._nodes))
            for holder in holders
            if may_reclaim(self._ledger, tenant, level, holder.job_id, now=now, runtime_s=0.0)
        ]
        return in_turn(self._ledger, tenant, parts)

    def _hold(self, job_id: str, held: TenantHolds) -> None:
        if self.on:
            self._ledger.hold(job_id, held)
            self._note(held.tenant)

    def _note(self, tenant: str) -> None:
        self._moves.update(branch.key for branch in self._ledger.tree.path(tenant))

    def _moves_of(self, tenant: str) -> int:
        return sum(self._moves[branch.key] for branch in self._ledger.tree.path(tenant))

    def _wants(self, shape: Shape) -> Amounts:
        if shape not in self._wanted:
            self._wanted[shape] = wanted_by(shape)
        return self._wanted[shape]
