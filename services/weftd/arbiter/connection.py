"""One connection of a process of a slot. Neither reading from it nor writing to it ever waits."""

import socket
import struct
from typing import NamedTuple

from weft.sharing import wire
from weft.sharing.wire import MalformedError, ShareMessage

READS_AT_ONCE = 64
_CREDENTIALS = struct.Struct("iII")


class Named(NamedTuple):
    """The entry of the use page that a process named as its own, as it was then."""

    place: int
    pid: int
    generation: int


class HookConnection:
    def __init__(self, connection: socket.socket, slot: str, number: int) -> None:
        """`number` tells it from all other connections there ever were."""
        self.slot, self.number = slot, number
        self.fd = connection.fileno()
        self.named: Named | None = None
        self.is_full = False
        self._connection = connection
        self._recv = connection.recv
        connection.setblocking(False)

    @property
    def pid(self) -> int:
        """The process that connected, as the kernel says and this node sees it; 0 if the node does not see it."""
        size = _CREDENTIALS.size
        return _CREDENTIALS.unpack(self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]  # type: ignore[no-any-return]

    def read(self) -> tuple[list[ShareMessage], bool]:
        """The messages that are there, at most READS_AT_ONCE; and whether the connection goes on."""
        messages: list[ShareMessage] = []
        try:
            for _ in range(READS_AT_ONCE):
                data = self._recv(wire.BYTES + 1)
                if not data:
                    return messages, False
                messages.append(wire.from_job(data))
        except BlockingIOError:
            pass
        except (OSError, MalformedError):
            return messages, False
        return messages, True

    def send(self, message: ShareMessage) -> bool:
        """True if it was sent. If not, the process is gone, or does not read, which `is_full` notes."""
        try:
            self._connection.send(wire.encode(message), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self.is_full = True
            return False
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._connection.close()
