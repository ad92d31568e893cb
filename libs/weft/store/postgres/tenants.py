"""Tenants and their tokens on a real Postgres."""

from msgspec import UNSET

from weft.domain.tenants import NAMES, AllowanceChange
from weft.store.asking import Asking
from weft.store.rows import chosen_of, tenant_of
from weft.store.tenants import FILE_LABEL, Access, TenantKept, TokenKept


class PostgresTenants:
    """What `TenantStore` promises."""

    asking: Asking

    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        row = await self.asking.row("access", token_hash, at)
        return None if row is None else Access(tenant=row["tenant"], admin=row["admin"], chosen=chosen_of(row))

    async def add_token(
        self,
        token_hash: bytes,
        *,
        tenant: str,
        admin: bool,
        label: str,
        at: float,
        expires_at: float | None = None,
        label_is_new: bool = False,
    ) -> bool:
        stored = await self.asking.row("add_token", token_hash, tenant, admin, label, at, expires_at, label_is_new)
        return stored is not None

    async def token_used(self, token_hash: bytes, *, at: float, not_within: float) -> None:
        await self.asking.row("token_used", token_hash, at, at - not_within)

    async def tokens(self, *, tenant: str | None = None, limit: int = 1000) -> list[TokenKept]:
        return [TokenKept(**row) for row in await self.asking.rows("tokens", tenant, limit)]

    async def revoke_tokens(self, *, tenant: str, label: str, at: float) -> int:
        return len(await self.asking.rows("revoke_tokens", tenant, label, at))

    async def forget_tokens(self, *, before: float) -> int:
        return await self.asking.count("forget_tokens", before, f"{FILE_LABEL}%")

    async def tenants(self, *, tenant: str | None = None, limit: int = 1000) -> list[TenantKept]:
        return [tenant_of(row) for row in await self.asking.rows("tenants", tenant, limit)]

    async def change_tenant(self, tenant: str, change: AllowanceChange) -> None:
        changes = [getattr(change, name) for name in NAMES]
        flags = [part for each in changes for part in ((False, None) if each is UNSET else (True, each))]
        await self.asking.row("change_tenant", tenant, *flags)
