"""Webhooks and mails: tenants add, list, switch on and remove them. The secret is shown once."""

import msgspec
from aiohttp import web

from weft.messages.webhooks import WebhookMade, WebhooksView, WebhookView, WebhookWanted
from weft.store.webhooks import WebhookKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, NoQuery, RouteAnswer, answer, json_of, operation
from weftd.gateway.notifications.dispatcher import WEBHOOKS_MAX
from weftd.gateway.notifications.urls import mistake
from weftd.gateway.readmodel.visibility import may_see
from weftd.gateway.thinking.notifications.mails import UNASKED, is_mail, mistaken_address
from weftd.gateway.thinking.notifications.posts import events_of, secret_of

SECRET_CHARACTERS = 40
ID_CHARACTERS = 10
PER_TENANT_MAX = 20
_SHOWN = tuple(name for name in WebhookView.__struct_fields__ if name != "next_try")


@operation(
    "GET /v1/webhooks",
    "webhooks",
    "List webhooks",
    description="Webhooks without their secrets: deliveries, and the error of the last attempt.",
    answers={200: RouteAnswer(description="The tenant's webhooks; for an administrator all.", type=WebhooksView)},
)
async def webhooks(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.webhooks(tenant=None if call.who.admin else call.who.tenant, limit=WEBHOOKS_MAX)
    return answer(WebhooksView(webhooks=tuple(_view(one) for one in kept)))


@operation(
    "POST /v1/webhooks",
    "webhooks",
    "Post events to a URL",
    description="Weft posts each later event at least once, in order, signed with a secret. The answer shows the secret"
    " once: docs/telling.md.",
    body=WebhookWanted,
    answers={201: RouteAnswer(description="The webhook and its secret.", type=WebhookMade)},
    example="""-d '{"url": "https://example.org/hook", "events": ["begin", "end"]}'""",
)
async def add(call: Call[NoQuery]) -> web.StreamResponse:
    gateway = call.gateway
    wanted = await json_of(call.request, WebhookWanted)
    by_mail = is_mail(wanted.url)
    if by_mail and not gateway.mail_domains:
        raise RejectedError(403, "url", "this cluster sends no mail: GATEWAY_MAIL_HOST is not set")
    if not by_mail and not gateway.webhooks_allowed:
        raise RejectedError(403, "", "this cluster has no webhooks: GATEWAY_WEBHOOKS is off")
    if why := _mistake(wanted.url, gateway):
        raise RejectedError(400, "url", why)
    if wanted.all_tenants and not call.who.admin:
        raise RejectedError(403, "all_tenants", f"this token is of tenant {call.who.tenant}, and sees only that tenant")
    try:
        events = events_of(wanted.events) or (UNASKED if by_mail else ())
    except ValueError as error:
        raise RejectedError(400, "events", str(error)) from None
    kept = await gateway.store.webhooks(limit=WEBHOOKS_MAX)
    if by_mail and any(one.tenant == call.who.tenant and one.url.lower() == wanted.url.lower() for one in kept):
        raise RejectedError(409, "url", f"tenant {call.who.tenant} has mail sent there: remove that one first")
    newest = await gateway.store.events(newest=True, limit=1)
    made = WebhookKept(
        id=f"w-{gateway.characters(ID_CHARACTERS)}",
        tenant=call.who.tenant,
        url=wanted.url,
        events=events,
        all_tenants=wanted.all_tenants,
        secret="" if by_mail else secret_of(gateway.characters(SECRET_CHARACTERS)),
        created_at=gateway.now(),
        cursor=newest[-1].cursor if newest else "",
    )
    if len(kept) >= WEBHOOKS_MAX:
        raise RejectedError(409, "url", f"there are {WEBHOOKS_MAX} webhooks, and no more are kept")
    if not await gateway.store.add_webhook(made, most=PER_TENANT_MAX):
        raise RejectedError(409, "url", f"tenant {made.tenant} has {PER_TENANT_MAX} webhooks: remove one")
    told = WebhookMade(webhook=_view(made), secret=made.secret)
    return answer(told, status=201, headers={"Cache-Control": "no-store"})


def _mistake(url: str, gateway: Gateway) -> str:
    return mistaken_address(url, gateway.mail_domains) if is_mail(url) else mistake(url, gateway.networks)


@operation(
    "DELETE /v1/webhooks/{webhook}",
    "webhooks",
    "Remove a webhook",
    answers={200: RouteAnswer(description="The webhook as it was.", type=WebhookView)},
)
async def remove(call: Call[NoQuery]) -> web.StreamResponse:
    known = await _known(call)
    await call.gateway.store.remove_webhook(known.id)
    return answer(_view(known))


@operation(
    "POST /v1/webhooks/{webhook}/on",
    "webhooks",
    "Switch a webhook on again",
    description="It continues after the last delivered event.",
    answers={200: RouteAnswer(description="The webhook.", type=WebhookView)},
)
async def switch_on(call: Call[NoQuery]) -> web.StreamResponse:
    known = await _known(call)
    await call.gateway.store.switch_on(known.id)
    return answer(_view(msgspec.structs.replace(known, off="", failures=0, failing_since=None, not_before=None)))


async def _known(call: Call[NoQuery]) -> WebhookKept:
    """A webhook of another tenant counts as missing."""
    name = call.path("webhook")
    kept = await call.gateway.store.webhooks(tenant=None if call.who.admin else call.who.tenant, limit=WEBHOOKS_MAX)
    found = next((one for one in kept if one.id == name and may_see(call.who, one.tenant)), None)
    if found is None:
        raise RejectedError(404, "webhook", "there is no such webhook")
    return found


def _view(kept: WebhookKept) -> WebhookView:
    fields = {name: getattr(kept, name) for name in _SHOWN}
    return WebhookView(**fields, next_try=None if kept.off else kept.not_before)
