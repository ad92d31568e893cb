"""Quotas: what each tenant and group is guaranteed, may hold, holds and borrows."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from weft.messages.http_quotas import QuotaView
from weftd.cli.drawing.look import Look, plain, table


def quota_table(quotas: Sequence[QuotaView], look: Look) -> Table:
    """One line per quota: a group, then its members below it."""
    made = table("NAME", "GUARANTEED", "LIMIT", "WEIGHT", "HOLDS", "BORROWS", look=look)
    for depth, quota in _nested(quotas):
        name = f"{'  ' * depth}{quota.name}{'/' if quota.is_group else ''}"
        made.add_row(
            plain(name, "bold"),
            plain(_amounts(quota.in_force or quota.guaranteed, quota.guaranteed_models)),
            plain(_amounts(quota.limit, quota.limit_models)),
            str(quota.weight),
            f"{quota.holds:g}",
            f"{quota.borrows:g}" if quota.borrows else "-",
        )
    return made


def _amounts(gpus: float | None, models: dict[str, float]) -> str:
    parts = [f"{amount:g} {model}" for model, amount in sorted(models.items())]
    return ", ".join([f"{gpus:g}", *parts] if gpus is not None else parts) or "-"


def _nested(quotas: Sequence[QuotaView]) -> Iterable[tuple[int, QuotaView]]:
    """Each with how many groups are above it, of those that are listed."""
    names = {quota.name for quota in quotas}

    def below(group: str, depth: int) -> Iterable[tuple[int, QuotaView]]:
        for quota in quotas:
            if (quota.group if quota.group in names else "") == group:
                yield depth, quota
                if quota.is_group:
                    yield from below(quota.name, depth + 1)

    return below("", 0)
