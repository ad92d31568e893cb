"""Quotas, in memory."""

from libs.domain.quotas import Quota


class QuotaTable:
    def __init__(self) -> None:
        super().__init__()
        self._quotas: dict[tuple[str, str], Quota] = {}  # by pool and name

    async def quotas(self, *, pool: str | None = None) -> list[Quota]:
        return [quota for (of_pool, _), quota in sorted(self._quotas.items()) if pool in (None, of_pool)]

    async def set_quota(self, quota: Quota) -> None:
        self._quotas[quota.pool, quota.name] = quota

    async def delete_quota(self, name: str, *, pool: str) -> bool:
        return self._quotas.pop((pool, name), None) is not None
