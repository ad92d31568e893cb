"""Arrays over TCP: as they lie in memory, of a size both sides know."""

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
CONNECT_SECONDS_MAX = 60.0
TRY_SECONDS = 0.1


def meet(address: tuple[str, int]) -> socket.socket:
    """Connected to who listens there, as soon as it does. Raises TimeoutError."""
    until = time.monotonic() + CONNECT_SECONDS_MAX
    while True:
        try:
            return prompt(socket.create_connection(address, timeout=5.0))
        except OSError as error:
            if time.monotonic() > until:
                raise TimeoutError(f"nobody listens at {address}") from error
            time.sleep(TRY_SECONDS)


def listen(port: int) -> socket.socket:
    return socket.create_server(("", port), backlog=64)


def take(listening: socket.socket, count: int) -> list[socket.socket]:
    """As many as are to come."""
    return [prompt(listening.accept()[0]) for _ in range(count)]


def prompt(met: socket.socket) -> socket.socket:
    met.settimeout(None)
    met.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return met


def send(to: socket.socket, array: Array) -> None:
    to.sendall(memoryview(array).cast("B"))


def receive(peer: socket.socket, into: Array, *, begun: Callable[[], None] | None = None) -> None:
    """Fill it. `begun` is called when the first of it is there: what was before was waiting."""
    view = memoryview(into).cast("B")
    got = peer.recv_into(view)
    if begun is not None:
        begun()
    while got < len(view):
        more = peer.recv_into(view[got:])
        if not more:
            break
        got += more
    if got < len(view):
        raise ConnectionError("the other side ended")


class Sender:
    """Sends beside what else is done, in order: in a ring everybody sends while it receives."""

    def __init__(self, to: socket.socket) -> None:
        self._queue: queue.SimpleQueue[Array | None] = queue.SimpleQueue()
        self._to = to
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    def send(self, arrays: Iterable[Array]) -> None:
        for array in arrays:
            self._queue.put(array.copy())

    def close(self) -> None:
        """Once all is sent."""
        self._queue.put(None)
        self._thread.join()

    def _send_all(self) -> None:
        while (array := self._queue.get()) is not None:
            try:
                send(self._to, array)
            except OSError:
                return  # the other side ended; who receives from the ring is told so
