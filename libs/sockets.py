"""How soon a connection whose other end has vanished is given up: without this, after a quarter of an hour or never."""

import asyncio
import socket

IDLE_SECONDS = 4  # of silence, then the other end is asked whether it is there
BETWEEN_SECONDS = 2
ASKED_TIMES = 3


def notice_death(transport: asyncio.BaseTransport | None, *, seconds: int) -> None:
    """End the connection when what we send is not acknowledged for so long; an idle one about as soon.

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
