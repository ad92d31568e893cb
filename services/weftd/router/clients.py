"""Finds clients that left while their requests wait with an unread body.

An HTTP/1.1 server notices that its client has left only by reading, and it does not read past the waiting body. So this
module reads the state of the connection from the Linux kernel.
"""

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

Peer = tuple[str, int]
"""The address and the port of a client."""

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"


def left(peers: Iterable[Peer], *, tables: Iterable[Path] = TABLES) -> set[Peer]:
    """The clients whose connection is closed by either side. None if the kernel lists no connection at all."""
    wanted = {(ip_address(host.partition("%")[0]), port): (host, port) for host, port in peers}
    open_ones: set[Peer] = set()
    told = False
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for address, port, state in _connections(lines):
            told = True
            if state == ESTABLISHED and (peer := wanted.get((address, port))) is not None:
                open_ones.add(peer)
    return set(wanted.values()) - open_ones if told else set()


def _connections(lines: Iterable[str]) -> Iterator[tuple[IPv4Address | IPv6Address, int, str]]:
    for line in lines:
        _, _, remote, state, *_ = line.split(maxsplit=4)
        host, _, port = remote.partition(":")
        words = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))  # little-endian
        address = ip_address(words)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        yield address, int(port, 16), state
