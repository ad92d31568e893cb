"""One line of a batch file: the request that it asks for, or a sentence about what is wrong with it. Pure."""

from hashlib import sha256

import msgspec
from msgspec import Raw, Struct

from weft.messages.serving import OPENAI_CALLS
from weftd.cli.formatting import clean

LINE_BYTES_MAX = 16 << 20
LINES_MAX = 1_000_000
CUSTOM_ID_CHARACTERS_MAX = 512
SHOWN_CHARACTERS_MAX = 60
PATHS = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
}
"""Where a plain line goes, by the field that it has."""
FIELDS = ("custom_id", "method", "url", "body")

_Fields = dict[str, Raw]


class Line(Struct, frozen=True, kw_only=True):
    """`number`: from 1. `digest`: the hash of the line and of the model for lines that name none."""

    number: int
    digest: str
    custom_id: str


class Request(Line, frozen=True, kw_only=True):
    path: str
    body: bytes
    model: str


class Broken(Line, frozen=True, kw_only=True):
    """A line that asks for nothing. `why`: a sentence without the number of the line."""

    why: str


class BrokenError(Exception):
    """A sentence about a line that asks for nothing."""


def digest_of(text: bytes, model: str) -> str:
    return sha256(model.encode() + b"\0" + text.strip()).hexdigest()[:16]


def line_of(text: bytes, number: int, model: str) -> Request | Broken:
    """`text`: one line, at most LINE_BYTES_MAX bytes of it and one more. `model`: for lines that name none."""
    digest, custom_id = digest_of(text, model), f"line-{number}"
    try:
        if len(text) > LINE_BYTES_MAX:
            raise BrokenError(f"it has more than {LINE_BYTES_MAX} bytes")
        fields = _object(text, "expected a JSON object")
        custom_id = _custom_id(fields, custom_id)
        plain = not any(name in fields for name in FIELDS[1:])
        path, body = _plain(fields) if plain else _openai(fields)
        named = _model(body) or model
        if "stream" in body and bytes(body["stream"]) != b"false":
            raise BrokenError("`stream` must be false: a batch has whole answers")
        body = {"model": Raw(msgspec.json.encode(named)), **{k: v for k, v in body.items() if k != "model"}}
    except BrokenError as error:
        return Broken(number=number, digest=digest, custom_id=custom_id, why=str(error))
    sent = msgspec.json.encode(body)
    return Request(number=number, digest=digest, custom_id=custom_id, path=path, body=sent, model=named)


def _object(text: bytes | Raw, expected: str) -> _Fields:
    try:
        return msgspec.json.decode(text, type=_Fields)
    except msgspec.ValidationError:
        raise BrokenError(expected) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenError(f"{expected}; {clean(str(error))[:200]}") from None


def _text(field: str, value: Raw) -> str:
    try:
        return msgspec.json.decode(value, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BrokenError(f"`{field}` must be a text, got {_shown(bytes(value))}") from None


def _custom_id(fields: _Fields, usual: str) -> str:
    if "custom_id" not in fields:
        return usual
    custom_id = _text("custom_id", fields["custom_id"])
    if not 0 < len(custom_id) <= CUSTOM_ID_CHARACTERS_MAX:
        raise BrokenError(f"`custom_id` must have 1 to {CUSTOM_ID_CHARACTERS_MAX} characters, got {len(custom_id)}")
    return custom_id


def _openai(fields: _Fields) -> tuple[str, _Fields]:
    """The path and the body of a line in the form of OpenAI's batch files."""
    for name in FIELDS:
        if name not in fields:
            raise BrokenError(f"`{name}` is missing: a line has {', '.join(FIELDS)}")
    for name in fields:
        if name not in FIELDS:
            raise BrokenError(f"{_shown(name.encode())} is no field of a line: it has {', '.join(FIELDS)}")
    method, url = _text("method", fields["method"]), _text("url", fields["url"])
    if method != "POST":
        raise BrokenError(f"`method` must be POST, got {_shown(method.encode())}")
    if url not in OPENAI_CALLS:
        raise BrokenError(f"`url` must be one of {', '.join(OPENAI_CALLS)}, got {_shown(url.encode())}")
    return url, _object(fields["body"], "`body` must be a JSON object")


def _plain(fields: _Fields) -> tuple[str, _Fields]:
    """The path and the body of a line that is a body itself."""
    there = [name for name in PATHS if name in fields]
    if len(there) != 1:
        found = " and ".join(there) or "none"
        raise BrokenError(f"expected one of {', '.join(PATHS)}, or {', '.join(FIELDS)}; found {found}")
    return PATHS[there[0]], {name: value for name, value in fields.items() if name != "custom_id"}


def _model(body: _Fields) -> str:
    """The model that the body names; empty: it names none."""
    if "model" not in body:
        return ""
    model = _text("model", body["model"])
    if not model:
        raise BrokenError("`model` must be the name of a model, got an empty text")
    return model


def _shown(text: bytes) -> str:
    words = clean(text.decode(errors="replace"))
    return words if len(words) <= SHOWN_CHARACTERS_MAX else f"{words[:SHOWN_CHARACTERS_MAX]}…"
