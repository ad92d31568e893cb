"""Addresses that a tenant's webhook may reach: the Internet, and networks named by a setting."""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_OF_THE_INTERNET = IPv6Network("2000::/3")
_NEVER = (
    IPv4Network("168.63.129.16/32"),  # answers for the machine that asks, in one provider's network
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),  # 6to4 relays
    IPv6Network("2001::/23"),  # Teredo and others that carry other addresses
    IPv6Network("2002::/16"),  # 6to4
)


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Raises ValueError."""
    return tuple(ip_network(text) for text in texts)


def may_reach(address: Address, allowed: Sequence[Network]) -> bool:
    """True if webhooks may reach the address. An IPv4 address inside an IPv6 one counts as IPv4."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if _within(address, allowed):
        return True
    if address.is_multicast or not address.is_global or _within(address, _NEVER):
        return False
    return address.version == 4 or address in _OF_THE_INTERNET


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


def literal(host: str) -> Address | None:
    """The address, if the host is one."""
    try:
        return ip_address(host)
    except ValueError:
        return None
