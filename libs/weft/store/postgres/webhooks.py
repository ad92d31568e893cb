"""Webhooks and duties on a real Postgres."""

from weft.store.asking import Asking, Row
from weft.store.webhooks import WebhookKept


class PostgresWebhooks:
    """What `WebhookStore` promises. Duties go by the clock of the database."""

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
