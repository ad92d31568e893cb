"""Where webhooks may be posted to, as far as the URL alone tells."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from services.gateway.thinking.telling.addresses import Network, literal, may_reach


def mistake(url: str, allowed: Sequence[Network]) -> str:
    """Why nothing may be posted there, as far as that is known without a look-up; empty: nothing speaks against it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "not a URL"
    host = parts.hostname
    if not url.isascii() or not url.isprintable() or " " in url:
        return "expected ASCII without blanks"
    if parts.scheme not in ("http", "https") or not host:
        return "expected a URL such as https://example.org/hook"
    if parts.username is not None or parts.password is not None:
        return "has a user or a password: the signature says whence a request comes"
    if parts.fragment or "#" in url:
        return "has a fragment"
    if port == 0:
        return "has no port"
    address = literal(host)
    if "%" in host or (address is not None and not may_reach(address, allowed)):
        return "is an address that may not be reached from here"
    return ""
