"""One operation of the API, described beside its handler. The server and the OpenAPI document are made from it."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from weft.domain.decoding.doubled_names import doubled_name
from weft.domain.decoding.mistakes import mistakes_of
from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.domain.tenants import Role
from weft.messages.http import Accepted
from weft.store.tenants import Access
from weftd.gateway.errors import PATTERN_WORDS, RejectedError, from_decoder
from weftd.gateway.limits.concurrency import Slot

if TYPE_CHECKING:
    from weftd.gateway.gateway import Gateway

Q = TypeVar("Q", bound=Struct)
B = TypeVar("B")

BODY_SECONDS_MAX = 20.0
LARGE_BYTES = 64 << 10  # such a body is decoded in a thread: one of 1 MiB may take 0.1 s
JSON = "application/json"
_LISTS = frozenset({"state"})
NOBODY = Access(tenant="")
FOR_VIEWERS = ("/v1/sessions/{session}", "/v1/what-if")


class Audience(Enum):
    """The callers that an operation allows."""

    ANYONE = "anyone"
    TENANT = "tenant"
    OPERATOR = "operator"
    ADMIN = "admin"


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Takes no query parameters."""


class Header(Struct, frozen=True, kw_only=True):
    name: str
    description: str
    of_answer: bool = False


class RouteAnswer(Struct, frozen=True, kw_only=True):
    """One answer of an operation: a type as JSON, or bytes of some media type. `streamed`: types of the data of its
    server-sent events, if `type` does not contain them."""

    description: str
    type: Any = None
    streamed: tuple[Any, ...] = ()
    media: tuple[str, ...] = (JSON,)


class Call(Struct, Generic[Q], frozen=True):
    """One admitted request with its decoded query. `turn`: its tenant's slot; an answer that stays open releases it."""

    gateway: "Gateway"
    request: web.Request
    who: Access
    query: Q
    turn: Slot

    def path(self, name: str) -> str:
        return self.request.match_info[name]


class Route(Struct, Generic[Q], frozen=True, kw_only=True):
    method: str
    path: str
    group: str
    summary: str
    description: str = ""
    handler: Callable[[Call[Q]], Coroutine[Any, Any, web.StreamResponse]]
    query: type[Q]
    who: Audience = Audience.TENANT
    body: Any = None
    body_media: tuple[str, ...] = (JSON,)
    body_bytes_max: int = SPEC_BYTES_MAX
    headers: tuple[Header, ...] = ()
    answers: Mapping[int, RouteAnswer]
    example: str = ""  # what follows `curl` and the usual options


Handler = Callable[[Call[Q]], Coroutine[Any, Any, web.StreamResponse]]


def operation(
    asked: str,
    group: str,
    summary: str,
    *,
    description: str = "",
    who: Audience = Audience.TENANT,
    body: Any = None,
    body_media: tuple[str, ...] = (JSON,),
    body_bytes_max: int = SPEC_BYTES_MAX,
    headers: tuple[Header, ...] = (),
    answers: Mapping[int, RouteAnswer],
    example: str = "",
) -> Callable[[Handler[Q]], Route[Q]]:
    """Make a route from its handler. `asked`: method and path. The handler's annotation has the type of the query."""

    def route(handler: Handler[Q]) -> Route[Q]:
        method, path = asked.split()
        (query,) = next(iter(handler.__annotations__.values())).__args__
        return Route(
            method=method,
            path=path,
            group=group,
            summary=summary,
            description=description,
            handler=handler,
            query=query,
            who=who,
            body=body,
            body_media=body_media,
            body_bytes_max=body_bytes_max,
            headers=headers,
            answers=answers,
            example=example,
        )

    return route


