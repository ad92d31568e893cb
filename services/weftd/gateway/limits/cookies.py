"""The cookie of a browser's session, and the proof that a request with it comes from the dashboard's own page."""

import hashlib
import hmac

from aiohttp import web

COOKIE = "weft_token-~"
"""Named as the router's own cookies are, so that the router takes it away too: a browser sends cookies to every port
of a host. `~` is in no job's id, so that the router takes it for no cookie of a service."""
HOST_COOKIE = f"__Host-{COOKIE}"
"""Browsers take a cookie of this name from its own host alone, and over TLS."""
PROOF_HEADER = "X-Weft-Session"
PATH = "/v1"
TRIED_MAX = 16  # cookies of one request: a page on another port of the host may have set some


def credentials(request: web.Request) -> str | None:
    """The `Authorization` header of a request, or what its cookie stands for. The cookie counts only with its proof: a
    page of another origin has none, nor has a page that planted the cookie."""
    header = request.headers.get("Authorization")
    if header is not None:
        return header
    proof = request.headers.get(PROOF_HEADER, "")
    tokens = _tokens(request) if proof else []
    fitting = [token for token in tokens if hmac.compare_digest(proof_of(token).encode(), proof.encode())]
    return f"Bearer {fitting[0]}" if fitting else None


def proof_of(token: str) -> str:
    return hashlib.sha256(f"proof of {token}".encode()).hexdigest()[:32]


def keep(response: web.StreamResponse, request: web.Request, token: str, *, seconds: float) -> None:
    """Have the browser keep the token of a session; an empty one is taken away."""
    secure = request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"
    response.set_cookie(
        HOST_COOKIE if secure else COOKIE,
        token,
        max_age=int(seconds),
        path="/" if secure else PATH,
        secure=secure,
        httponly=True,
        samesite="Strict",
    )


def _tokens(request: web.Request) -> list[str]:
    """The tokens in the session's cookies, those that only this host could have set first."""
    parts = [
        part.strip().partition("=") for header in request.headers.getall("Cookie", ()) for part in header.split(";")
    ]
    return [value for name in (HOST_COOKIE, COOKIE) for key, _, value in parts if key == name and value][:TRIED_MAX]
