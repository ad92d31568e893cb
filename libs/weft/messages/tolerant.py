"""Reads what a later version wrote: fields that this version does not know are left out.

A specification, and the parts of it that other messages carry, refuse unknown fields, so that no typing error of a user
passes. Once a gateway has accepted it, an unknown field is no error: while a cluster is upgraded, services of both
versions read what either has stored.
"""

from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

UNKNOWN_FIELD = "Object contains unknown field"  # as msgspec says it, which has no error of its own for that


class TolerantDecoder(Generic[T]):
    """Decodes JSON to `kind`."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, text: bytes | str) -> T:
        """Raises msgspec.DecodeError, as a decoder does that is not tolerant, if more is wrong than unknown fields."""
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError as error:
            if not str(error).startswith(UNKNOWN_FIELD):  # else a sender of nonsense would have us read it slowly
                raise
            try:
                known = _known(msgspec.json.decode(text), self._described)
                return self._decoder.decode(msgspec.json.encode(known))
            except (msgspec.MsgspecError, RecursionError):
                raise error from None

    @cached_property
    def _described(self) -> inspect.Type:
        return inspect.type_info(self._kind)


def _known(value: Any, kind: inspect.Type) -> Any:
    """The value without fields that its type does not have."""
    match kind:
        case inspect.StructType() if isinstance(value, dict):
            fields = {field.encode_name: field.type for field in kind.fields}
            return {name: _known(item, fields[name]) for name, item in value.items() if name in fields}
        case inspect.DictType() if isinstance(value, dict):
            return {name: _known(item, kind.value_type) for name, item in value.items()}
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list):
            return [_known(item, kind.item_type) for item in value]
        case inspect.UnionType():  # at most one of its types may be an object, and one a list
            for one in kind.types:
                value = _known(value, one)
        case _:
            pass
    return value
