"""Quotas on a real Postgres, and what tenants used of late."""

import msgspec

from weft.domain.quotas import Quota
from weft.store.asking import Asking


class PostgresQuotas:
    asking: Asking

    async def quotas(self, *, pool: str | None = None) -> list[Quota]:
        return [msgspec.json.decode(row["quota"], type=Quota) for row in await self.asking.rows("quotas", pool)]

    async def set_quota(self, quota: Quota) -> None:
        await self.asking.row("set_quota", quota.pool, quota.name, msgspec.json.encode(quota).decode())

    async def delete_quota(self, name: str, *, pool: str) -> bool:
        return bool(await self.asking.rows("delete_quota", pool, name))

    async def decayed_use(self, *, pool: str, at: float, half_life: float) -> dict[str, float]:
        return {row["tenant"]: row["used"] for row in await self.asking.rows("decayed_use", pool, at, half_life)}
