"""Finds the page behind a browser's request, and decides if it may use the person's cookie."""

from collections.abc import Sequence

from msgspec import Struct

SAME = frozenset({"same-origin", "none"})
DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Page(Struct, frozen=True):
    """The page that makes a request, as its browser describes it; `site`, `mode` and `dest` come from `Sec-Fetch-…`,
    which browsers send only over TLS and to loopback. `asks_for`: the method that a preflight asks for; `host`: that of
    the request, with its port."""

    site: str = ""
    mode: str = ""
    dest: str = ""
    asks_for: str = ""
    host: str = ""
    origin: str = ""


def page_of(text: str) -> Page | None:
    """The page from the six values that Caddy joins; None if no browser sent any."""
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
    """The origin whose pages may read the answer, for `Access-Control-Allow-Origin`; empty: none."""
    if page is None or not page.origin:
        return ""
    return "*" if "*" in allowed else page.origin if page.origin in allowed else ""


def _is_of(origin: str, host: str) -> bool:
    """True if an origin belongs to the host, with any scheme, as a proxy may stand before the router."""
    scheme, _, named = origin.lower().partition("://")
    port = DEFAULT_PORTS.get(scheme)
    if port is None or not named:
        return False
    return named.removesuffix(port) == host.lower().removesuffix(port)
