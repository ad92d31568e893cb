"""URLs to which webhooks may be posted, judged without a look-up."""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from weftd.gateway.thinking.notifications.addresses import Network, literal, may_reach

_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a part of an address as C reads it: 127.1, 0177.0.0.1, 0x7f.1, 2130706433


def mistake(url: str, allowed: Sequence[Network]) -> str:
    """Why the URL is refused, as far as that is known without a look-up; empty: it is not."""
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
        return "has a user or a password: the signature identifies the sender"
    if parts.fragment or "#" in url:
        return "has a fragment"
    if port == 0:
        return "has no port"
    if not _may_be_host(host):
        return "its host is no name and no address"
    address = literal(host)
    if address is None and _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        return "its host ends in a number, as no name does: write an address as four numbers, such as 203.0.113.7"
    if "%" in host or (address is not None and not may_reach(address, allowed)):
        return f"{host} is an address that webhooks may not use; GATEWAY_WEBHOOKS_NETWORKS may allow it"
    return ""


def _may_be_host(host: str) -> bool:
    """True if the host could be looked up at all: its labels have 1 to 63 characters."""
    return literal(host) is not None or all(1 <= len(label) <= 63 for label in host.removesuffix(".").split("."))
