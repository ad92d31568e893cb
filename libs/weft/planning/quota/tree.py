"""The groups and tenants of a pool as a tree: what each branch is guaranteed, and its limit."""

from collections.abc import Iterable, Mapping
from math import inf

from msgspec import Struct

from weft.domain.quotas import ALL, DEPTH_MAX, Amounts, Quota

Key = tuple[bool, str]
"""True if it is a group, and the name: a tenant may be called as a group is."""
LEAST = 1.0  # due is never nothing: a part of it is a weight


class Branch(Struct, frozen=True):
    """A tenant or a group. `any_model`: its guarantee applies to GPUs of any model, except for the models that it
    names."""

    key: Key
    guaranteed: Amounts
    limit: Amounts
    weight: int
    any_model: bool

    @property
    def name(self) -> str:
        return self.key[1]

    def guarantee(self, line: str) -> int:
        """The amount of this model, or of all models together (`ALL`)."""
        known = self.guaranteed.get(line)
        if known is not None:
            return known
        return self.guaranteed.get(ALL, 0) if self.any_model else 0


class QuotaTree:
    """A tenant without a quota has no guarantee, no limit, and the weight 1. A group is guaranteed at least the sum of
    what its members are. Where groups are in a circle or missing, which no gateway accepts, their members have none."""

    def __init__(self, quotas: Iterable[Quota] = ()) -> None:
        known = {quota.name: quota for quota in quotas}
        self.quotas: Mapping[str, Quota] = known
        self._above = {name: _groups_above(quota, known) for name, quota in known.items()}
        self._branches: dict[Key, Branch] = {}
        members: dict[str, list[Branch]] = {}
        for quota in sorted(known.values(), key=lambda one: (-len(self._above[one.name]), one.name)):
            branch = _branch_of(quota, members.get(quota.name, ()))
            self._branches[branch.key] = branch
            if above := self._above[quota.name]:
                members.setdefault(above[0], []).append(branch)
        self._paths: dict[str, tuple[Branch, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self.quotas)

    def branch(self, quota: Quota) -> Branch | None:
        """The branch of a quota, if the tree has it."""
        return self._branches.get((quota.is_group, quota.name))

    def path(self, tenant: str) -> tuple[Branch, ...]:
        """The tenant, its group, the group of that one, and so on."""
        if tenant not in self._paths:
            own = self._branches.get((False, tenant))
            if own is None:
                return (Branch((False, tenant), {ALL: 0}, {}, 1, False),)
            groups = (self._branches[True, name] for name in self._above[tenant])
            self._paths[tenant] = (own, *groups)
        return self._paths[tenant]


def _groups_above(quota: Quota, known: Mapping[str, Quota]) -> tuple[str, ...]:
    found: list[str] = []
    name = quota.group
    while name:
        group = known.get(name)
        if group is None or not group.is_group or name in found or name == quota.name or len(found) >= DEPTH_MAX:
            return ()
        found.append(name)
        name = group.group
    return tuple(found)


def _branch_of(quota: Quota, members: Iterable[Branch]) -> Branch:
    own = dict(quota.guaranteed)
    any_model = ALL in own
    own[ALL] = max(own.get(ALL, 0), sum(amount for line, amount in own.items() if line != ALL))
    together: Amounts = {}
    for member in members:
        any_model = any_model or member.any_model
        for line, amount in member.guaranteed.items():
            together[line] = together.get(line, 0) + amount
    guaranteed = {line: max(own.get(line, 0), together.get(line, 0)) for line in sorted({*own, *together})}
    return Branch((quota.is_group, quota.name), guaranteed, dict(quota.limit), quota.weight, any_model)


def due_of(tree: QuotaTree, tenants: Iterable[str], millis: float) -> dict[str, float]:
    """Divide `millis` (thousandths of GPUs) among tenants that all want as many as they can get. Each gets what it is
    guaranteed, and its part of the rest by the weights of the tree, within its limits and those of its groups."""
    paths = {tenant: tree.path(tenant) for tenant in sorted(set(tenants))}
    siblings: dict[Key | None, dict[Key, Branch]] = {}
    for path in paths.values():
        for branch, above in zip(path, (*(one.key for one in path[1:]), None), strict=True):
            siblings.setdefault(above, {})[branch.key] = branch
    rest = max(0.0, millis - sum(path[0].guarantee(ALL) for path in paths.values()))
    return {
        tenant: max(LEAST, min(_most(path), path[0].guarantee(ALL) + rest * _part(path, siblings)))
        for tenant, path in paths.items()
    }


def _part(path: tuple[Branch, ...], siblings: dict[Key | None, dict[Key, Branch]]) -> float:
    part = 1.0
    for branch, above in zip(path, (*(one.key for one in path[1:]), None), strict=True):
        all_weights = sum(one.weight for one in siblings[above].values())
        part *= branch.weight / all_weights if all_weights else 0.0
    return part


def _most(path: tuple[Branch, ...]) -> float:
    return min((float(branch.limit[ALL]) for branch in path if ALL in branch.limit), default=inf)
