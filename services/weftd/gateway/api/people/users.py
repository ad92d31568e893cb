"""Operations on people who signed in with the identity provider (list, block, allow again), and the audit log in
pages."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.domain.tenants import Role
from weft.messages.http.audit import AuditLogView, AuditView
from weft.messages.http.people import PeopleView, PersonView, PersonWanted
from weft.store.audit import AuditEntry
from weft.store.people import PersonKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Audience, Call, NoQuery, RouteAnswer, answer, json_of, operation

LISTED_MAX = 1000
ENTRIES_MAX = 1000
Seq = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class PeopleQuery(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN)] | None = None


@operation(
    "GET /v1/people",
    "people",
    "List people",
    description="The first 1,000 who signed in with the identity provider, by name.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="Their tenants and roles, as of their last sign-in.", type=PeopleView)},
)
async def people(call: Call[PeopleQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.people(tenant=call.query.tenant, limit=LISTED_MAX)
    return answer(PeopleView(people=tuple(_view(one) for one in kept)))


@operation(
    "PATCH /v1/people/{person}",
    "people",
    "Keep a person out, or let them in again",
    description="Their sessions are refused everywhere within two seconds, and their streams end within five.",
    who=Audience.ADMIN,
    body=PersonWanted,
    answers={200: RouteAnswer(description="The new setting.", type=PersonWanted)},
)
async def change(call: Call[NoQuery]) -> web.StreamResponse:
    gateway, person = call.gateway, call.path("person")
    wanted = await json_of(call.request, PersonWanted)
    tenant = await gateway.store.disable_person(person, at=gateway.now() if wanted.disabled else None)
    if tenant is None:
        raise RejectedError(404, "person", "there is no such person")
    if wanted.disabled:
        await gateway.store.end_sessions_of(person, at=gateway.now())
    gateway.access.forget()
    return answer(wanted)


def _view(kept: PersonKept) -> PersonView:
    return PersonView(**{name: getattr(kept, name) for name in kept.__struct_fields__})


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Annotated[Seq, Meta(description="`last` of a page: return the entries after it.")] | None = None
    before: Annotated[Seq, Meta(description="`first` of a page: return the entries before it.")] | None = None
    limit: Annotated[int, Meta(ge=1, le=ENTRIES_MAX)] = 100
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Only this tenant; for administrators.")] | None = (
        None
    )


@operation(
    "GET /v1/audit",
    "audit",
    "The audit log",
    description="Acts of administrators, sign-ins and sign-outs, changes of secrets and webhooks, and refused"
    " requests: the newest entries, or those after or before a cursor. A tenant sees its own entries, an"
    " administrator all.",
    answers={200: RouteAnswer(description="A page of the log.", type=AuditLogView)},
    example="?limit=20",
)
async def audit(call: Call[AuditQuery]) -> web.StreamResponse:
    who, query = call.who, call.query
    if query.after is not None and query.before is not None:
        raise RejectedError(400, "before", "give after or before, not both")
    if query.tenant not in (None, who.tenant) and not who.admin:
        raise RejectedError(403, "tenant", "only an administrator sees what other tenants did")
    if who.role in (Role.VIEWER, Role.USER):
        raise RejectedError(
            403, "Authorization", f"your role, {who.role}, does not see the audit log: tenant-admin does"
        )
    tenant = query.tenant if who.admin else who.tenant
    async with call.gateway.reading.one(who.tenant):
        entries = await call.gateway.store.audit(
            tenant=tenant, after=query.after, before=query.before, limit=query.limit
        )
    views = tuple(_entry(entry) for entry in entries)
    ends = (views[0].seq, views[-1].seq) if views else (0, 0)
    return answer(AuditLogView(entries=views, first=ends[0], last=ends[1] or (query.after or 0)))


def _entry(entry: AuditEntry) -> AuditView:
    return AuditView(**{name: getattr(entry, name) for name in entry.__struct_fields__})