def refused(route: Route[Any], who: Access) -> RejectedError | None:
    """Why the caller may not use the operation; None: it may, for things of its tenant."""
    if route.who is Audience.ADMIN and not who.admin:
        return RejectedError(403, "Authorization", "needs an administrator's token")
    if route.who is Audience.OPERATOR and not who.admin and who.role != Role.OPERATOR:
        return RejectedError(403, "Authorization", "needs an administrator's token, or the role operator")
    changes = route.method != "GET" or route.path.endswith("/attach")
    if who.role == Role.VIEWER and changes and route.path not in FOR_VIEWERS:
        return RejectedError(403, "Authorization", "your role, viewer, may only read")
    if who.role in (Role.VIEWER, Role.USER) and route.group == "webhooks" and changes:
        return RejectedError(403, "Authorization", f"your role, {who.role}, may not change webhooks: tenant-admin may")
    return None


ACCEPTED = {202: RouteAnswer(description="The command is stored; the scheduler will execute it.", type=Accepted)}


def answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type=JSON, headers=headers)


def query_of(request: web.Request, kind: type[Q]) -> Q:
    """The query decoded as `kind`. A name given twice is a list for those of its `LISTS`, a mistake for all others."""
    given: dict[str, str] = {}
    lists = getattr(kind, "LISTS", _LISTS)
    for name, value in request.query.items():
        if name in given and name not in lists:
            raise RejectedError(400, name, "is given twice")
        given[name] = f"{given[name]},{value}" if name in given else value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        field, reason = from_decoder(error)
        if reason == "no such field":
            taken = ", ".join(kind.__struct_fields__) or "none"
            reason = f"no such query parameter; there is {taken}"
        elif reason == "expected a whole number, got text":
            reason = f"expected a whole number, not {given[field][:100]!r}"
        elif reason == "expected true or false, got text":
            reason = f"expected 1 or 0, not {given[field][:100]!r}"
        elif reason.startswith("must be ") and field in given:
            reason += f", got {given[field][:100]}"
        raise RejectedError(400, field, reason) from None


async def body_of(request: web.Request) -> bytes:
    """The body. Raises RejectedError if it is too large, and does not read its rest."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise RejectedError(415, "Content-Encoding", "send the body as it is, not compressed")
    check_length(request)
    try:
        return await _read(request)
    except web.HTTPRequestEntityTooLarge:
        raise too_large() from None


def check_length(request: web.Request, most: int = SPEC_BYTES_MAX) -> None:
    if request.content_length is not None and request.content_length > most:
        raise too_large(most)


async def json_of(request: web.Request, kind: type[B]) -> B:
    """The body decoded as `kind`."""
    return await decoded(await body_of(request), kind)


async def decoded(body: bytes, kind: type[B]) -> B:
    """The body decoded as `kind`; a large one in a thread."""
    return await asyncio.to_thread(_decoded, body, kind) if len(body) > LARGE_BYTES else _decoded(body, kind)


def _decoded(body: bytes, kind: type[B]) -> B:
    try:
        value = msgspec.json.decode(body, type=kind)
        doubled = doubled_name(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        field, reason = from_decoder(error) if isinstance(error, msgspec.DecodeError) else ("", "not UTF-8")
        if field.endswith(("[...]", "]`")) or "` in `" in field:
            field, reason = _within_mapping(body, kind, field, reason)
        raise RejectedError(400, field, reason) from None
    except RecursionError:
        raise RejectedError(400, "", "nested too deeply") from None
    if doubled is not None:
        raise RejectedError(400, doubled, "is given twice")
    return value


def _within_mapping(body: bytes, kind: Any, field: str, reason: str) -> tuple[str, str]:
    """The mistake in an item of a mapping, with the name of the item, which the decoder leaves out."""
    try:
        found = mistakes_of(msgspec.json.decode(body), kind, PATTERN_WORDS)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a worse mistake, further on
        found = []
    outer = field.rpartition("$.")[2].removesuffix("[...]")
    return (found[0].field, found[0].reason.replace("`", "")) if found else (outer, reason)


async def _read(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await request.read()
    except TimeoutError:
        raise RejectedError(408, "", f"the body did not arrive within {BODY_SECONDS_MAX:g} s") from None


def too_large(most: int = SPEC_BYTES_MAX) -> RejectedError:
    return RejectedError(413, "", f"the body is larger than {most} bytes")
