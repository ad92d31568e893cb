"""Free ports of this machine."""

import socket
from typing import Self

from weftd.cli.local.errors import LocalError

USUAL_PORT = 8470
ROUTER_PORT = 8480


def free_port() -> int:
    """Any free port; if another program takes it before the service does, the service is started again with another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PortClaim:
    """A port of the loopback address that is kept for a service from now until `release`, whether it listens or not.

    Two sockets keep it: a name, by which another cluster learns of the claim, and the address, bound without listening,
    so that the kernel gives it to no connection. A service with SO_REUSEADDR may listen there all the same.
    """

    def __init__(self, port: int) -> None:
        """0: any port. Raises OSError if the port is taken or claimed."""
        self._name, self._address = socket.socket(socket.AF_UNIX), socket.socket()
        try:
            self._address.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._address.bind(("127.0.0.1", port))
            self.port = int(self._address.getsockname()[1])
            self._name.bind(f"\0weft/port/{self.port}")
        except OSError:
            self.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self._name.close()
        self._address.close()


def claimed(wanted: int | None, usual: int, option: str) -> PortClaim:
    """A claim to the requested port, which must be free; else to the usual one, or any. 0 requests any."""
    try:
        return PortClaim(usual if wanted is None else wanted)
    except OSError as error:
        if wanted:
            raise LocalError(f"port {wanted} is taken; choose another with {option}, or any with {option} 0") from error
        return PortClaim(0)
