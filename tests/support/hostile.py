"""What a server may answer that means harm: a view of any type, with control characters in all of its texts."""

import re
import typing
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from tests.support.builders import spec
from weft.domain.spec import JobSpec
from weft.domain.topology import Topology

T = TypeVar("T")

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b2J\x9d0;x\x9c\r\u202eb\u2066c\x7f\x08"
"""Titles the window and clears the screen, as escape sequences and as C1 controls; hides a line, turns the order."""

_VALID = ("a", "A", "1s", "1MiB", "/a", "0-1", 1, 0)  # for a field that takes no such text
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def steering(printed: str) -> set[str]:
    """The characters of an output that steer a terminal, beside the colours of `weft` itself."""
    return {char for char in _COLOUR.sub("", printed) if not char.isprintable() and char != "\n"}


def hostile(kind: type[T], *, depth: int = 8) -> T:
    """A valid `kind` with as much in it as there can be: one item of each list, each text a hostile one."""
    value: T = _value(kind, "", depth)
    return value


def _value(kind: Any, name: str, depth: int) -> Any:
    origin = get_origin(kind)
    if origin is Annotated:
        value = _value(get_args(kind)[0], name, depth)
        return next(one for one in (value, *_VALID) if _fits(one, kind))
    if origin in (UnionType, typing.Union):
        parts = [part for part in get_args(kind) if part not in (NoneType, msgspec.UnsetType)]
        return _value(parts[0], name, depth) if depth else None
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (dict, tuple, list):
        return _items(origin, get_args(kind), name, depth)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if kind is JobSpec:
        return spec(name="a", command=(HOSTILE,), env={"A": HOSTILE}, labels={"a": HOSTILE})
    if kind is Topology:  # it refuses text that names no link
        return Topology(gpus=(1, 2), links=("NV1",), numa=(0, 1))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = [field for field in msgspec.structs.fields(kind) if depth or field.required]
        return kind(**{field.name: _value(hints[field.name], field.name, max(0, depth - 1)) for field in fields})
    return _plain(kind, name)


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(msgspec.to_builtins(value), kind)
    except msgspec.ValidationError:
        return False
    return True


def _items(origin: Any, of: tuple[Any, ...], name: str, depth: int) -> Any:
    if origin is dict:
        return {_value(of[0], name, depth): _value(of[1], name, depth)} if depth else {}
    if origin is tuple and of[-1] is not Ellipsis:
        return tuple(_value(part, name, depth) for part in of)
    return origin([_value(of[0], name, depth)] if depth else [])


def _plain(kind: Any, name: str) -> Any:
    if kind is str:
        return "2026-01-31T12:00:00Z" if name == "time" else HOSTILE
    if kind is bool:
        return False
    if kind in (int, float):
        return kind(1)
    return HOSTILE if kind in (Any, object) else kind()
