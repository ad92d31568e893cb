"""What a gateway stores of webhooks, and of the duties that one of several gateways does."""

from typing import Protocol

from msgspec import Struct


class WebhookKept(Struct, frozen=True, kw_only=True):
    """A webhook as it is stored; times in seconds since 1970, None if there is none. docs/telling.md."""

    id: str
    tenant: str
    url: str
    events: tuple[str, ...]
    all_tenants: bool
    secret: str
    created_at: float
    cursor: str
    delivered: int = 0
    delivered_at: float | None = None
    failures: int = 0
    failing_since: float | None = None
    not_before: float | None = None
    error: str = ""
    off: str = ""


class WebhookStore(Protocol):
    async def take_duty(self, name: str, *, holder: str, seconds: float) -> bool:
        """Take a duty, or go on with it, for so many seconds. False: another holder has it."""

    async def leave_duty(self, name: str, *, holder: str) -> None:
        """Let another take it at once, if this one had it."""

    async def add_webhook(self, webhook: WebhookKept, *, most: int) -> bool:
        """False: nothing was stored, because its tenant has as many as it may."""

    async def webhooks(self, *, tenant: str | None = None, limit: int = 1000) -> list[WebhookKept]:
        """The webhooks of one tenant or of all, in the order of their ids."""

    async def remove_webhook(self, webhook_id: str) -> bool:
        """False: there was none."""

    async def switch_on(self, webhook_id: str) -> None:
        """Have it deliver again from where it was."""

    async def webhook_delivered(
        self, webhook_id: str, *, cursor: str, count: int, at: float, duty: str, holder: str
    ) -> bool:
        """Move a webhook behind an event; `count` were delivered. False: the duty is another's, or there is no such
        webhook any more."""

    async def webhook_failed(
        self, webhook_id: str, *, error: str, at: float, not_before: float, off: str, duty: str, holder: str
    ) -> bool:
        """Record a try that failed; with `off`, why there is no other. False as above."""
