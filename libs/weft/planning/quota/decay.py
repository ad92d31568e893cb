"""The decayed use of a pool by each tenant, and the resulting order.

The decay is exact: between two changes of what a tenant holds, U(t) = U(t0)·2^(-Δ/h) + r·h/ln 2·(1 - 2^(-Δ/h)), with r
GPUs held and the half-life h. So nothing is counted by ticks, and a replay comes to the same bits.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import exp, expm1, inf, log

from weft.domain.shares import WHOLE
from weft.planning.quota.tree import Key, QuotaTree

HALF_LIFE_SECONDS = 7 * 86400.0
AHEAD_SECONDS = 300.0  # tenants are compared by what they will have used then, at what they hold now


def decayed(used: float, gpus: float, seconds: float, half_life: float) -> float:
    """The decayed use after `seconds` in which this number of GPUs is held; in GPU-seconds."""
    exponent = -max(0.0, seconds) / half_life * log(2)
    return used * exp(exponent) - gpus * half_life / log(2) * expm1(exponent)


class DecayedUse:
    """Per tenant: its use up to a time, in GPU-seconds, and the thousandths of GPUs that it has held since. `changes`
    counts the changes."""

    def __init__(self, half_life: float = HALF_LIFE_SECONDS) -> None:
        self.half_life = half_life
        self.changes = 0
        self._used: dict[str, tuple[float, float, int]] = {}

    def begin(self, used: Mapping[str, float], now: float) -> None:
        """Begin with the earlier use."""
        self.changes += 1
        self._used = {tenant: (amount, now, 0) for tenant, amount in sorted(used.items())}

    def change(self, tenant: str, millis: int, now: float) -> None:
        """Add `millis` to the GPUs that the tenant holds from now on."""
        self.changes += 1
        used, at, held = self._used.get(tenant, (0.0, now, 0))
        now = max(at, now)
        self._used[tenant] = (decayed(used, held / WHOLE, now - at, self.half_life), now, held + millis)

    def at(self, tenant: str, then: float) -> float:
        used, at, held = self._used.get(tenant, (0.0, then, 0))
        return decayed(used, held / WHOLE, then - at, self.half_life)

    @property
    def tenants(self) -> Iterable[str]:
        return self._used.keys()


class FairRanks:
    """The rank of each tenant in a Fair Tree, kept until what is held, or the time, has changed."""

    def __init__(self, use: DecayedUse) -> None:
        self._use = use
        self._known: tuple[int, float, int] | None = None
        self._ranks: dict[str, float] = {}

    def of(self, tree: QuotaTree, tenants: Iterable[str], now: float, *, version: int = 0) -> Mapping[str, float]:
        """The rank of each of `tenants`, the smallest served first; tied tenants share a rank. `version`: differs for
        each tree."""
        known = (self._use.changes, now, version)
        if known != self._known:
            self._known = known
            named = sorted({*tenants, *self._use.tenants})
            self._ranks = fair_ranks(tree, {tenant: self._use.at(tenant, now + AHEAD_SECONDS) for tenant in named})
        return self._ranks


def fair_ranks(tree: QuotaTree, used: Mapping[str, float]) -> dict[str, float]:
    """Siblings by S/U, the largest first, depth first: S is a sibling's part of their weights, U its part of their use.

    A weight of 0 comes last, no use first. Tied tenants share a rank, and the members of tied groups are compared with
    each other as siblings.
    """
    weight: dict[Key, int] = {}
    use: dict[Key, float] = {}
    members: dict[Key | None, set[Key]] = {}
    for tenant, amount in sorted(used.items()):
        below: Key | None = None
        for branch in tree.path(tenant):
            weight[branch.key] = branch.weight
            use[branch.key] = use.get(branch.key, 0.0) + amount
            if below is not None:
                members.setdefault(branch.key, set()).add(below)
            below = branch.key
        assert below is not None, "a path has the tenant at least"
        members.setdefault(None, set()).add(below)
    ranks: dict[str, float] = {}

    def descend(siblings: set[Key]) -> None:
        by_level: dict[float, list[Key]] = {}
        weights = sum(weight[one] for one in siblings)
        total = sum(use[one] for one in sorted(siblings))
        for one in sorted(siblings):
            by_level.setdefault(_level(weight[one], weights, use[one], total), []).append(one)
        for _, tied in sorted(by_level.items(), reverse=True):
            tenants = [name for is_group, name in tied if not is_group]
            groups = [one for one in tied if one[0]]
            rank = float(len(ranks))
            ranks.update(dict.fromkeys(tenants, rank))
            if groups:
                descend(set().union(*(members.get(one, set()) for one in groups)))

    descend(members.get(None, set()))
    return ranks


def _level(weight: int, weights: int, use: float, total: float) -> float:
    """S/U."""
    if not weight:
        return -1.0
    if use <= 0.0 or total <= 0.0:
        return inf
    return float(Fraction(weight, weights)) / (use / total)
