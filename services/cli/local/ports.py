"""Free ports of this machine."""

import socket

from services.cli.local.errors import LocalError

USUAL_PORT = 8470
ROUTER_PORT = 8480


def free_port() -> int:
    """Any free port; if another program takes it before the service does, the service is started again with another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def usable_port(wanted: int | None, usual: int, option: str) -> int:
    """The requested port, which must be free; else the usual one, or any. 0 requests any."""
    if wanted is None:
        return usual if is_free(usual) else free_port()
    if wanted and not is_free(wanted):
        raise LocalError(f"port {wanted} is taken; choose another with {option}, or any with {option} 0")
    return wanted or free_port()
