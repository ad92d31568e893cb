"""How soon a connection with a dead peer is given up; the default is a quarter of an hour, or never."""

import asyncio
import socket

IDLE_SECONDS = 4  # of silence, then the peer is probed
BETWEEN_SECONDS = 2
ASKED_TIMES = 3


def notice_death(transport: asyncio.BaseTransport | None, *, seconds: int) -> None:
    """End the connection if sent bytes are not acknowledged for `seconds`; an idle one about as soon.

    Linux only, and TCP only; elsewhere no harm.
    """
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", IDLE_SECONDS),
        ("TCP_KEEPINTVL", BETWEEN_SECONDS),
        ("TCP_KEEPCNT", ASKED_TIMES),
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
