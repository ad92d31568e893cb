"""A quota: how many GPUs of a pool a tenant, or a group of tenants, is guaranteed, and how many it may hold at most.

Amounts are whole thousandths of a GPU (millis), so that shares of GPUs add up exactly.
"""

from msgspec import Struct

from weft.domain.shares import WHOLE
from weft.domain.text import plural

Amounts = dict[str, int]
"""Millis of GPUs by model; `ALL`: of all models together."""

ALL = ""
DEPTH_MAX = 8  # groups above one tenant
QUOTAS_MAX = 2_000  # of one pool
GPUS_MAX = 1_000_000
MODELS_MAX = 32
WEIGHT_MAX = 10_000


class Quota(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`name`: of the tenant, or of the group if `is_group`. `group`: the group it belongs to; empty: to none.

    `limit`: what it may hold at most, borrowed GPUs included; a model that is not named has no limit of its own.
    `weight`: how much it may borrow compared with its siblings, and its part of the pool in the order `fair`.
    """

    name: str
    pool: str = "default"
    group: str = ""
    is_group: bool = False
    guaranteed: Amounts = {}
    limit: Amounts = {}
    weight: int = 1


def fault_of(quota: Quota, others: dict[str, Quota]) -> tuple[str, str] | None:
    """The field, and the reason, for which the quota cannot be set beside `others`, the pool's by name; None: it can.

    `others` may hold the quota's own earlier form, which it replaces.
    """
    for model, least in quota.guaranteed.items():
        most = quota.limit.get(model)
        if most is not None and most < least:
            what = f" of {model}" if model else ""
            return "limit", f"{gpus_text(most)}{what} is less than the {gpus_text(least)} that are guaranteed"
    if quota.name not in others and len(others) >= QUOTAS_MAX:
        return "", f"a pool has at most {QUOTAS_MAX} quotas"
    for other in others.values():
        if other.group == quota.name and not quota.is_group:
            return "is_group", f"{other.name} belongs to it: it is a group"
    below = _height(quota.name, others)
    above, seen = 0, {quota.name}
    name = quota.group
    while name:
        group = others.get(name)
        if name in seen:
            return "group", f"{name} would belong to itself"
        if group is None or not group.is_group:
            return "group", f"there is no group {name} in pool {quota.pool}: set it first"
        seen.add(name)
        above += 1
        name = group.group
    if above + below > DEPTH_MAX:
        return "group", f"groups may be nested {DEPTH_MAX} deep, these would be {above + below}"
    return None


def _height(name: str, others: dict[str, Quota]) -> int:
    """How many levels belong to this group, directly or not."""
    level, found = {name}, 0
    while level and found <= DEPTH_MAX:
        level = {other.name for other in others.values() if other.group in level}
        found += bool(level)
    return found


def gpus_text(millis: int) -> str:
    """`8 GPUs`, `1 GPU`, `0.5 GPUs`."""
    return plural(millis / WHOLE, "GPU")
