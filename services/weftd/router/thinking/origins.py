"""Which page a browser's request comes from, and what that page may do with the person's cookie."""

from collections.abc import Sequence

from msgspec import Struct

SAME = frozenset({"same-origin", "none"})
DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Page(Struct, frozen=True):
    """The page that makes a request, by its browser; `site`, `mode` and `dest` by `Sec-Fetch-…`, which browsers
    send over TLS and to loopback alone. `asks_for`: the method that a preflight asks for; `host`: that of the request,
    with its port."""

    site: str = ""
    mode: str = ""
    dest: str = ""
    asks_for: str = ""
    host: str = ""
    origin: str = ""


def page_of(text: str) -> Page | None:
    """The six values as Caddy joins them; None: no browser says anything."""
    if text.startswith("||||") and text.endswith("|"):  # nearly all requests of programs
        return None
    parts = text.split("|", 5)
    if len(parts) < 6 or not (parts[0] or parts[3] or parts[5]):
        return None
    return Page(*parts)


def is_foreign(page: Page | None, method: str, *, upgraded: bool) -> bool:
    """True if a page of another origin makes this request by itself: it may not use the person's cookie. A link that
    the person follows is no such request."""
    if page is None:
        return False
    navigates = page.mode == "navigate" and page.dest in ("document", "")
    if navigates and method in ("GET", "HEAD") and not upgraded:
        return False
    if page.site:
        return page.site not in SAME
    return bool(page.origin) and not _is_of(page.origin, page.host)


def shown_to(page: Page | None, allowed: Sequence[str]) -> str:
    """The origin whose pages may read the answer, as `Access-Control-Allow-Origin` says it; empty: none."""
    if page is None or not page.origin:
        return ""
    return "*" if "*" in allowed else page.origin if page.origin in allowed else ""


def _is_of(origin: str, host: str) -> bool:
    """True if an origin is that of the host, whichever scheme a proxy before the router speaks."""
    scheme, _, named = origin.lower().partition("://")
    port = DEFAULT_PORTS.get(scheme)
    if port is None or not named:
        return False
    return named.removesuffix(port) == host.lower().removesuffix(port)
