"""Ports of this machine that nobody listens on."""

import socket

from services.cli.local.errors import LocalError

USUAL_PORT = 8470


def free_port() -> int:
    """Any; should another take it before the service does, the service is started again with another."""
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


def gateway_port(wanted: int | None) -> int:
    """The one asked for, which must be free; else the usual one, or any. 0 asks for any."""
    if wanted is None:
        return USUAL_PORT if is_free(USUAL_PORT) else free_port()
    if wanted and not is_free(wanted):
        raise LocalError(f"port {wanted} is taken; choose another with --port, or any with --port 0")
    return wanted or free_port()
