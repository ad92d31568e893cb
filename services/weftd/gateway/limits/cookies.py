"""The cookie of a browser's session, and the proof that a request with it comes from the dashboard's own page."""

import hashlib
import hmac

from aiohttp import web

from weftd.gateway.thinking.oidc import Flow, cookie_of, flow_of

COOKIE = "weft_token-~"
"""Named as the router's own cookies are, so that the router takes it away too: a browser sends cookies to every port
of a host. `~` is in no job's id, so that the router takes it for no cookie of a service."""
HOST_COOKIE = f"__Host-{COOKIE}"
"""Browsers take a cookie of this name from its own host alone, and over TLS."""
PROOF_HEADER = "X-Weft-Session"
PROOF_PROTOCOL = "weft.proof."  # a page can only offer protocols to a WebSocket: one has the proof
FLOW_COOKIE = "weft_token-~o"  # the sign-in in progress at the identity provider
FLOW_PATH = "/v1/oidc"
FLOW_SECONDS = 600
PATH = "/v1"
TRIED_MAX = 16  # cookies of one request: a page on another port of the host may have set some


def credentials(request: web.Request) -> str | None:
    """The `Authorization` header of a request, or its equivalent from the cookie. The cookie counts only with its
    proof, which neither a page of another origin nor a page that planted the cookie has."""
    header = request.headers.get("Authorization")
    if header is not None:
        return header
    proof = request.headers.get(PROOF_HEADER, "") or _offered_proof(request)
    tokens = _values(request, COOKIE) if proof else []
    fitting = [token for token in tokens if hmac.compare_digest(proof_of(token).encode(), proof.encode())]
    return f"Bearer {fitting[0]}" if fitting else None


def _offered_proof(request: web.Request) -> str:
    """The proof among the protocols that a WebSocket's opening request offers; empty: there is none."""
    offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")[:TRIED_MAX]
    proofs = (one.strip().removeprefix(PROOF_PROTOCOL) for one in offered if one.strip().startswith(PROOF_PROTOCOL))
    return next(proofs, "")


def proof_of(token: str) -> str:
    return hashlib.sha256(f"proof of {token}".encode()).hexdigest()[:32]


def keep(response: web.StreamResponse, request: web.Request, token: str, *, seconds: float) -> None:
    """Store the token of a session in the browser; an empty one removes it."""
    _set(response, request, COOKIE, token, seconds=seconds, path=PATH, same_site="Strict")


def keep_flow(response: web.StreamResponse, request: web.Request, flow: Flow) -> None:
    """Store in the browser the secret to which its sign-in at the identity provider is bound."""
    _set(response, request, FLOW_COOKIE, cookie_of(flow), seconds=FLOW_SECONDS, path=FLOW_PATH, same_site="Lax")


def forget_flow(response: web.StreamResponse, request: web.Request) -> None:
    _set(response, request, FLOW_COOKIE, "", seconds=0, path=FLOW_PATH, same_site="Lax")


def flow_in(request: web.Request) -> Flow | None:
    """The sign-in in progress in this browser; None if there is none, or several, as another page may have planted
    one."""
    found = _values(request, FLOW_COOKIE)
    return flow_of(found[0]) if len(found) == 1 else None


def _set(
    response: web.StreamResponse,
    request: web.Request,
    name: str,
    value: str,
    *,
    seconds: float,
    path: str,
    same_site: str,
) -> None:
    secure = request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"
    response.set_cookie(
        f"__Host-{name}" if secure else name,
        value,
        max_age=int(seconds),
        path="/" if secure else path,
        secure=secure,
        httponly=True,
        samesite=same_site,
    )


def _values(request: web.Request, name: str) -> list[str]:
    """The values of a cookie, those that only this host could have set first."""
    cookies = ";".join(request.headers.getall("Cookie", ()))
    parts = [part.strip().partition("=") for part in cookies.split(";")]
    return [value for wanted in (f"__Host-{name}", name) for key, _, value in parts if key == wanted and value][
        :TRIED_MAX
    ]
