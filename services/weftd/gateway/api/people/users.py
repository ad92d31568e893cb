"""People who signed in with the identity provider: listed, kept out, let in again."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http.people import PeopleView, PersonView, PersonWanted
from weft.store.people import PersonKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Audience, Call, NoQuery, RouteAnswer, answer, json_of, operation

LISTED_MAX = 1000


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
    answers={200: RouteAnswer(description="It is so now.", type=PersonWanted)},
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
