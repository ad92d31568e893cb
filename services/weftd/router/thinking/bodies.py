"""HTTP/1.1 as Caddy uses it: the head of a request or an answer, and its body in any framing."""

from collections.abc import Container, Mapping

from msgspec import Struct


class Head(Struct, frozen=True):
    """The lines of a head. `fields`: by lower-case name; of several with one name the first."""

    lines: tuple[bytes, ...]
    fields: dict[bytes, bytes]

    @property
    def length(self) -> int | None:
        """Bytes of the body; None if it comes in chunks, or until the connection ends."""
        text = self.fields.get(b"content-length")
        if self.chunked or text is None:
            return None
        if not text.isdigit():
            raise ValueError("the length of the body is not a number")
        return int(text)

    @property
    def chunked(self) -> bool:
        return self.fields.get(b"transfer-encoding", b"").lower() == b"chunked"

    def told(self, *, without: Container[bytes], more: Mapping[str, str]) -> bytes:
        """The head with some fields removed and others added."""
        kept = [line for line in self.lines[1:] if line.partition(b":")[0].lower() not in without]
        added = [f"{name}: {value}".encode() for name, value in more.items()]
        return b"\r\n".join([self.lines[0], *kept, *added, b"", b""])


def head_of(text: bytes) -> Head:
    """A head with the empty line at its end."""
    lines = tuple(text[:-4].split(b"\r\n"))
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        fields.setdefault(name.lower(), value.strip())
    return Head(lines, fields)


class Body:
    """The body of a request without its frames. `over`: the body is complete."""

    def __init__(self, head: Head) -> None:
        self._chunked = head.chunked
        self._left = 0 if self._chunked else (head.length or 0)  # bytes of the body, or of a chunk
        self._frame = b""  # the received part of the line before or after a chunk
        self._within = False  # a chunk
        self.over = not self._chunked and not self._left
        self.length = 0  # bytes of it that have come
        self._ended = False

    def feed(self, piece: bytes) -> bytes:
        """Raises ValueError: this is no chunk."""
        if not self._chunked:
            self.length += len(piece)
            self._left -= len(piece)
            self.over = self._left <= 0
            return piece
        parts = []
        at = 0
        while at < len(piece) and not self.over:
            if self._within:
                part = piece[at : at + self._left]
                parts.append(part)
                at += len(part)
                self.length += len(part)
                self._left -= len(part)
                self._within = self._left > 0
                continue
            end = piece.find(b"\n", at)
            self._frame += piece[at : end + 1 or len(piece)]
            at = end + 1 or len(piece)
            if len(self._frame) > 1024:
                raise ValueError("the line before a chunk is too long")
            if end >= 0:
                self._line()
        return b"".join(parts)

    def _line(self) -> None:
        line, self._frame = self._frame.strip(), b""
        if self._ended:  # trailers, and the empty line behind them
            self.over = not line
        elif line:  # it is empty after a chunk
            self._left = int(line.partition(b";")[0], 16)
            self._within, self._ended = self._left > 0, self._left == 0

    def framed(self, part: bytes) -> bytes:
        """A part of the body in the framing for sending, with the last frame at its end."""
        if not self._chunked:
            return part
        framed = b"%x\r\n%b\r\n" % (len(part), part) if part else b""
        return framed + (b"0\r\n\r\n" if self.over else b"")
