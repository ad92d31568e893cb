"""The specifications of an array's elements: each one job, with its index and its values. Pure.

A short specification can be a huge array: every element has a copy of it, and a value stands wherever the command names
it. So the bytes of all elements are counted while they are made, and nothing beyond the bound is made.
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec import structs

from weft.domain.arrays import INDEX_MAX, Element, element_id, indices_of
from weft.domain.decoding.spec_decoder import SpecError
from weft.domain.dependencies import After
from weft.domain.spec import JobSpec
from weft.domain.sweeps import rows_of

BYTES_MAX = 32 << 20  # of the specifications of all elements, as JSON
_ENV_MAX = 1024
_ARGUMENT_MAX = 131_072
_NAME_MAX = 63
_BRACED = re.compile(r"\{([A-Za-z][A-Za-z0-9_]{0,62})\}")


class ArrayTooLargeError(SpecError):
    """The elements of an array would have more bytes than an array may have."""

    def __init__(self, elements: int, bytes_max: int) -> None:
        super().__init__("array", f"its {elements} elements would have more than {bytes_max} bytes together")


def elements_of(spec: JobSpec, array: str, *, bytes_max: int = BYTES_MAX) -> list[tuple[str, JobSpec]]:
    """The id and the specification of each element, in the order of the indices. Raises SpecError, and
    ArrayTooLargeError before more than `bytes_max` bytes of them are made."""
    indices, at_once = indices_of(spec.array or "")
    rows: list[dict[str, str]] = []
    if spec.sweep is not None:
        rows = rows_of(spec.sweep, spec.sample)
        indices = tuple(range(len(rows)))
    if len(spec.name) + 1 + len(str(indices[-1])) > _NAME_MAX:
        raise SpecError("name", f"of an array has at most {_NAME_MAX - 1 - len(str(INDEX_MAX))} characters")
    env = {
        **spec.env,
        "WEFT_ARRAY_ID": array,
        "WEFT_ARRAY_COUNT": str(len(indices)),
        "WEFT_ARRAY_MIN": str(indices[0]),
        "WEFT_ARRAY_MAX": str(indices[-1]),
    }
    if len(env) + 1 + len(spec.sweep or ()) > _ENV_MAX:
        raise SpecError("env", f"an element has {_ENV_MAX} variables at most, those of its array among them")
    common = structs.replace(spec, array=None, sweep=None, sample=None)
    room = bytes_max - len(indices) * len(msgspec.json.encode(common))
    if room < 0:
        raise ArrayTooLargeError(len(indices), bytes_max)
    found: list[tuple[str, JobSpec]] = []
    for number, index in enumerate(indices):
        row = rows[number] if rows else {}
        values = {f"WEFT_SWEEP_{name.upper()}": text for name, text in row.items()}
        one = structs.replace(
            common,
            name=f"{spec.name}-{index}",
            env={**env, **values, "WEFT_ARRAY_INDEX": str(index)},
            after=tuple(_of_element(after, index) for after in spec.after),
            element=Element(array=array, name=spec.name, index=index, at_once=at_once),
        )
        if row:
            one, grown = _with_values(one, row, room)
            room -= grown
        if room < 0:
            raise ArrayTooLargeError(len(indices), bytes_max)
        found.append((element_id(array, index), one))
    return found


def _of_element(after: After, index: int) -> After:
    return After(job=element_id(after.job, index), when=after.when) if after.element_wise else after


def _with_values(spec: JobSpec, row: Mapping[str, str], room: int) -> tuple[JobSpec, int]:
    """The specification with the values of the row, and by how many bytes that is more; beyond `room` it is cut short.
    `{lr}` in an argument is the value of `lr`; other braces stay."""
    grown = len(msgspec.json.encode(row))  # the row also becomes environment variables
    roles = dict(spec.roles)
    for name, role in spec.roles.items():
        if role.command:
            filled, more = _filled(role.command, row, room - grown)
            roles[name], grown = structs.replace(role, command=filled), grown + more
    command = spec.command
    if command is not None:
        command, more = _filled(command, row, room - grown)
        grown += more
    return structs.replace(spec, command=command, roles=roles), grown


def _filled(command: tuple[str, ...], row: Mapping[str, str], room: int) -> tuple[tuple[str, ...], int]:
    """The command with its values, and by how many bytes that is more. Beyond `room` the rest is not filled."""
    filled: list[str] = []
    grown = 0
    for argument in command:
        with_values = _BRACED.sub(lambda found: row.get(found[1], found[0]), argument)
        if len(with_values) > _ARGUMENT_MAX:
            raise SpecError("command", f"an argument has more than {_ARGUMENT_MAX} characters once it has its values")
        if with_values is not argument:
            grown += len(msgspec.json.encode(with_values)) - len(msgspec.json.encode(argument))
        filled.append(with_values)
        if grown > room:
            break
    return tuple(filled), grown
