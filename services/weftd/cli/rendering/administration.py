"""Tables of tenants, tokens, quotas, webhooks and secrets."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from weft.domain.quantity import size_text
from weft.domain.text import plural
from weft.messages.http.people import PersonView
from weft.messages.http.quotas import QuotaView
from weft.messages.http.sign_ins import SessionView
from weft.messages.http.tenants import TenantView, TokenView
from weft.messages.secrets import SecretView
from weft.messages.webhooks import WebhookView
from weftd.cli.formatting import ago, span
from weftd.cli.rendering.context import RenderContext, plain, table


def tenant_table(tenants: Sequence[TenantView], context: RenderContext) -> Table:
    """One line per tenant; a limit that an administrator has set has a star."""
    made = table(
        "TENANT", "JOBS", "SPECIFICATIONS", "PRIORITY", "UNPREEMPTIBLE", "IDLE STOP", "CREATED", context=context
    )
    for tenant in tenants:
        jobs = f"{tenant.jobs_open} of {tenant.jobs_open_max}"
        specs = f"{size_text(tenant.spec_bytes)} of {size_text(tenant.spec_bytes_max)}"
        made.add_row(
            plain(tenant.id, "bold"),
            jobs + _star(tenant, "jobs_open_max"),
            specs + _star(tenant, "spec_bytes_max"),
            f"to {tenant.priority_max}" + _star(tenant, "priority_max"),
            ("yes" if tenant.may_be_unpreemptible else "no") + _star(tenant, "may_be_unpreemptible"),
            (span(tenant.idle_seconds_max) if tenant.idle_seconds_max else "–") + _star(tenant, "idle_seconds_max"),
            ago(context.now - tenant.created_at),
        )
    return made


def _star(tenant: TenantView, limit: str) -> str:
    return " *" if limit in tenant.chosen else ""


def token_table(tokens: Sequence[TokenView], context: RenderContext) -> Table:
    made = table("TENANT", "LABEL", "MAY", "STATE", "CREATED", "USED", "EXPIRES", context=context, flexible="LABEL")
    for token in tokens:
        made.add_row(
            plain(token.tenant, "bold"),
            plain(token.label),
            "everything" if token.admin else "its own jobs",
            _state_of_token(token),
            ago(context.now - token.created_at),
            "never" if token.used_at is None else ago(context.now - token.used_at),
            _expiry(token, context),
        )
    return made


def people_table(people: Sequence[PersonView], context: RenderContext) -> Table:
    made = table("PERSON", "NAME", "TENANT", "ROLE", "SIGNED IN", "STATE", context=context, flexible="NAME")
    for one in people:
        made.add_row(
            plain(one.id, "bold"),
            plain(one.name),
            plain(one.tenant),
            plain(one.role),
            ago(context.now - one.signed_in_at),
            Text("kept out", "red") if one.disabled_at else Text("may sign in", "green"),
        )
    return made


def session_table(sessions: Sequence[SessionView], context: RenderContext) -> Table:
    made = table("SESSION", "TENANT", "TOKEN", "OPENS", "BEGAN", "USED", "EXPIRES", context=context, flexible="TOKEN")
    for one in sessions:
        made.add_row(
            plain(one.id, "bold"),
            plain(one.tenant),
            plain(one.label),
            plain(one.job) if one.job else ("everything" if one.admin else "its own jobs"),
            ago(context.now - one.created_at),
            "never" if one.used_at is None else ago(context.now - one.used_at),
            f"in {span(one.expires_at - context.now)}",
        )
    return made


def _state_of_token(token: TokenView) -> Text:
    if token.revoked_at is not None:
        return Text("revoked", "dim")
    return Text("in force", "green") if token.in_force else Text("expired", "dim")


def _expiry(token: TokenView, context: RenderContext) -> str:
    if token.expires_at is None:
        return "never"
    left = token.expires_at - context.now
    return f"in {span(left)}" if left > 0 else ago(-left)


def quota_table(quotas: Sequence[QuotaView], context: RenderContext) -> Table:
    """One line per quota: a group, then its members below it."""
    made = table("NAME", "GUARANTEED", "LIMIT", "WEIGHT", "HOLDS", "BORROWS", context=context)
    for depth, quota in _nested(quotas):
        name = f"{'  ' * depth}{quota.name}{'/' if quota.is_group else ''}"
        made.add_row(
            plain(name, "bold"),
            plain(_amounts(quota.in_force or quota.guaranteed, quota.guaranteed_models)),
            plain(_amounts(quota.limit, quota.limit_models)),
            str(quota.weight),
            f"{quota.holds:g}",
            f"{quota.borrows:g}" if quota.borrows else "-",
        )
    return made


def _amounts(gpus: float | None, models: dict[str, float]) -> str:
    parts = [f"{amount:g} {model}" for model, amount in sorted(models.items())]
    return ", ".join([f"{gpus:g}", *parts] if gpus is not None else parts) or "-"


def _nested(quotas: Sequence[QuotaView]) -> Iterable[tuple[int, QuotaView]]:
    """Each quota with the number of listed groups above it."""
    names = {quota.name for quota in quotas}

    def below(group: str, depth: int) -> Iterable[tuple[int, QuotaView]]:
        for quota in quotas:
            if (quota.group if quota.group in names else "") == group:
                yield depth, quota
                if quota.is_group:
                    yield from below(quota.name, depth + 1)

    return below("", 0)


def webhook_table(webhooks: Sequence[WebhookView], context: RenderContext) -> Table:
    made = table("ID", "TENANT", "EVENTS", "DELIVERED", "STATE", "URL", context=context, flexible="URL")
    for one in webhooks:
        events = ", ".join(one.events) or "all"
        made.add_row(
            plain(one.id, "bold"),
            one.tenant + (" (all tenants)" if one.all_tenants else ""),
            events if len(events) < 30 else f"{events[:29]}…",
            str(one.delivered) + (f", {ago(context.now - one.delivered_at)}" if one.delivered_at is not None else ""),
            plain(_state_of_webhook(one), "red" if one.off or one.failures else ""),
            plain(one.url),
        )
    return made


def _state_of_webhook(one: WebhookView) -> str:
    if one.off:
        return f"off: {one.off}"
    return f"{plural(one.failures, 'try')} failed: {one.error}".replace("trys", "tries") if one.failures else "on"


def secret_table(secrets: Sequence[SecretView], context: RenderContext) -> Table:
    made = table("NAME", "STORED", "REPLACED", context=context, flexible="NAME")
    for one in secrets:
        replaced = ago(context.now - one.updated_at) if one.updated_at > one.created_at else ""
        made.add_row(plain(one.name, "bold"), ago(context.now - one.created_at), replaced)
    return made
