"""Quotas of pools, as the gateway stores them."""

from typing import Protocol

from weft.domain.quotas import Quota


class QuotaStore(Protocol):
    async def quotas(self, *, pool: str | None = None) -> list[Quota]:
        """The quotas of a pool, or of all pools, by name."""

    async def set_quota(self, quota: Quota) -> None:
        """Store a quota, in place of its earlier form."""

    async def delete_quota(self, name: str, *, pool: str) -> bool:
        """Delete a quota; False: there was none."""
