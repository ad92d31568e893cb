"""A message on the wire: its subject, made from its own fields, and its payload, which is JSON.

A message that carries bytes has them behind its JSON."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from weft.bus import BusError, StreamEvent
from weft.messages import CarriesBytes, Message
from weft.messages.tolerant import TolerantDecoder

T = TypeVar("T")

TOKEN = re.compile(r"[A-Za-z0-9_-]{1,255}")  # a subject of more than 4 KiB would have NATS end the connection for good
EVENTS = "weft.events."

_decoders: dict[type, TolerantDecoder[Any]] = {}  # making one costs more than using it
_json = msgspec.json.Encoder().encode


def encode(message: msgspec.Struct) -> bytes:
    if isinstance(message, CarriesBytes):
        return b"\n".join((_json(replace(message, data=b"")), message.data))
    return _json(message)


def subject_of(message: Message) -> str:
    """The subject with its `{names}` filled. A value that is not one plain token is refused."""
    return ".".join(
        _plain(name, getattr(message, name)) if name else literal for literal, name in _parts(type(message))
    )


def subject_for(kind: type[Message], tokens: Mapping[str, str]) -> str:
    """The subject to listen on: the given tokens are fixed, the others are wildcards."""
    parts = _parts(kind)
    if unknown := sorted(tokens.keys() - {name for _, name in parts}):
        raise ValueError(f"{kind.subject} has no {', '.join(unknown)}")
    return ".".join((_plain(name, tokens[name]) if name in tokens else "*") if name else text for text, name in parts)


def check_event(event: StreamEvent) -> None:
    """Raise ValueError if JetStream would not store the event, or could not recognise a second copy by its id."""
    if not event.subject.startswith(EVENTS) or not all(map(TOKEN.fullmatch, event.subject.split("."))):
        raise ValueError(f"not a subject of an event: {event.subject!r}")
    if not event.id or not event.id.isprintable():
        raise ValueError(f"not an id of an event: {event.id!r}")


def decode_answer(subject: str, reply: type[T], payload: bytes) -> T:
    try:
        return decode(reply, payload)
    except msgspec.DecodeError as error:
        raise BusError(f"the answer on {subject} is not a {reply.__name__}: {error}") from error


def decode(kind: type[T], payload: bytes) -> T:
    """Raises msgspec.DecodeError."""
    if (decoder := _decoders.get(kind)) is None:
        decoder = _decoders[kind] = TolerantDecoder(kind)
    if issubclass(kind, CarriesBytes):
        head, _, data = payload.partition(b"\n")
        carried: T = replace(decoder.decode(head), data=data)
        return carried
    decoded: T = decoder.decode(payload)
    return decoded


@cache
def _parts(kind: type[Message]) -> tuple[tuple[str, str], ...]:
    """Each token of the subject as (text, "") or ("", name of the field)."""
    tokens = kind.subject.split(".")
    return tuple(("", token[1:-1]) if token.startswith("{") else (token, "") for token in tokens)


def _plain(name: str, value: object) -> str:
    if not isinstance(value, str) or not TOKEN.fullmatch(value):
        raise ValueError(
            f"{name} is not a plain token: {value!r:.80}; only letters, digits, - and _ go on the wire, 255 at most"
        )
    return value
