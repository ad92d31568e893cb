"""Tenants on a real Postgres, with their quotas, secrets and webhooks."""

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from weft.domain.quotas import Quota
from weft.domain.tenants import NAMES, AllowanceChange
from weft.store.asking import Asking, Row
from weft.store.rows import chosen_of, tenant_of
from weft.store.secrets import SecretKept
from weft.store.tenants import FILE_LABEL, Access, TenantKept, TokenKept
from weft.store.webhooks import WebhookKept


class PostgresTenants:
    """Implements `TenantStore` on Postgres."""

    asking: Asking

    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        row = await self.asking.row("access", token_hash, at)
        if row is None:
            return None
        named = {name: row[name] for name in ("tenant", "admin", "label", "session", "job", "person", "role")}
        return Access(chosen=chosen_of(row), **named)

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


class PostgresSecrets:
    """Implements `SecretStore` on Postgres."""

    asking: Asking

    async def set_secret(self, tenant: str, name: str, value: str, *, at: float, most: int) -> bool:
        return await self.asking.row("set_secret", tenant, name, value, at, most) is not None

    async def secrets(self, tenant: str) -> list[SecretKept]:
        return [SecretKept(**dict(row)) for row in await self.asking.rows("secrets", tenant)]

    async def secret_values(self, tenant: str, names: Iterable[str]) -> dict[str, str]:
        rows = await self.asking.rows("secret_values", tenant, list(names))
        return {row["name"]: row["value"] for row in rows}

    async def delete_secret(self, tenant: str, name: str) -> bool:
        return await self.asking.row("delete_secret", tenant, name) is not None


class PostgresWebhooks:
    """Implements `WebhookStore` on Postgres. Due times follow the clock of the database."""

    asking: Asking

    async def take_duty(self, name: str, *, holder: str, seconds: float) -> bool:
        return await self.asking.row("take_duty", name, holder, seconds) is not None

    async def leave_duty(self, name: str, *, holder: str) -> None:
        await self.asking.row("leave_duty", name, holder)

    async def add_webhook(self, webhook: WebhookKept, *, most: int) -> bool:
        given = (webhook.id, webhook.tenant, webhook.url, list(webhook.events), webhook.all_tenants, webhook.secret)
        row = await self.asking.row("add_webhook", *given, webhook.created_at, webhook.cursor, most)
        return row is not None

    async def webhooks(self, *, tenant: str | None = None, limit: int = 1000) -> list[WebhookKept]:
        return [_webhook_of(row) for row in await self.asking.rows("webhooks", tenant, limit)]

    async def remove_webhook(self, webhook_id: str) -> bool:
        return await self.asking.row("remove_webhook", webhook_id) is not None

    async def switch_on(self, webhook_id: str) -> None:
        await self.asking.row("switch_on", webhook_id)

    async def webhook_delivered(
        self, webhook_id: str, *, cursor: str, count: int, at: float, duty: str, holder: str
    ) -> bool:
        row = await self.asking.row("webhook_delivered", webhook_id, cursor, count, at, duty, holder)
        return row is not None

    async def webhook_failed(
        self, webhook_id: str, *, error: str, at: float, not_before: float, off: str, duty: str, holder: str
    ) -> bool:
        row = await self.asking.row("webhook_failed", webhook_id, error, at, not_before, off, duty, holder)
        return row is not None


def _webhook_of(row: Row) -> WebhookKept:
    return WebhookKept(**{**dict(row), "events": tuple(row["events"])})
