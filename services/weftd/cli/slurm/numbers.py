"""The number of a job: the characters of its id, read as digits in base 36.

`j-000000001z` is job 71. An element of an array is named by the number of the array and its index: element 4 of
`a-000000001z`, whose id is `j-000000001z-4`, is job 71_4. The prelude of a script computes the same
(weftd.cli.migration.slurm_prelude), so no service needs to know a second name of a job.
"""

import re
import string
from collections.abc import Mapping

from msgspec import Struct

from weft.domain.arrays import ARRAY_PREFIX, JOB_PREFIX, IndicesError, element_id, indices_of
from weftd.cli.cli_error import CliError

_DIGITS = string.digits + string.ascii_lowercase
_CHARACTERS = 10  # the number of digits behind the prefix of an id
_WRITTEN = re.compile(r"([0-9]{1,18})(?:_(?:([0-9]{1,6})|\[([0-9,:-]{1,1000})(?:%[0-9]+)?\]))?(\.[a-z0-9+]+)?")
_ID = re.compile(r"[ja]-([a-z0-9]+)(?:-([0-9]{1,6}|\[[0-9%-]+\]))?")


class Reference(Struct, frozen=True, kw_only=True):
    """A job as it was typed (`text`): the id of the job, of the array with the same number, or of some of its elements
    by their `indices`. `step`: a step of it is meant, such as `71.batch`."""

    text: str
    job: str
    array: str
    indices: tuple[int, ...] = ()
    step: bool = False

    @property
    def elements(self) -> tuple[str, ...]:
        return tuple(element_id(self.array, index) for index in self.indices)


def number_of(job_id: str) -> str:
    """`71` or `71_4` for the id of a job, of an array or of an element; an id of another form stays as it is. A row for
    a whole array has its indices in brackets: `71_[0-9]`."""
    found = _ID.fullmatch(job_id)
    if found is None:
        return job_id
    return f"{int(found[1], 36)}_{found[2]}" if found[2] else str(int(found[1], 36))


def reference_of(text: str, environment: Mapping[str, str]) -> Reference:
    """The job of a number. In a job its own SLURM_JOB_ID is that job. Raises CliError."""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise CliError(f"Invalid job id specified: {text[:60]!r}")
    own = environment.get("WEFT_JOB_ID", "")
    name = own.removeprefix(JOB_PREFIX) if own and text == environment.get("SLURM_JOB_ID") else _name(int(found[1]))
    try:
        indices, _ = indices_of(found[2] or found[3] or "")
    except IndicesError as error:
        raise CliError(f"Invalid job id specified: {text[:60]!r}: {error}") from None
    return Reference(
        text=text, job=f"{JOB_PREFIX}{name}", array=f"{ARRAY_PREFIX}{name}", indices=indices, step=bool(found[4])
    )


def _name(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits.rjust(_CHARACTERS, _DIGITS[0])
