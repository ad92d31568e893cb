"""The tokens of an answer of OpenAI's API: how many, when the first came, and how fast the others followed.

The front reads an answer as it copies it, and keeps no more of it than one line of a stream, or the last bytes of a
whole answer, where engines write `usage`. It changes nothing: a stream whose client did not ask for its usage has none,
and its pieces are counted instead.
"""

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from weftd.router.thinking.bodies import Body, Head, head_of

TOKENS_MAX = 100_000_000  # an answer with more is not believed
HEAD_BYTES_MAX = 256 << 10
LINE_BYTES_MAX = 64 << 10  # a longer line of a stream is looked at from its end alone
TAIL_BYTES = 16 << 10
USAGE_BYTES_MAX = 4096
SECONDS_MAX = 1e6

_USAGE = re.compile(rb'(?<!\\)"usage"[ \t\r\n]*:[ \t\r\n]*\{')
_PIECE = re.compile(rb'"(?:content|reasoning_content|reasoning|text|arguments)"\s*:\s*"[^"]')
_DELTA = re.compile(rb'"delta"\s*:\s*"[^"]')  # of /v1/responses
_RESPONSES = b"/v1/responses"

Tokens = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
Seconds = Annotated[float, Meta(ge=0.0, le=SECONDS_MAX)]


class _Details(Struct):
    cached_tokens: Tokens | None = None


class _Usage(Struct):
    """By either of its two vocabularies."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None


class AnswerRead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer, as far as it came. Seconds from when the request reached the front. `first`: to the first token of a
    stream; `begun`: to the first byte of the body; `each`: between two of its tokens, on average; `took`: to the last
    byte. `whole`: it came to its end. `usage`: the engine counted the tokens; else those of a stream are its pieces.
    `asked`: bytes of the request."""

    status: int = 0
    streamed: bool = False
    whole: bool = False
    usage: bool = False
    first: Seconds | None = None
    begun: Seconds | None = None
    each: Seconds | None = None
    took: Seconds = 0.0
    tokens_in: Tokens = 0
    tokens_out: Tokens = 0
    cached: Tokens = 0
    asked: Annotated[int, Meta(ge=0)] = 0


class AnswerReader:
    """`feed` takes an answer of HTTP/1.1 as it comes. `path`: the request's."""

    def __init__(self, path: bytes = b"") -> None:
        self._piece = _DELTA if path.startswith(_RESPONSES) else _PIECE
        self._head: Head | None = None
        self._body: Body | None = None  # where an answer comes in chunks
        self._read = b""  # the head, a line of a stream, or the end of a whole answer
        self._streamed = False
        self._usage = b""  # the last line of a stream that has any
        self._pieces = 0
        self._first: float | None = None
        self._begun: float | None = None
        self._last = 0.0
        self._wrong = False

    def feed(self, piece: bytes, at: float) -> None:
        """`at`: seconds since the request came. An answer that is no HTTP counts as nothing."""
        if self._wrong:
            return
        try:
            if self._head is None:
                piece = self._begin(piece)
            if self._head is None or not piece:
                return
            if self._body is not None:
                piece = self._body.feed(piece)
        except ValueError:
            self._wrong = True
            return
        if self._begun is None and piece:
            self._begun = at
        if self._streamed:
            self._lines(piece, at)
        else:
            self._read = piece[-TAIL_BYTES:] if len(piece) >= TAIL_BYTES else (self._read + piece)[-TAIL_BYTES:]

    def _begin(self, piece: bytes) -> bytes:
        """Read the head; the bytes after it."""
        self._read += piece
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head, rest = head_of(self._read[: end + 4]), self._read[end + 4 :]
            if head.lines[0][9:10] != b"1":  # a head of 1xx is followed by another
                self._head, self._read = head, b""
                self._body = Body(head) if head.chunked else None
                kind = head.fields.get(b"content-type", b"").lower()
                self._streamed = kind.startswith(b"text/event-stream")
                return rest
            self._read = rest
        if len(self._read) > HEAD_BYTES_MAX:
            raise ValueError("the head is too long")
        return b""

    def _lines(self, piece: bytes, at: float) -> None:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0], self._read = self._read + lines[0], rest
        else:
            self._read += rest
        if len(self._read) > LINE_BYTES_MAX:  # its end may have the usage of the answer
            self._read = b"data:" + self._read[-TAIL_BYTES:]
        for line in lines:
            if line.startswith(b"data:"):
                self._line(line, at)

    def _line(self, line: bytes, at: float) -> None:
        if self._piece.search(line) is not None:
            self._pieces += 1
            self._last = at
            if self._first is None:
                self._first = at
        if b'"usage"' in line and _USAGE.search(line) is not None:
            self._usage = line[-TAIL_BYTES:]

    def told(self, at: float, *, whole: bool, asked: int) -> AnswerRead:
        """All that was read of it. `asked`: bytes of the request; `whole`: the answer has ended."""
        status = b"" if self._head is None else self._head.lines[0][9:12]
        usage = usage_in(self._usage if self._streamed else self._read) if self._head is not None else None
        tokens_in = tokens_out = cached = 0
        if usage is not None:
            tokens_in = usage.prompt_tokens or usage.input_tokens or 0
            tokens_out = usage.completion_tokens or usage.output_tokens or 0
            details = usage.prompt_tokens_details or usage.input_tokens_details
            cached = min(tokens_in, 0 if details is None else details.cached_tokens or 0)
        else:
            tokens_out = min(self._pieces, TOKENS_MAX)
        each = None
        if self._first is not None and tokens_out > 1 and self._pieces > 1:
            each = _bounded((self._last - self._first) / (tokens_out - 1))
        return AnswerRead(
            status=int(status) if status.isdigit() else 0,
            streamed=self._streamed,
            whole=whole,
            usage=usage is not None,
            first=None if self._first is None else _bounded(self._first),
            begun=None if self._begun is None else _bounded(self._begun),
            each=each,
            took=_bounded(at),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cached=cached,
            asked=asked,
        )


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), SECONDS_MAX)


def usage_in(text: bytes) -> _Usage | None:
    """The last `usage` that an engine wrote there; None: there is none, or what it says cannot be."""
    found = [*_USAGE.finditer(text)]
    if not found:
        return None
    begin = found[-1].end() - 1
    part = text[begin : begin + USAGE_BYTES_MAX]
    depth = 0
    for mark in re.finditer(rb"[{}]", part):
        depth += 1 if mark[0] == b"{" else -1
        if depth == 0:
            try:
                return msgspec.json.decode(part[: mark.end()], type=_Usage)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
    return None
