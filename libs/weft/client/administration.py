"""Requests about tokens, new nodes, tenants, quotas, usage, webhooks and secrets."""

import msgspec

from weft.client import seldom
from weft.client.errors import Refused
from weft.client.paths import path_part, without_empty
from weft.client.wire import JSON_HEADERS, Wire

UPLOAD_SECONDS_MAX = 1800.0


class AdministrationRequests:
    """The part of a client that reads usage, and reads and changes tokens, tenants, quotas, webhooks and secrets."""

    _wire: Wire

    async def make_token(
        self, tenant: str, label: str, *, admin: bool = False, expires_in: int | None = None
    ) -> "seldom.TokenMade":
        """`expires_in` is in seconds; None: the token is in force until it is revoked."""
        wanted = {"tenant": tenant, "label": label, "admin": admin}
        body = msgspec.json.encode(wanted if expires_in is None else {**wanted, "expires_in": expires_in})
        return await self._wire.ask("POST", "/v1/tokens", seldom.TokenMade, body=body, headers=JSON_HEADERS, once=True)

    async def tokens(self, *, tenant: str = "", every: bool = False) -> "seldom.TokensView":
        """Tokens without their secrets, the newest first: those in force; with `every` also those that have ended."""
        return await self._wire.ask(
            "GET", "/v1/tokens", seldom.TokensView, query=without_empty({"tenant": tenant, "all": "1" if every else ""})
        )

    async def revoke(self, tenant: str, label: str) -> "seldom.TokensRevoked":
        path = f"/v1/tokens/{path_part(tenant)}/{path_part(label)}"
        return await self._wire.ask("DELETE", path, seldom.TokensRevoked, once=True)

    async def make_join_token(self, node: str, *, token_hash: str, sealed: str, seconds: int) -> "seldom.JoinTokenMade":
        """Store the sealed credentials of a new node for `seconds`, under the hash of its token's public part."""
        body = msgspec.json.encode({"hash": token_hash, "sealed": sealed, "seconds": seconds})
        path = f"/v1/nodes/{path_part(node)}/join-token"
        return await self._wire.ask("PUT", path, seldom.JoinTokenMade, body=body, headers=JSON_HEADERS)

    async def tenants(self) -> "seldom.TenantsView":
        """Every tenant, what it may take and what it has taken."""
        return await self._wire.ask("GET", "/v1/tenants", seldom.TenantsView)

    async def change_tenant(self, tenant: str, wanted: "seldom.TenantWanted") -> "seldom.TenantView":
        """Change what a tenant may take."""
        path = f"/v1/tenants/{path_part(tenant)}"
        return await self._wire.ask(
            "PATCH", path, seldom.TenantView, body=msgspec.json.encode(wanted), headers=JSON_HEADERS
        )

    async def quotas(self, *, pool: str = "default") -> "seldom.QuotasView":
        """The quotas of a pool: all of them, or a tenant's own."""
        return await self._wire.ask("GET", "/v1/quotas", seldom.QuotasView, query=without_empty({"pool": pool}))

    async def set_quota(self, name: str, wanted: "seldom.QuotaWanted") -> "seldom.QuotaView":
        """Set or replace the quota of a tenant or group."""
        path = f"/v1/quotas/{path_part(name)}"
        return await self._wire.ask(
            "PUT", path, seldom.QuotaView, body=msgspec.json.encode(wanted), headers=JSON_HEADERS
        )

    async def delete_quota(self, name: str, *, pool: str = "default") -> "seldom.QuotaDeleted":
        path = f"/v1/quotas/{path_part(name)}"
        return await self._wire.ask("DELETE", path, seldom.QuotaDeleted, query=without_empty({"pool": pool}), once=True)

    async def usage(
        self,
        *,
        by: "seldom.UsageGrouping",
        seconds: int,
        until: float | None = None,
        label: str = "",
        tenant: str = "",
        limit: int = 1000,
    ) -> "seldom.UsageView":
        """GPU-seconds held, used and lost in the `seconds` until then (or now), in rows."""
        query = _account(by, seconds, until, label, tenant, limit)
        return await self._wire.ask("GET", "/v1/usage", seldom.UsageView, query=query)

    async def usage_csv(
        self,
        *,
        by: "seldom.UsageGrouping",
        seconds: int,
        until: float | None = None,
        label: str = "",
        tenant: str = "",
        limit: int = 1000,
    ) -> bytes:
        """The rows of `usage` as CSV."""
        query = _account(by, seconds, until, label, tenant, limit)
        return await self._wire.read("GET", "/v1/usage", query=query, headers={"Accept": "text/csv"})

    async def webhooks(self) -> "seldom.WebhooksView":
        """The webhooks of this token's tenant; for an administrator all."""
        return await self._wire.ask("GET", "/v1/webhooks", seldom.WebhooksView)

    async def add_webhook(self, wanted: "seldom.WebhookWanted") -> "seldom.WebhookMade":
        """Have events posted; the answer has the secret that signs them."""
        body = msgspec.json.encode(wanted)
        return await self._wire.ask(
            "POST", "/v1/webhooks", seldom.WebhookMade, body=body, headers=JSON_HEADERS, once=True
        )

    async def switch_webhook_on(self, webhook: str) -> "seldom.WebhookView":
        return await self._wire.ask("POST", f"/v1/webhooks/{path_part(webhook)}/on", seldom.WebhookView)

    async def remove_webhook(self, webhook: str) -> "seldom.WebhookView":
        return await self._wire.ask("DELETE", f"/v1/webhooks/{path_part(webhook)}", seldom.WebhookView, once=True)

    async def context(self, digest: str) -> "seldom.ContextView | None":
        """The packed files of this digest that this token's tenant has stored; None: there are none."""
        try:
            return await self._wire.ask("GET", f"/v1/contexts/{path_part(digest)}", seldom.ContextView)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    async def set_context(self, digest: str, packed: bytes) -> "seldom.ContextView":
        """Store packed files: a ZIP file, and its SHA-256 as hexadecimal digits."""
        return await self._wire.ask(
            "PUT",
            f"/v1/contexts/{path_part(digest)}",
            seldom.ContextView,
            body=packed,
            headers={"Content-Type": "application/zip"},
            seconds=UPLOAD_SECONDS_MAX,
        )

    async def images(self) -> "seldom.ImagesView":
        """The images of this token's tenant in the registry of the cluster."""
        return await self._wire.ask("GET", "/v1/images", seldom.ImagesView)

    async def delete_image(self, name: str) -> "seldom.ImageDeleted":
        return await self._wire.ask("DELETE", "/v1/images", seldom.ImageDeleted, query={"name": name}, once=True)

    async def secrets(self) -> "seldom.SecretsView":
        """The names of the secrets of this token's tenant."""
        return await self._wire.ask("GET", "/v1/secrets", seldom.SecretsView)

    async def set_secret(self, name: str, value: str) -> "seldom.SecretView":
        """Store a secret, or replace its value."""
        body = msgspec.json.encode(seldom.SecretWanted(value=value))
        return await self._wire.ask(
            "PUT", f"/v1/secrets/{path_part(name)}", seldom.SecretView, body=body, headers=JSON_HEADERS
        )

    async def delete_secret(self, name: str) -> "seldom.SecretDeleted":
        return await self._wire.ask("DELETE", f"/v1/secrets/{path_part(name)}", seldom.SecretDeleted, once=True)


def _account(
    by: "seldom.UsageGrouping", seconds: int, until: float | None, label: str, tenant: str, limit: int
) -> dict[str, str]:
    asked = {"by": by.value, "seconds": str(seconds), "until": "" if until is None else repr(until)}
    return without_empty({**asked, "label": label, "tenant": tenant, "limit": str(limit)})
