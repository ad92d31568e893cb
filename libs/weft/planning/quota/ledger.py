"""What each tenant and group of a pool holds, and which of it is their own and which is borrowed.

A job's core, with which it starts, is owned or borrowed as a whole: a gang of 8 of a tenant that is guaranteed 4 is
borrowed, so that a lender gets its GPUs back from it too. An elastic job can own its core alone, and borrow the rest.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import inf

from msgspec import Struct

from weft.domain.quotas import ALL, Amounts, Quota
from weft.planning.quota.tree import Branch, Key, QuotaTree

_NOTHING: Amounts = {}


class TenantHolds(Struct, frozen=True):
    """The GPUs that a job holds, in millis by model (`amounts`), since the time `since`. `preemptible`: the job can be
    told to give them back. `core`: the part without which the job stops; None: all of `amounts`."""

    tenant: str
    amounts: Amounts
    since: float
    preemptible: bool
    core: Amounts | None = None

    def part(self, *, core: bool) -> Amounts:
        return self.core if core and self.core is not None else self.amounts


class OverLimit(Struct, frozen=True):
    """The limit that a job would break: of this branch, of one model or of all (`line`)."""

    branch: Branch
    line: str
    held: int
    most: int


class QuotaFit(Struct, frozen=True):
    """Whether a job may start now. `level`: where in the path of its tenant it is inside the guarantee, 0: in the
    tenant's own, 1: in that of its group, and so on; None: nowhere, so that it borrows from the pool. `over`: the limit
    in the way, if any."""

    level: int | None
    over: OverLimit | None = None

    @property
    def inside(self) -> bool:
        return self.level is not None


class _Owned(Struct, frozen=True):
    """The jobs that a tenant or group owns, whole, and those of which it owns the core alone."""

    whole: frozenset[str] = frozenset()
    core: frozenset[str] = frozenset()


class Ledger:
    """Kept up to date as jobs begin to hold GPUs, hold others, or give them back. `changes` counts that."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        self.tree = QuotaTree(quotas)
        self.jobs: dict[str, TenantHolds] = {}
        self.claims: dict[str, TenantHolds] = {}  # of jobs for which others stop now: what they will hold
        self.changes = 0
        self._use: dict[Key, Amounts] = {}
        self._owned: dict[Key, _Owned] = {}
        self._owned_at = -1

    def copy(self) -> "Ledger":
        """A copy of this ledger."""
        other = Ledger()
        other.tree, other.changes = self.tree, self.changes
        other.jobs, other.claims = dict(self.jobs), dict(self.claims)
        other._use = {key: dict(amounts) for key, amounts in self._use.items()}
        return other

    def adopt(self, quotas: Iterable[Quota]) -> None:
        """Apply other quotas from now on."""
        self.tree = QuotaTree(quotas)
        self.changes += 1
        self._use.clear()
        for held in (*self.jobs.values(), *self.claims.values()):
            self._count(held, 1)

    def claim(self, job_id: str, held: TenantHolds) -> None:
        """Count the future GPUs of a job for which others stop, so that no more jobs stop for its tenant's next job."""
        self.unclaim(job_id)
        self.claims[job_id] = held
        self._count(held, 1)

    def unclaim(self, job_id: str) -> None:
        held = self.claims.pop(job_id, None)
        if held is not None:
            self._count(held, -1)

    def hold(self, job_id: str, held: TenantHolds) -> None:
        """Note that a job begins to hold these amounts, or holds them instead of its former ones."""
        self.unclaim(job_id)
        self.let_go(job_id)
        self.jobs[job_id] = held
        self._count(held, 1)

    def let_go(self, job_id: str) -> None:
        held = self.jobs.pop(job_id, None)
        if held is not None:
            self._count(held, -1)

    def use(self, branch: Branch, line: str = ALL) -> int:
        """GPUs that the tenant or group holds, in thousandths."""
        return self._use.get(branch.key, _NOTHING).get(line, 0)

    def uses(self, branch: Branch) -> Amounts:
        """The same by model, and of all models."""
        return self._use.get(branch.key, _NOTHING)

    def fit(self, tenant: str, wanted: Amounts, *, job_id: str = "") -> QuotaFit:
        """Check if quotas allow the tenant this in addition to its present GPUs. `job_id`: the job that would get it,
        whose own claim does not count."""
        path = self.tree.path(tenant)
        claimed = self.claims[job_id].amounts if job_id in self.claims else _NOTHING
        level = next((level for level, branch in enumerate(path) if self._is_inside(branch, wanted, claimed)), None)
        for branch in path:
            for line, most in branch.limit.items():
                held = self.use(branch, line) - claimed.get(line, 0)
                if wanted.get(line, 0) > max(0, most - held):
                    return QuotaFit(level, OverLimit(branch, line, held, most))
        return QuotaFit(level)

    def _is_inside(self, branch: Branch, wanted: Amounts, claimed: Amounts) -> bool:
        return all(
            self.use(branch, line) - claimed.get(line, 0) + more <= branch.guarantee(line)
            for line, more in wanted.items()
        )

    def borrowed(self, branch: Branch, line: str = ALL) -> int:
        """GPUs that it holds beyond its guarantee."""
        return max(0, self.use(branch, line) - branch.guarantee(line))

    def share(self, tenant: str, lendable: Mapping[str, int], wanted: Amounts | None = None) -> Fraction | float:
        """How much of the pool the tenant borrows, in thousandths by weight, were it to take `wanted` too.

        Of all models, the largest part counts. 0 without borrowing, infinite for a weight of 0 with it.
        """
        branch = self.tree.path(tenant)[0]
        most = Fraction(0)
        more = wanted or {}
        for line in sorted({*self._use.get(branch.key, _NOTHING), *more, ALL}):
            beyond = max(0, self.use(branch, line) + more.get(line, 0) - branch.guarantee(line))
            if beyond and line in lendable:
                most = max(most, Fraction(1000 * beyond, max(1, lendable[line])))
        if not most:
            return most
        return most / branch.weight if branch.weight else inf

    def owned(self, branch: Branch, *, core: bool = False) -> frozenset[str]:
        """The jobs that this tenant or group holds inside its guarantee: those that its members own, then, as long as
        they fit, those that cannot be stopped and the oldest. `core`: those too of which the core alone fits beside
        them; such a job would start again at once if it were stopped."""
        if self._owned_at != self.changes:
            self._owned = self._split()
            self._owned_at = self.changes
        found = self._owned.get(branch.key, _Owned())
        return found.whole | found.core if core else found.whole

    def _split(self) -> dict[Key, _Owned]:
        order = sorted(self.jobs, key=lambda job_id: (self.jobs[job_id].preemptible, self.jobs[job_id].since, job_id))
        under: dict[Key, list[str]] = {}
        branches: dict[Key, tuple[int, Branch]] = {}
        below: dict[Key, set[Key]] = {}
        for job_id in order:
            path = self.tree.path(self.jobs[job_id].tenant)
            for level, branch in enumerate(path):
                under.setdefault(branch.key, []).append(job_id)
                branches[branch.key] = (max(level, branches.get(branch.key, (0, branch))[0]), branch)
                if level:
                    below.setdefault(branch.key, set()).add(path[level - 1].key)
        found: dict[Key, _Owned] = {}
        for key, (_, branch) in sorted(branches.items(), key=lambda one: one[1][0]):  # members before their group
            members = [found[member] for member in below.get(key, ())]
            whole: set[str] = set().union(*(one.whole for one in members))
            core: set[str] = set().union(*(one.core for one in members))
            taken: Amounts = {}
            for own, is_core in ((whole, False), (core, True)):
                for job_id in own:
                    _add(taken, self.jobs[job_id].part(core=is_core), 1)
            for job_id in under[key]:
                if job_id not in whole:
                    held = self.jobs[job_id]
                    more = dict(held.amounts)
                    _add(more, held.part(core=True) if job_id in core else {}, -1)
                    if _fits(branch, taken, more):
                        whole.add(job_id)
                        _add(taken, more, 1)
            core -= whole
            for job_id in under[key]:
                if job_id not in whole and job_id not in core:
                    least = self.jobs[job_id].part(core=True)
                    if _fits(branch, taken, least):
                        core.add(job_id)
                        _add(taken, least, 1)
            found[key] = _Owned(frozenset(whole), frozenset(core))
        return found

    def _count(self, held: TenantHolds, sign: int) -> None:
        self.changes += 1
        for branch in self.tree.path(held.tenant):
            _add(self._use.setdefault(branch.key, {}), held.amounts, sign)


def _fits(branch: Branch, taken: Amounts, more: Amounts) -> bool:
    return all(taken.get(line, 0) + amount <= branch.guarantee(line) for line, amount in more.items())


def _add(to: Amounts, amounts: Amounts, sign: int) -> None:
    for line, amount in amounts.items():
        to[line] = to.get(line, 0) + sign * amount
