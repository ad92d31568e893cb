"""The Weft tokens of a request, from its `Authorization` header or its cookies.

A token counts only where Caddy removes it afterwards: both use the expression `COOKIE`.
"""

import re

COOKIE = r"(^|[;,])[ \t]*(__Host-)?weft_token(-[^=;,]*)?=[^;,]*"
"""The router's own cookies in a `Cookie` header. Several such headers are one with commas to the admission process."""
SET_COOKIE = r"(?i)^[\s=]*(__(host|secure)-)?weft_token.*$"
"""A `Set-Cookie` of a replica that would be one of the router's own. A browser sends `=weft_token=x`, a cookie without
a name, as `weft_token=x`."""
SET_DOMAIN = r"(?i);\s*domain[^;]*"
"""The attribute by which a cookie of one service would be sent to all services of the domain."""
TOKEN_KEY = "weft_token"
CODE_KEY = "weft_code"
"""The one-time code in an address, which the router exchanges for a session."""
HOST_KEY = f"__Host-{TOKEN_KEY}"
"""Browsers take a cookie of this name from its own host alone, and over TLS: no other service of the domain sets it."""
WEFT_TOKEN = "weft_"
TOKENS_MAX = 4  # tokens of one request; each unknown one counts as a guess of its client
SEPARATORS = re.compile("[;,]")


def cookie_name(job: str, *, secure: bool) -> str:
    """The name of the cookie for a service. A cookie with the prefix `__Host-` has the path `/`, so that the services
    below `/s/` of one host need a name each."""
    if not secure:
        return TOKEN_KEY
    return f"{HOST_KEY}-{job}" if job else HOST_KEY


def cookie_tokens(cookie: str, job: str = "") -> list[str]:
    """The tokens in a `Cookie` header, at most TOKENS_MAX: first those that no other host could have set."""
    if TOKEN_KEY not in cookie:
        return []
    safe, plain = (f"{HOST_KEY}-{job}" if job else HOST_KEY), []
    found = []
    for part in SEPARATORS.split(cookie):
        key, _, value = part.strip(" \t").partition("=")
        if key == safe:
            found.append(value)
        elif key == TOKEN_KEY:
            plain.append(value)
    return [token for token in dict.fromkeys([*found, *plain]) if token][:TOKENS_MAX]


def header_token(authorization: str) -> str:
    """The token in an `Authorization` header; empty if there is none. The form `token T` of Jupyter's clients counts
    only if T begins like Weft's tokens."""
    scheme, _, token = authorization.partition(" ")
    scheme, token = scheme.lower(), token.strip()
    return token if scheme == "bearer" or (scheme == "token" and token.startswith(WEFT_TOKEN)) else ""
