"""Finds a free port of this host for a run that serves requests."""

import errno
import socket
import zlib
from collections.abc import Container

from msgspec import Struct

from weftd.executor.runs import RunKey

TRIES_MAX = 8192
LANES = 16


class PortRange(Struct, frozen=True, kw_only=True):
    """Ports from `first` to `last`. Not those that the kernel gives to outgoing connections, nor those at which the
    ranks of a job meet (10000 to 31999).

    `lane`: nodes of one host do not know each other's choices; each tries the ports of its own lane first.
    """

    first: int = 61_000
    last: int = 65_535
    lane: int = 0


def lane_of(node_id: str) -> int:
    """The lane of a node: nodes that are numbered one after another have different ones."""
    return zlib.adler32(node_id.encode()) % LANES  # its lower half is the sum of the letters


def free_port(key: RunKey, ports: PortRange, taken: Container[int | None]) -> int | None:
    """A port at which nothing listens and that is not `taken`; None if none is found. It begins at another port for
    each run, because a router may for a moment believe that an ended run still has its own.
    """
    begin = zlib.crc32(str(key).encode(errors="replace"))
    own, every = range(ports.first + ports.lane, ports.last + 1, LANES), range(ports.first, ports.last + 1)
    for some in (own, every):
        for step in range(min(len(some), TRIES_MAX)):
            port = some[(begin + step) % len(some)]
            if port not in taken and not _listens(port):
                return port
    return None


def _listens(port: int) -> bool:
    """True if something listens at this port, at any address of this host. It may have changed a moment later."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno in (errno.EADDRINUSE, errno.EACCES)
    return False
