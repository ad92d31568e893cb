"""Whose jobs give back what they borrowed, so that a job inside its guarantee can start.

A job may reclaim as far up as it is inside a guarantee. What a tenant or group owns is taken by nobody; so a tenant
without a guarantee never reclaims, and no two tenants evict each other in turn. Of what is borrowed, this goes first:
what leaves its tenant, and each group of it, all that is guaranteed; then of lower priority; then with the least work
since a checkpoint, which without checkpoints is the newest. Which of these are needed is found by
`weft.planning.preemption`, which walks back and spares each whose loss is not needed.
"""

from collections.abc import Iterable

from msgspec import Struct, structs

from weft.domain.quotas import Amounts
from weft.planning.order import Key as Worth
from weft.planning.preemption import Holder
from weft.planning.quota.ledger import Ledger
from weft.planning.quota.tree import Branch


class Returnable(Struct, frozen=True):
    """A job, or ranks that it can do without, as a holder that may give way, and what that would give back."""

    holder: Holder
    amounts: Amounts


def protected(ledger: Ledger, tenant: str, holder: Holder) -> bool:
    """True if the holder belongs to another tenant, and is inside a guarantee that a job of `tenant` has no part in:
    then no job of `tenant` may take its place, however important."""
    held = ledger.jobs.get(holder.job_id)
    if held is None or held.tenant == tenant:
        return False
    return holder.job_id in ledger.owned(_apart(ledger, tenant, held.tenant)[-1], core=not holder.extra)


def may_reclaim(ledger: Ledger, tenant: str, level: int | None, job_id: str, *, now: float, runtime_s: float) -> bool:
    """True if a job of `tenant`, inside the guarantee at this level of its path, may take back what this job has, or
    what it has beyond its core if that is `protected`.

    `runtime_s`: how long a job that borrows keeps its GPUs at least.
    """
    held = ledger.jobs.get(job_id)
    if level is None or held is None or not held.preemptible or now - held.since < runtime_s:
        return False
    path = ledger.tree.path(tenant)
    own = path[level].key
    if any(branch.key == own for branch in ledger.tree.path(held.tenant)):
        return False
    if not any(path[level].guaranteed.values()):
        return False
    return job_id not in ledger.owned(_apart(ledger, tenant, held.tenant)[-1])


def in_turn(ledger: Ledger, tenant: str, parts: Iterable[Returnable], *, leaving: Iterable[str] = ()) -> list[Holder]:
    """The holders as they are to be taken, by `worth`: first those whose loss leaves their tenant and its groups all
    that these are guaranteed, then gangs that are larger than what their tenant borrows. `leaving`: jobs that stop
    already, whatever for."""
    left: dict[tuple[bool, str], Amounts] = {}
    for held in [ledger.jobs[job_id] for job_id in leaving if job_id in ledger.jobs]:
        for branch in ledger.tree.path(held.tenant):
            _take(_left(ledger, left, branch), held.amounts)
    found: list[Holder] = []
    for part in sorted(parts, key=lambda one: (one.holder.worth, one.holder.job_id)):
        apart = _apart(ledger, tenant, ledger.jobs[part.holder.job_id].tenant)
        spare = all(
            _left(ledger, left, branch).get(line, 0) - amount >= branch.guarantee(line)
            for branch in apart
            for line, amount in part.amounts.items()
            if line in branch.guaranteed
        )
        if spare:
            for branch in apart:
                _take(_left(ledger, left, branch), part.amounts)
        worth: Worth = (float(not spare), *part.holder.worth)
        found.append(structs.replace(part.holder, worth=worth))
    return found


def _left(ledger: Ledger, left: dict[tuple[bool, str], Amounts], branch: Branch) -> Amounts:
    if branch.key not in left:
        left[branch.key] = dict(ledger.uses(branch))
    return left[branch.key]


def _take(left: Amounts, amounts: Amounts) -> None:
    for line, amount in amounts.items():
        left[line] = left.get(line, 0) - amount


def _apart(ledger: Ledger, tenant: str, other: str) -> tuple[Branch, ...]:
    """The path of `other` up to below the first group that it has in common with `tenant`."""
    ours = {branch.key for branch in ledger.tree.path(tenant)}
    path = ledger.tree.path(other)
    return tuple(branch for branch in path if branch.key not in ours)
