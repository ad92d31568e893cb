"""Caddy's questions to admission, and the answers: HTTP/1.1, one question at a time."""

from http import HTTPStatus
from math import ceil
from urllib.parse import quote
from urllib.parse import unquote as percent_decoded

import msgspec

from weft.messages.problems import PROBLEM, problem
from weftd.router.thinking.credentials import cookie_name
from weftd.router.thinking.models import problem_of
from weftd.router.thinking.routes import Elsewhere, Refused

FRONT_STEP = "front"
PREFLIGHT_SECONDS = 600  # seconds for which a browser caches the preflight
SAID = {
    b"x-weft-uri": "uri",
    b"x-weft-method": "method",
    b"x-weft-host": "host",
    b"x-weft-remote": "remote",
    b"x-weft-port": "port",
    b"x-weft-upgrade": "upgrade",
    b"x-weft-failed": "failed",
    b"x-weft-error": "error",
    b"x-weft-status": "status",
    b"authorization": "authorization",
    b"cookie": "cookie",
    b"accept": "accept",
    b"x-weft-page": "page",
    b"weft-priority": "priority",
    b"x-weft-call": "call",
    b"x-weft-model": "model",
    b"x-weft-prompt": "prompt",
}


class Question(msgspec.Struct):
    """One request as Caddy describes it. `failed`: id of the request that failed, `error` why, and `status` the answer
    that this would make; `page`: what a browser says of the page that asks, as `page_of` reads it. `call`: the id that
    the front for models gave it, once it had read the `model` from the body;
    `prompt`: the same for prompts that begin alike."""

    uri: str = ""
    method: str = ""
    host: str = ""
    remote: str = ""
    port: str = ""
    upgrade: str = ""
    failed: str = ""
    error: str = ""
    status: str = ""
    authorization: str = ""
    cookie: str = ""
    accept: str = ""
    page: str = ""
    priority: str = ""
    call: str = ""
    model: str = ""
    prompt: str = ""


def question_of(head: bytes) -> Question:
    """The header fields of a request; of several with one name, all cookies, otherwise the first."""
    question = Question()
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        field = SAID.get(name.lower())
        if field is None:
            continue
        text, before = value.strip().decode("latin-1"), getattr(question, field)
        if field == "cookie" and before:
            text = f"{before}; {text}"
        elif before:
            continue
        setattr(question, field, text)
    question.model = percent_decoded(question.model)
    return question


def admitted(
    *,
    to: str,
    request_id: str,
    step: str,
    strip: str,
    prefix: str,
    drops_authorization: bool,
    drops_query: bool,
    shown_to: str,
    by: str,
) -> bytes:
    shown = quote(prefix, safe="/%:@+,;=~!*()'")  # no `$`, which would refer to a part of the match
    auth = "1" if drops_authorization else ""
    return (
        f"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Weft-To: {to}\r\n"
        f"X-Weft-Request-Id: {request_id}\r\nX-Weft-Step: {step}\r\n"
        f"X-Weft-Strip: {strip}\r\nX-Weft-Prefix: {shown}\r\nX-Weft-Auth: {auth}\r\n"
        f"X-Weft-Cors: {shown_to}\r\nX-Weft-Query: {'1' if drops_query else ''}\r\nX-Weft-By: {by}\r\n\r\n"
    ).encode("latin-1")


def refused(refusal: Refused, accept: str, shown_to: str = "") -> bytes:
    """A refusal: a sentence for a browser, else a problem document like the gateway's. `shown_to`: the origin whose
    pages may read it."""
    if "text/html" in accept:
        kind, body = "text/plain; charset=utf-8", f"{refusal.sentence}\n".encode()
    else:
        kind, body = PROBLEM, problem(refusal.status, "", refusal.sentence, message=refusal.sentence)
    more = {"Content-Type": kind, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    if shown_to:
        more |= {"Access-Control-Allow-Origin": shown_to, "Access-Control-Expose-Headers": "*", "Vary": "Origin"}
    if refusal.status == 401:
        more["WWW-Authenticate"] = "Bearer"
    if refusal.retry_after:
        more["Retry-After"] = str(max(1, ceil(refusal.retry_after)))
    return _answer(refusal.status, more, body)


def refused_front(refusal: Refused) -> bytes:
    """An error at the front for models, as OpenAI's clients read it."""
    more = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    if refusal.status == 401:
        more["WWW-Authenticate"] = "Bearer"
    if refusal.retry_after:
        more["Retry-After"] = str(max(1, ceil(refusal.retry_after)))
    return _answer(refusal.status, more, problem_of(refusal))


def found(body: bytes) -> bytes:
    """An answer of the router itself. Caddy continues only with an answer that names an address."""
    return _answer(200, {"Content-Type": "application/json", "Cache-Control": "no-store"}, body)


def to_front(tenant: str) -> bytes:
    """To the process that reads the model from the body."""
    return _answer(200, {"X-Weft-To": "front", "X-Weft-Step": FRONT_STEP, "X-Weft-By": tenant}, b"")


def preflight(shown_to: str) -> bytes:
    """Allow pages of that origin any request without a cookie. `*` does not stand for Authorization."""
    more = {
        "Access-Control-Allow-Origin": shown_to,
        "Access-Control-Allow-Methods": "*",
        "Access-Control-Allow-Headers": "Authorization, *",
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        "Vary": "Origin",
    }
    return _answer(204, more, b"")


def moved(to: Elsewhere, *, secure: bool, keeps: bool = False) -> bytes:
    """A redirect. `secure`: TLS is on; `keeps`: the browser stores the token as a cookie."""
    more = {"Location": to.location, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    if to.token and keeps:
        path = "/" if secure or to.route.by_host else f"/s/{to.route.job}/"
        safe = "; Secure" if secure else ""
        name = cookie_name(to.route.job, secure=secure)
        more["Set-Cookie"] = f"{name}={to.token}; Path={path}; HttpOnly; SameSite=Lax{safe}"
    return _answer(302 if to.token or to.code else 308, more, b"")


def _answer(status: int, more: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
