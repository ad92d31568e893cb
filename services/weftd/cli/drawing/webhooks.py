"""Webhooks: where events are posted, and how that goes."""

from collections.abc import Sequence

from rich.table import Table

from weft.messages.webhooks import WebhookView
from weftd.cli.drawing.look import Look, plain, table
from weftd.cli.words import ago, count


def webhook_table(webhooks: Sequence[WebhookView], look: Look) -> Table:
    made = table("ID", "TENANT", "EVENTS", "DELIVERED", "STATE", "URL", look=look, flexible="URL")
    for one in webhooks:
        events = ", ".join(one.events) or "all"
        made.add_row(
            plain(one.id, "bold"),
            one.tenant + (" (all tenants)" if one.all_tenants else ""),
            events if len(events) < 30 else f"{events[:29]}…",
            str(one.delivered) + (f", {ago(look.now - one.delivered_at)}" if one.delivered_at is not None else ""),
            plain(_state(one), "red" if one.off or one.failures else ""),
            plain(one.url),
        )
    return made


def _state(one: WebhookView) -> str:
    if one.off:
        return f"off: {one.off}"
    return f"{count(one.failures, 'try')} failed: {one.error}".replace("trys", "tries") if one.failures else "on"
