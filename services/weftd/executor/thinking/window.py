"""What a session has written and its reader has not acknowledged: bounded, each byte at its offset."""

from collections import deque

PIECE_BYTES = 16 << 10
PIECE_COST = 64  # what a piece costs beside its bytes, so that single bytes of two streams in turn fill it too


class OutputWindow:
    """Bytes of several streams in the order in which they came, from `begins` to `ends`."""

    def __init__(self, most: int) -> None:
        self.begins = 0
        self.ends = 0
        self._most = most
        self._pieces: deque[tuple[int, int, bytearray]] = deque()  # offset, stream, bytes

    @property
    def room(self) -> int:
        return max(0, self._most - (self.ends - self.begins) - PIECE_COST * len(self._pieces))

    def add(self, stream: int, data: bytes) -> None:
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last[1] == stream and len(last[2]) + len(data) <= PIECE_BYTES:
            last[2].extend(data)
        elif data:
            self._pieces.append((self.ends, stream, bytearray(data)))
        self.ends += len(data)

    def forget(self, before: int) -> None:
        """Drop what is before this offset. One beyond the end counts as the end."""
        self.begins = max(self.begins, min(before, self.ends))
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][2]) <= self.begins:
            self._pieces.popleft()

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """The stream and bytes of it from `offset` on; none at the end, and for an offset that is forgotten."""
        found, of_stream = bytearray(), 1
        if not self.begins <= offset < self.ends:
            return of_stream, b""
        for begins, stream, data in self._pieces:
            if begins + len(data) <= offset:
                continue
            if found and stream != of_stream:
                break
            of_stream = stream
            skipped = max(0, offset - begins)
            found += data[skipped : skipped + limit - len(found)]
            if len(found) >= limit:
                break
        return of_stream, bytes(found)
