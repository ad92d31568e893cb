"""Reads YAML in time that grows with its size alone: the scalars of YAML 1.2's core schema, no tags, no aliases.

A general YAML loader has scalars that cost more than their length (base-60 integers), documents that are larger than
their text (aliases), and values of unexpected types (timestamps). Here the parser's events become plain values.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import yaml

YAML_BYTES_MAX = 64 << 10
DEPTH_MAX = 32
EVENTS_MAX = 10_000
NUMBER_CHARACTERS_MAX = 64  # longer ones stay text: turning digits into an integer is not linear
PATH_CHARACTERS_MAX = 200

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLS = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+").fullmatch
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
).fullmatch


class DocumentError(ValueError):
    """The document cannot be read: `field` is the place, if there is one; `reason` is why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field
        self.reason = reason


class _Open(Struct):
    """A list or a mapping that is being read. The mapping's next value belongs to `key`; `last` is the key before."""

    value: list[Value] | dict[str, Value]
    key: str | None = None
    last: str = ""


def read_yaml(body: bytes) -> Value:
    """The single document in the text. Raises DocumentError."""
    import yaml  # slow to import, and a specification in JSON needs none

    if len(body) > YAML_BYTES_MAX:
        raise DocumentError("", f"YAML is read up to {YAML_BYTES_MAX >> 10} KiB, this is {len(body)} bytes; send JSON")
    try:
        return _built(yaml.parse(body, Loader=yaml.CSafeLoader))
    except yaml.YAMLError as error:
        raise DocumentError("", f"not YAML: {' '.join(str(error).split())}") from error


def _built(events: Iterator[object]) -> Value:
    import yaml

    documents: list[Value] = []
    opened: list[_Open] = []
    for count, event in enumerate(events):
        if count > EVENTS_MAX:
            raise DocumentError("", f"has more than {EVENTS_MAX // 2} parts; send JSON")
        match event:
            case yaml.AliasEvent():
                raise DocumentError(_path(opened), "YAML aliases are not accepted")
            case yaml.ScalarEvent():
                _check_plain(event, opened)
                _put(opened, documents, event.value if _is_key(opened) else _scalar(event))
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                _check_plain(event, opened)
                if _is_key(opened):
                    raise DocumentError(_path(opened), "a name is text, not a list or a mapping")
                if len(opened) >= DEPTH_MAX:
                    raise DocumentError("", "nested too deeply")
                inner: list[Value] | dict[str, Value] = [] if isinstance(event, yaml.SequenceStartEvent) else {}
                _put(opened, documents, inner)
                opened.append(_Open(inner))
            case yaml.CollectionEndEvent():
                opened.pop()
            case yaml.DocumentStartEvent() if documents:
                raise DocumentError("", "not YAML: expected a single document")
    return documents[0] if documents else None


def _put(opened: list[_Open], documents: list[Value], value: Value) -> None:
    """Put a value under its key, into the list, or make it the document. A key is kept for the value that follows."""
    if not opened:
        documents.append(value)
        return
    within = opened[-1]
    if isinstance(within.value, list):
        within.value.append(value)
    elif within.key is None:
        assert isinstance(value, str), "a name is text"
        within.key = value
        if value in within.value:
            raise DocumentError(_path(opened), "is given twice")
    else:
        within.value[within.key] = value
        within.last = within.key
        within.key = None


def _is_key(opened: list[_Open]) -> bool:
    return bool(opened) and isinstance(opened[-1].value, dict) and opened[-1].key is None


def _check_plain(event: "yaml.ScalarEvent | yaml.CollectionStartEvent", opened: list[_Open]) -> None:
    if event.tag is not None:
        raise DocumentError(_path(opened), f"YAML tags are not accepted: {event.tag[:PATH_CHARACTERS_MAX]}")
    if event.anchor is not None:
        raise DocumentError(_path(opened), "YAML anchors and aliases are not accepted")


def _scalar(event: "yaml.ScalarEvent") -> Value:
    text = event.value
    if not event.implicit[0] or len(text) > NUMBER_CHARACTERS_MAX:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _path(opened: list[_Open]) -> str:
    """The present place, written like the field of a specification."""
    path = ""
    for depth, within in enumerate(opened, 1):
        if isinstance(within.value, list):
            path += f"[{len(within.value) - (depth < len(opened))}]"
        else:
            path += f".{within.last if within.key is None and depth < len(opened) else within.key or ''}"
    return path.strip(".")[:PATH_CHARACTERS_MAX]
