"""Finds a name that a JSON object has twice: the decoder takes its last value, another reader perhaps the first."""

import json
from typing import Any

from weft.domain.decoding.mistakes import FIELD_CHARACTERS_MAX


class _DoubledError(Exception):
    """An object has a name twice."""


class _Members(list[tuple[str, Any]]):
    """The names and values of one object, in their order."""


def doubled_name(document: bytes) -> str | None:
    """The path of a name that an object of this valid JSON has twice, written like a field; None if there is none.
    Raises RecursionError."""
    try:
        json.loads(document, object_pairs_hook=_check, parse_int=bool, parse_float=bool)  # numbers need not be read
    except _DoubledError:
        members = json.loads(document, object_pairs_hook=_Members, parse_int=bool, parse_float=bool)
        found = _path(members, "")
        assert found is not None, "an object has a name twice"
        return found
    return None


def _check(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        raise _DoubledError


def _path(value: object, path: str) -> str | None:
    """The path of the first name that is there twice within the value, which is at `path`. A long path is cut: each
    level holds its own."""
    if isinstance(value, _Members):
        seen = set[str]()
        for name, part in value:
            inner = (f"{path}.{name}" if path else name)[:FIELD_CHARACTERS_MAX]
            if name in seen:
                return inner
            seen.add(name)
            if (found := _path(part, inner)) is not None:
                return found
    elif isinstance(value, list):
        for number, part in enumerate(value):
            if (found := _path(part, f"{path}[{number}]")) is not None:
                return found
    return None
