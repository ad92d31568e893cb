"""Webhooks and duties, in memory. There is one process and no clock: a duty is its taker's until that leaves it."""

from msgspec import structs

from tests.support.doubles.store.times import micro
from weft.store.webhooks import WebhookKept


class MemoryWebhooks:
    def __init__(self) -> None:
        super().__init__()
        self._webhooks: dict[str, WebhookKept] = {}
        self._duties: dict[str, str] = {}

    async def take_duty(self, name: str, *, holder: str, seconds: float) -> bool:
        del seconds
        return self._duties.setdefault(name, holder) == holder

    async def leave_duty(self, name: str, *, holder: str) -> None:
        if self._duties.get(name) == holder:
            del self._duties[name]

    async def add_webhook(self, webhook: WebhookKept, *, most: int) -> bool:
        if sum(one.tenant == webhook.tenant for one in self._webhooks.values()) >= most:
            return False
        self._webhooks[webhook.id] = structs.replace(webhook, created_at=micro(webhook.created_at))
        return True

    async def webhooks(self, *, tenant: str | None = None, limit: int = 1000) -> list[WebhookKept]:
        return [one for _, one in sorted(self._webhooks.items()) if tenant in (None, one.tenant)][:limit]

    async def remove_webhook(self, webhook_id: str) -> bool:
        return self._webhooks.pop(webhook_id, None) is not None

    async def switch_on(self, webhook_id: str) -> None:
        if (known := self._webhooks.get(webhook_id)) is not None:
            again = structs.replace(known, off="", failures=0, failing_since=None, not_before=None)
            self._webhooks[webhook_id] = again

    async def webhook_delivered(
        self, webhook_id: str, *, cursor: str, count: int, at: float, duty: str, holder: str
    ) -> bool:
        known = self._on_duty(webhook_id, duty, holder)
        if known is None:
            return False
        moved = structs.replace(known, cursor=cursor)
        if count:
            counted = {"delivered": known.delivered + count, "delivered_at": micro(at)}
            moved = structs.replace(moved, **counted, failures=0, failing_since=None, not_before=None, error="")
        self._webhooks[webhook_id] = moved
        return True

    async def webhook_failed(
        self, webhook_id: str, *, error: str, at: float, not_before: float, off: str, duty: str, holder: str
    ) -> bool:
        known = self._on_duty(webhook_id, duty, holder)
        if known is None:
            return False
        self._webhooks[webhook_id] = structs.replace(
            known,
            failures=known.failures + 1,
            failing_since=micro(at) if known.failing_since is None else known.failing_since,
            not_before=micro(not_before),
            error=error,
            off=off,
        )
        return True

    def _on_duty(self, webhook_id: str, duty: str, holder: str) -> WebhookKept | None:
        return self._webhooks.get(webhook_id) if self._duties.get(duty) == holder else None
