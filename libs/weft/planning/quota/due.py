"""What each tenant is due of a pool by its quotas, for what divides GPUs between jobs that want more than they need."""

from collections.abc import Iterable
from math import inf

from weft.domain.quotas import ALL
from weft.planning.quota.tree import Branch, Key, QuotaTree

LEAST = 1.0  # due is never nothing: a part of it is a weight


def due_of(tree: QuotaTree, tenants: Iterable[str], millis: float) -> dict[str, float]:
    """Millis of GPUs by tenant, of a pool with so many, between tenants that all want as many as they can get: each
    what it is guaranteed, and of the rest its part by the weights of the tree, within its limits and its groups'."""
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
