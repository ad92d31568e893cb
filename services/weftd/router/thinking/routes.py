"""Finds the service of a request by its path or host, and the parts of its path and tokens that belong to Weft."""

import re
from collections.abc import Sequence

from msgspec import Struct

from weftd.router.thinking.credentials import CODE_KEY, TOKEN_KEY, WEFT_TOKEN

JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VISIBLE = re.compile(r"[\x21-\x7e]*")
TOKEN_TEXT = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")
CLIENT_KEY = "token"  # as Caddy removes it from the query
SEPARATORS = re.compile(r"[/\\]")


ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")


def unquote(text: str) -> str:
    """The text with its escapes decoded as one byte each, which suffices to find plain ASCII."""
    return ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


class Refused(Struct, frozen=True):
    """The answer instead of a replica's: a status and one sentence. `retry_after` in seconds, 0: none.
    `unready`: no replica is ready, and a caller of the service's tenant reads why. `code`, `param`: as OpenAI's clients
    read them."""

    status: int
    sentence: str
    retry_after: float = 0.0
    unready: bool = False
    code: str = ""
    param: str = ""


class Route(Struct, frozen=True):
    """A request's service: `job`, or the `name` of one of a `tenant`. `by_host`: the path stays whole. `front`: the
    path, if it belongs to the front for models and names no service."""

    job: str = ""
    name: str = ""
    tenant: str = ""
    by_host: bool = False
    front: str = ""


class Elsewhere(Struct, frozen=True):
    """A redirect to another address of the same place. `token`: stored in the browser as a cookie if it opens the
    service at `route`; `code`: exchanged for such a token first."""

    location: str
    token: str = ""
    route: Route = Route()
    code: str = ""


def route_of(uri: str, host: str, domains: Sequence[str]) -> Route | Elsewhere | Refused:
    """`uri`: path and query as the client sent them; `host` without a port; `domains`: below which names are services'.

    The browser gets a session for a one-time code in the query, and moves to the address without it. A token in the
    query is refused: an address ends up in histories and logs.
    """
    if not VISIBLE.fullmatch(uri) or not uri.startswith("/"):
        return Refused(400, "the address of the request is not one")
    path, _, query = uri.partition("?")
    if ".." in SEPARATORS.split(unquote(path)):
        return Refused(400, "the path must not contain '..'")
    route = _by_host(host, domains) or _by_path(path, query)
    if not isinstance(route, Route) or not _may_have(query):
        return route
    if _token_in(query)[0] is not None:
        return Refused(400, f"a token must not be in an address, so {TOKEN_KEY} is refused: `weft open` prints a link")
    code, rest = _token_in(query, CODE_KEY)
    if code is None:
        return route
    if not TOKEN_TEXT.fullmatch(code):
        return Refused(400, f"{CODE_KEY} is not a code")
    return Elsewhere(_same_place(path, rest), route=route, code=code)


def _by_host(host: str, domains: Sequence[str]) -> Route | None:
    host = host.lower().rstrip(".")
    for domain in domains:
        labels = host.removesuffix(f".{domain}").split(".") if host.endswith(f".{domain}") else []
        if len(labels) == 2 and all(labels):
            return Route(name=labels[0], tenant=labels[1], by_host=True)
    return None


def _by_path(path: str, query: str) -> Route | Elsewhere | Refused:
    _, first, *rest = path.split("/", 3)
    if first == "v1" and rest:
        return Route(front=path)
    if first != "s" or not rest or not JOB.fullmatch(rest[0]):
        return Refused(404, "this path does not exist: a service is at /s/JOB/, and models are at /v1/models")
    if len(rest) == 1:  # the slash at the end is where the addresses in its pages start from
        return Elsewhere(_same_place(f"{path}/", query))
    return Route(job=rest[0])


def _may_have(query: str) -> bool:
    """Return True if the query may contain a token or a code."""
    plain = unquote(query) if "%" in query else query
    return TOKEN_KEY in plain or CODE_KEY in plain


def client_token(uri: str) -> tuple[str, str]:
    """Weft's token in the query as `token`, as Jupyter's clients send it, and the address without it; empty if there is
    none, or it is no token of Weft's."""
    path, _, query = uri.partition("?")
    if "token" not in (unquote(query) if "%" in query else query):
        return "", uri
    token, rest = _token_in(query, CLIENT_KEY)
    if token is None or not token.startswith(WEFT_TOKEN) or not TOKEN_TEXT.fullmatch(token):
        return "", uri
    return token, _same_place(path, rest)


def _token_in(query: str, name: str = TOKEN_KEY) -> tuple[str | None, str]:
    """The token and the query without it."""
    token, kept = None, []
    for part in query.split("&"):
        key, _, value = part.partition("=")
        if unquote(key) == name:
            token = unquote(value)
        else:
            kept.append(part)
    return token, "&".join(kept)


def _same_place(path: str, query: str) -> str:
    """A path that no browser reads as another host."""
    path = "/" + path.lstrip("/\\")
    return f"{path}?{query}" if query else path


def prefix_of(path: str, job: str) -> str:
    """The prefix of a request's path at its replica, without a slash at its end. `{job}` is the job's id."""
    return path.replace("{job}", job).rstrip("/")
