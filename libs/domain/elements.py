"""The specifications of an array's elements: each one job, with its index and its values. Pure."""

import re
from collections.abc import Mapping

from msgspec import structs

from libs.domain.arrays import INDEX_MAX, Element, element_id, indices_of
from libs.domain.dependencies import After
from libs.domain.spec import JobSpec
from libs.domain.spec_decoder import SpecError
from libs.domain.sweeps import rows_of

_ENV_MAX = 1024
_ARGUMENT_MAX = 131_072
_NAME_MAX = 63
_BRACED = re.compile(r"\{([A-Za-z][A-Za-z0-9_]{0,62})\}")


def elements_of(spec: JobSpec, array: str) -> list[tuple[str, JobSpec]]:
    """The id and the specification of each element, in the order of the indices. Raises SpecError."""
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
        found.append((element_id(array, index), _with_values(one, row) if row else one))
    return found


def _of_element(after: After, index: int) -> After:
    return After(job=element_id(after.job, index), when=after.when) if after.element_wise else after


def _with_values(spec: JobSpec, row: Mapping[str, str]) -> JobSpec:
    """`{lr}` in an argument is the value of `lr`; other braces stay."""
    roles = {
        name: structs.replace(role, command=_filled(role.command, row)) if role.command else role
        for name, role in spec.roles.items()
    }
    return structs.replace(spec, command=_filled(spec.command, row), roles=roles)


def _filled(command: tuple[str, ...] | None, row: Mapping[str, str]) -> tuple[str, ...] | None:
    if command is None:
        return None
    filled = tuple(_BRACED.sub(lambda found: row.get(found[1], found[0]), argument) for argument in command)
    if any(len(argument) > _ARGUMENT_MAX for argument in filled):
        raise SpecError("command", f"an argument has more than {_ARGUMENT_MAX} characters once it has its values")
    return filled
