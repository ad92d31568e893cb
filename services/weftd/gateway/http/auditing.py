"""The operations that go into the audit log: changes that only administrators may make, and those of secrets and
webhooks. An act is written before it is done, so that none is done that could not be written.
"""

from typing import Any

from aiohttp import web

from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Audience, Call, Q, Route, body_of
from weftd.gateway.limits.auditing import ACT_CHARACTERS

OF_TENANTS = frozenset({"secrets", "webhooks"})
SHOWN = frozenset({"TokenWanted", "TenantWanted", "QuotaWanted", "PersonWanted"})
"""The bodies that are written: all others may have a secret."""


def is_audited(route: Route[Any]) -> bool:
    return route.method != "GET" and (route.who in (Audience.ADMIN, Audience.OPERATOR) or route.group in OF_TENANTS)


async def audited(call: Call[Q], route: Route[Q]) -> web.StreamResponse:
    """Write what is asked for, then do it. Raises StoreUnavailableError: then nothing was done."""
    auditing, request = call.gateway.auditing, call.request
    auditing.count(call.who)
    actor, act = auditing.actor(request, call.who), f"{request.method} {request.path_qs}"[:ACT_CHARACTERS]
    shown = getattr(route.body, "__name__", "") in SHOWN
    await auditing.asked(actor, act, (await body_of(request)).decode(errors="replace") if shown else "")
    try:
        return await route.handler(call)
    except RejectedError as error:
        await auditing.refusal(actor, act, error)
        raise
