"""What the gate reads of Caddy's questions, and what it writes back: HTTP/1.1, one question at a time."""

from http import HTTPStatus
from math import ceil
from urllib.parse import quote

import msgspec

from libs.messages.http import ErrorDetail, ErrorView
from services.router.thinking.ways import Elsewhere, Refused

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
}


class Question(msgspec.Struct):
    """One request as Caddy describes it. `failed`: the visit that came to nothing, `error` why, and `status` the answer
    that this would make."""

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


def question_of(head: bytes) -> Question:
    """What the lines of a head say; of several with one name, all that are cookies, else the first."""
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
    return question


def admitted(*, to: str, visit: str, step: str, strip: str, prefix: str, drops_authorization: bool) -> bytes:
    shown = quote(prefix, safe="/%:@+,;=~!*()'")  # no `$`, which would stand for a part of what it replaces
    auth = "1" if drops_authorization else ""
    return (
        f"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Weft-To: {to}\r\nX-Weft-Visit: {visit}\r\nX-Weft-Step: {step}\r\n"
        f"X-Weft-Strip: {strip}\r\nX-Weft-Prefix: {shown}\r\nX-Weft-Auth: {auth}\r\n\r\n"
    ).encode("latin-1")


def refused(refusal: Refused, accept: str) -> bytes:
    """A sentence for a browser, else an error as the gateway's."""
    if "text/html" in accept:
        kind, body = "text/plain; charset=utf-8", f"{refusal.sentence}\n".encode()
    else:
        detail = ErrorDetail(field="", reason=refusal.sentence, status=refusal.status)
        kind, body = "application/json", msgspec.json.encode(ErrorView(error=detail))
    more = {"Content-Type": kind, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    if refusal.status == 401:
        more["WWW-Authenticate"] = "Bearer"
    if refusal.retry_after:
        more["Retry-After"] = str(max(1, ceil(refusal.retry_after)))
    return _answer(refusal.status, more, body)


def moved(to: Elsewhere, *, secure: bool) -> bytes:
    more = {"Location": to.location, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    if to.token:
        safe = "; Secure" if secure else ""
        more["Set-Cookie"] = f"weft_token={to.token}; Path={to.cookie_path}; HttpOnly; SameSite=Lax{safe}"
    return _answer(302 if to.token else 308, more, b"")


def _answer(status: int, more: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
