"""Operations on tenants, and on what is a tenant's own: tokens, quotas, webhooks, secrets."""

from typing import Any

from libs.messages.contexts import PACKED_BYTES_MAX, ContextView
from libs.messages.http import TenantsView, TenantView, TenantWanted, TokenMade, TokensRevoked, TokensView, TokenWanted
from libs.messages.http_quotas import QuotaDeleted, QuotasView, QuotaView, QuotaWanted
from libs.messages.secrets import SecretDeleted, SecretsView, SecretView, SecretWanted
from libs.messages.series import UsageView
from libs.messages.webhooks import WebhookMade, WebhooksView, WebhookView, WebhookWanted
from services.gateway import contexts, quotas, secrets, tenants, tokens, usage, webhooks
from services.gateway.billing import CSV
from services.gateway.quotas import QuotasQuery
from services.gateway.route import JSON, NoQuery, Route, RouteAnswer, Who
from services.gateway.tokens import TokensQuery
from services.gateway.usage import UsageQuery

TENANTS: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        path="/v1/usage",
        group="tenants",
        summary="GPU-seconds by tenant",
        description="What each tenant held, exactly, from the stored events; what it used, as far as that was sampled;"
        " and what would have been due to it. A tenant sees itself, an administrator all. With `by`, a row for each"
        " tenant, job, epoch, kind, model, label, pool, day or hour: what was held, used, lost and costs, and, for"
        " administrators, what became of the capacity; as CSV with `Accept: text/csv`.",
        handler=usage.usage,
        query=UsageQuery,
        answers={200: RouteAnswer(description="The one that held most first.", type=UsageView, media=(JSON, CSV))},
        example="?seconds=86400&by=tenant",
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        group="tokens",
        summary="Make a token",
        description="It is told this once. A tenant that is new is made, and may have several: to change one, make"
        " another, use it, and revoke the first by its label.",
        handler=tokens.make,
        query=NoQuery,
        who=Who.ADMIN,
        body=TokenWanted,
        answers={201: RouteAnswer(description="The token.", type=TokenMade)},
        example="""-d '{"tenant": "vision", "label": "ci", "expires_in": 2592000}'""",
    ),
    Route(
        method="GET",
        path="/v1/tokens",
        group="tokens",
        summary="List tokens",
        description="The newest 1,000, without their secret; those in force alone, or `all`.",
        handler=tokens.tokens,
        query=TokensQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="Whose they are, and when each was used last.", type=TokensView)},
        example="?tenant=vision",
    ),
    Route(
        method="DELETE",
        path="/v1/tokens/{tenant}/{label}",
        group="tokens",
        summary="Revoke tokens",
        description="All of this tenant with this label. They are refused everywhere within two seconds, and streams"
        " that they opened end within five.",
        handler=tokens.revoke,
        query=NoQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="How many were in force.", type=TokensRevoked)},
    ),
    Route(
        method="GET",
        path="/v1/tenants",
        group="tenants",
        summary="List tenants",
        description="What each may take, and what it has taken.",
        handler=tenants.tenants,
        query=NoQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="All of them, by name.", type=TenantsView)},
    ),
    Route(
        method="PATCH",
        path="/v1/tenants/{tenant}",
        group="tenants",
        summary="Change what a tenant may take",
        description="What it has open already goes on; what is beyond its limits is refused from now on, by every"
        " gateway within two seconds.",
        handler=tenants.change,
        query=NoQuery,
        who=Who.ADMIN,
        body=TenantWanted,
        answers={200: RouteAnswer(description="The tenant as it is now.", type=TenantView)},
        example="""-d '{"jobs_open_max": 1000, "priority_max": null}'""",
    ),
    Route(
        method="GET",
        path="/v1/quotas",
        group="tenants",
        summary="List quotas",
        description="What each tenant and group of the pool is guaranteed, may hold, holds and borrows. A tenant sees"
        " its own quota and those of its groups.",
        handler=quotas.quotas,
        query=QuotasQuery,
        answers={200: RouteAnswer(description="By name.", type=QuotasView)},
        example="?pool=default",
    ),
    Route(
        method="PUT",
        path="/v1/quotas/{name}",
        group="tenants",
        summary="Set a quota",
        description="Of a tenant, or of a group of them. What it has beyond a lower limit goes on; the scheduler obeys"
        " it within two seconds.",
        handler=quotas.set_,
        query=NoQuery,
        who=Who.ADMIN,
        body=QuotaWanted,
        answers={200: RouteAnswer(description="The quota as it is now.", type=QuotaView)},
        example="""-d '{"guaranteed": 8, "limit": 32}'""",
    ),
    Route(
        method="DELETE",
        path="/v1/quotas/{name}",
        group="tenants",
        summary="Delete a quota",
        description="Its tenant has no guarantee and no limit from then on. A group that has members stays.",
        handler=quotas.delete,
        query=QuotasQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="Which.", type=QuotaDeleted)},
        example="?pool=default",
    ),
    Route(
        method="GET",
        path="/v1/webhooks",
        group="webhooks",
        summary="List webhooks",
        description="Without their secrets: what each has delivered, and how its last try failed.",
        handler=webhooks.webhooks,
        query=NoQuery,
        answers={200: RouteAnswer(description="A tenant's own; for an administrator all.", type=WebhooksView)},
    ),
    Route(
        method="POST",
        path="/v1/webhooks",
        group="webhooks",
        summary="Have events posted to a URL",
        description="From now on, in order, each at least once and signed with a secret that is told this once:"
        " docs/telling.md.",
        handler=webhooks.add,
        query=NoQuery,
        body=WebhookWanted,
        answers={201: RouteAnswer(description="The webhook and its secret.", type=WebhookMade)},
        example="""-d '{"url": "https://example.org/hook", "events": ["begin", "end"]}'""",
    ),
    Route(
        method="POST",
        path="/v1/webhooks/{webhook}/on",
        group="webhooks",
        summary="Switch a webhook on again",
        description="It goes on from the event after the last that it took.",
        handler=webhooks.switch_on,
        query=NoQuery,
        answers={200: RouteAnswer(description="The webhook.", type=WebhookView)},
    ),
    Route(
        method="DELETE",
        path="/v1/webhooks/{webhook}",
        group="webhooks",
        summary="Remove a webhook",
        handler=webhooks.remove,
        query=NoQuery,
        answers={200: RouteAnswer(description="The webhook as it was.", type=WebhookView)},
    ),
    Route(
        method="GET",
        path="/v1/contexts/{digest}",
        group="contexts",
        summary="Look for packed files",
        description="Of the token's tenant. They are kept from now on as if a job had used them.",
        handler=contexts.context,
        query=NoQuery,
        answers={200: RouteAnswer(description="They are stored.", type=ContextView)},
    ),
    Route(
        method="PUT",
        path="/v1/contexts/{digest}",
        group="contexts",
        summary="Store packed files",
        description="A ZIP file, under its SHA-256. A job of this tenant that has this digest as its `context` runs in"
        " a folder with these files: docs/sync.md.",
        handler=contexts.set_,
        query=NoQuery,
        body=bytes,
        body_media=("application/zip",),
        body_bytes_max=PACKED_BYTES_MAX,
        answers={200: RouteAnswer(description="They are stored.", type=ContextView)},
        example="--data-binary @files.zip",
    ),
    Route(
        method="GET",
        path="/v1/secrets",
        group="secrets",
        summary="List secrets",
        description="Their names; no request shows a value.",
        handler=secrets.secrets,
        query=NoQuery,
        answers={200: RouteAnswer(description="Those of the token's tenant, by name.", type=SecretsView)},
    ),
    Route(
        method="PUT",
        path="/v1/secrets/{name}",
        group="secrets",
        summary="Store a secret",
        description="Or replace its value: jobs that start from now on get the new one. Jobs of this tenant name it"
        " below `secrets`: docs/secrets.md.",
        handler=secrets.set_,
        query=NoQuery,
        body=SecretWanted,
        answers={200: RouteAnswer(description="The secret, without its value.", type=SecretView)},
        example="""-d '{"value": "hf_…"}'""",
    ),
    Route(
        method="DELETE",
        path="/v1/secrets/{name}",
        group="secrets",
        summary="Delete a secret",
        description="A job that names it and starts later fails, and says so.",
        handler=secrets.delete,
        query=NoQuery,
        answers={200: RouteAnswer(description="Which.", type=SecretDeleted)},
    ),
)
