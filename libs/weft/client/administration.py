"""Requests about tokens, tenants, quotas, usage, webhooks and secrets."""

import msgspec

from weft.client.errors import Refused
from weft.client.paths import path_part, without_empty
from weft.client.wire import JSON_HEADERS, Wire
from weft.messages.accounts import UsageGrouping
from weft.messages.contexts import ContextView
from weft.messages.http.quotas import QuotaDeleted, QuotasView, QuotaView, QuotaWanted
from weft.messages.http.tenants import TenantsView, TenantView, TenantWanted, TokenMade, TokensRevoked, TokensView
from weft.messages.images import ImageDeleted, ImagesView
from weft.messages.secrets import SecretDeleted, SecretsView, SecretView, SecretWanted
from weft.messages.series import UsageView
from weft.messages.webhooks import WebhookMade, WebhooksView, WebhookView, WebhookWanted

UPLOAD_SECONDS_MAX = 1800.0


class AdministrationRequests:
    """The part of a client that reads usage, and reads and changes tokens, tenants, quotas, webhooks and secrets."""

    _wire: Wire

    async def make_token(
        self, tenant: str, label: str, *, admin: bool = False, expires_in: int | None = None
    ) -> TokenMade:
        """`expires_in` is in seconds; None: the token is in force until it is revoked."""
        wanted = {"tenant": tenant, "label": label, "admin": admin}
        body = msgspec.json.encode(wanted if expires_in is None else {**wanted, "expires_in": expires_in})
        return await self._wire.ask("POST", "/v1/tokens", TokenMade, body=body, headers=JSON_HEADERS, once=True)

    async def tokens(self, *, tenant: str = "", every: bool = False) -> TokensView:
        """Tokens without their secrets, the newest first: those in force; with `every` also those that have ended."""
        return await self._wire.ask(
            "GET", "/v1/tokens", TokensView, query=without_empty({"tenant": tenant, "all": "1" if every else ""})
        )

    async def revoke(self, tenant: str, label: str) -> TokensRevoked:
        path = f"/v1/tokens/{path_part(tenant)}/{path_part(label)}"
        return await self._wire.ask("DELETE", path, TokensRevoked, once=True)

    async def tenants(self) -> TenantsView:
        """Every tenant, what it may take and what it has taken."""
        return await self._wire.ask("GET", "/v1/tenants", TenantsView)

    async def change_tenant(self, tenant: str, wanted: TenantWanted) -> TenantView:
        """Change what a tenant may take."""
        path = f"/v1/tenants/{path_part(tenant)}"
        return await self._wire.ask("PATCH", path, TenantView, body=msgspec.json.encode(wanted), headers=JSON_HEADERS)

    async def quotas(self, *, pool: str = "default") -> QuotasView:
        """The quotas of a pool: all of them, or a tenant's own."""
        return await self._wire.ask("GET", "/v1/quotas", QuotasView, query=without_empty({"pool": pool}))

    async def set_quota(self, name: str, wanted: QuotaWanted) -> QuotaView:
        """Set or replace the quota of a tenant or group."""
        path = f"/v1/quotas/{path_part(name)}"
        return await self._wire.ask("PUT", path, QuotaView, body=msgspec.json.encode(wanted), headers=JSON_HEADERS)

    async def delete_quota(self, name: str, *, pool: str = "default") -> QuotaDeleted:
        path = f"/v1/quotas/{path_part(name)}"
        return await self._wire.ask("DELETE", path, QuotaDeleted, query=without_empty({"pool": pool}), once=True)

    async def usage(
        self,
        *,
        by: UsageGrouping,
        seconds: int,
        until: float | None = None,
        label: str = "",
        tenant: str = "",
        limit: int = 1000,
    ) -> UsageView:
        """GPU-seconds held, used and lost in the `seconds` until then (or now), in rows."""
        query = _account(by, seconds, until, label, tenant, limit)
        return await self._wire.ask("GET", "/v1/usage", UsageView, query=query)

    async def usage_csv(
        self,
        *,
        by: UsageGrouping,
        seconds: int,
        until: float | None = None,
        label: str = "",
        tenant: str = "",
        limit: int = 1000,
    ) -> bytes:
        """The rows of `usage` as CSV."""
        query = _account(by, seconds, until, label, tenant, limit)
        return await self._wire.read("GET", "/v1/usage", query=query, headers={"Accept": "text/csv"})

    async def webhooks(self) -> WebhooksView:
        """The webhooks of this token's tenant; for an administrator all."""
        return await self._wire.ask("GET", "/v1/webhooks", WebhooksView)

    async def add_webhook(self, wanted: WebhookWanted) -> WebhookMade:
        """Have events posted; the answer has the secret that signs them."""
        body = msgspec.json.encode(wanted)
        return await self._wire.ask("POST", "/v1/webhooks", WebhookMade, body=body, headers=JSON_HEADERS, once=True)

    async def switch_webhook_on(self, webhook: str) -> WebhookView:
        return await self._wire.ask("POST", f"/v1/webhooks/{path_part(webhook)}/on", WebhookView)

    async def remove_webhook(self, webhook: str) -> WebhookView:
        return await self._wire.ask("DELETE", f"/v1/webhooks/{path_part(webhook)}", WebhookView, once=True)

    async def context(self, digest: str) -> ContextView | None:
        """The packed files of this digest that this token's tenant has stored; None: there are none."""
        try:
            return await self._wire.ask("GET", f"/v1/contexts/{path_part(digest)}", ContextView)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    async def set_context(self, digest: str, packed: bytes) -> ContextView:
        """Store packed files: a ZIP file, and its SHA-256 as hexadecimal digits."""
        return await self._wire.ask(
            "PUT",
            f"/v1/contexts/{path_part(digest)}",
            ContextView,
            body=packed,
            headers={"Content-Type": "application/zip"},
            seconds=UPLOAD_SECONDS_MAX,
        )

    async def images(self) -> ImagesView:
        """The images of this token's tenant in the registry of the cluster."""
        return await self._wire.ask("GET", "/v1/images", ImagesView)

    async def delete_image(self, name: str) -> ImageDeleted:
        return await self._wire.ask("DELETE", "/v1/images", ImageDeleted, query={"name": name}, once=True)

    async def secrets(self) -> SecretsView:
        """The names of the secrets of this token's tenant."""
        return await self._wire.ask("GET", "/v1/secrets", SecretsView)

    async def set_secret(self, name: str, value: str) -> SecretView:
        """Store a secret, or replace its value."""
        body = msgspec.json.encode(SecretWanted(value=value))
        return await self._wire.ask(
            "PUT", f"/v1/secrets/{path_part(name)}", SecretView, body=body, headers=JSON_HEADERS
        )

    async def delete_secret(self, name: str) -> SecretDeleted:
        return await self._wire.ask("DELETE", f"/v1/secrets/{path_part(name)}", SecretDeleted, once=True)


def _account(
    by: UsageGrouping, seconds: int, until: float | None, label: str, tenant: str, limit: int
) -> dict[str, str]:
    asked = {"by": by.value, "seconds": str(seconds), "until": "" if until is None else repr(until)}
    return without_empty({**asked, "label": label, "tenant": tenant, "limit": str(limit)})
