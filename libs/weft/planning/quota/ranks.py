"""Which waiting jobs quotas let start, and in which order. The scheduler and every look ahead go by this."""

from weft.domain.quotas import ALL, DEPTH_MAX, Amounts
from weft.planning.queue import Rank
from weft.planning.quota.ledger import Ledger, QuotaFit

UNBOUNDED = 1 << 60


def rank_of(
    ledger: Ledger, lendable: Amounts, tenant: str, wanted: Amounts, *, tier: float = 0.0, job_id: str = ""
) -> Rank:
    """Sorts before the order: jobs inside a guarantee come first, the tenant's own before its group's. Of those
    that borrow, those of a lower `tier` of the order come first, since they pre-empt the others: else two would
    evict each other in turn. Of one tier, the tenants that borrow least."""
    level = ledger.fit(tenant, wanted, job_id=job_id).level
    unclaimed = float(job_id not in ledger.claims)
    if level is not None:
        return (float(level), unclaimed, 0.0, 0.0)
    share = ledger.share(tenant, lendable, wanted) if unclaimed else 0.0
    return (float(DEPTH_MAX + 1), tier, unclaimed, float(share))


def is_inside(rank: Rank) -> bool:
    """True if a job of this rank is inside a guarantee."""
    return rank[0] <= DEPTH_MAX


def may_start(fit: QuotaFit, *, preemptible: bool) -> bool:
    """True if quotas let a job start: inside all limits, and, if it cannot give anything back, without borrowing."""
    return fit.over is None and (preemptible or fit.level == 0)


def left_to(ledger: Ledger, tenant: str, *, model: str | None = None, preemptible: bool = True) -> int:
    """How many millis more a job of the tenant may hold: within all limits, that of its `model` among them if it names
    one, and, if it cannot give anything back, within the tenant's own guarantee."""
    path = ledger.tree.path(tenant)
    lines = (ALL,) if model is None else (ALL, model)
    left = [branch.limit[line] - ledger.use(branch, line) for branch in path for line in lines if line in branch.limit]
    if not preemptible:
        left += [path[0].guarantee(line) - ledger.use(path[0], line) for line in lines]
    return max(0, min(left)) if left else UNBOUNDED
