"""Sockets by which Caddy passes single requests on through the relay."""

import hashlib
import logging
import socket
from itertools import count
from pathlib import Path

import msgspec

from weftd.router.relay import Passage

logger = logging.getLogger(__name__)

PREFIX = "via-"  # a socket's name in the router's folder
NAMES_MAX = 16**6  # a name is no longer than ADMIN_SOCKET, whose length is checked


class Passages:
    """`channel`: where the relay reads."""

    def __init__(self, folder: Path, channel: socket.socket) -> None:
        self._folder, self._channel = folder, channel
        self._channel.setblocking(False)
        self._numbers = count(1)
        for left in folder.glob(f"{PREFIX}*"):  # left by an earlier admission process
            left.unlink(missing_ok=True)

    def through(self, to: str, *, token: str, job_id: str, tenant: str) -> str:
        """The address through which a request reaches the replica at `to` while its token is valid; `to` itself if the
        relay is full."""
        path = self._folder / f"{PREFIX}{next(self._numbers) % NAMES_MAX:x}"
        passage = Passage(
            to=to, path=str(path), token_hash=hashlib.sha256(token.encode()).digest(), job_id=job_id, tenant=tenant
        )
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
                listening.bind(str(path))
                listening.listen(1)
                socket.send_fds(self._channel, [msgspec.msgpack.encode(passage)], [listening.fileno()])
        except OSError as error:
            logger.warning("a request is not relayed, so it continues after its token expires: %s", error)
            path.unlink(missing_ok=True)
            return to
        return f"unix/{path}"
