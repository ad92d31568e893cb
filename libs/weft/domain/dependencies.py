"""Dependencies: what must have become of other jobs before a job may start. Only what is final counts.

A job that never started satisfies `any` alone. What can never be satisfied is `NEVER`, and its job ends at once.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

AFTER_MAX = 100
NAMED_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(_[0-9]{1,6})?$(?!\n)"


SOURCE_PATTERN = NAMED_PATTERN.removesuffix(r"$(?!\n)") + r"(:[A-Za-z0-9][A-Za-z0-9._=-]{0,127})?$(?!\n)"
CheckpointSource = Annotated[
    str,
    Meta(
        pattern=SOURCE_PATTERN,
        description="`JOB` or `JOB:STEP`: the job, by id or name, with whose checkpoint it starts (docs/results.md).",
    ),
]


class When(StrEnum):
    ANY = "any"  # it is over
    OK = "ok"  # it has succeeded
    NOT_OK = "not_ok"  # it is over, had started, and has not succeeded
    STARTED = "started"


_WORDS = {
    When.ANY: ("is over", "are over"),
    When.OK: ("has succeeded", "have succeeded"),
    When.NOT_OK: ("has failed", "is over and one of it has failed"),
    When.STARTED: ("has started", "have started"),
}


class After(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One dependency. `element_wise`: each element of this array depends on the element of `job`, an array, that has
    the same index."""

    job: Annotated[
        str, Meta(pattern=NAMED_PATTERN, description="An id, or a name; of an array, or its element `A_3`, too.")
    ]
    when: When = When.OK
    element_wise: bool = False


class Ends(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a job is, or all elements of an array: of `total` so many are over (`ended`), have succeeded (`ok`), are
    over without success though they had started (`bad`), and have started (`began`). `total` 0: it is not known."""

    id: str
    total: int = 0
    ended: int = 0
    ok: int = 0
    bad: int = 0
    began: int = 0

    @property
    def settled(self) -> bool:
        return self.ended == self.total


class DependencyState(StrEnum):
    MET = "met"
    OPEN = "open"
    NEVER = "never"


def verdict(when: When, ends: Ends) -> DependencyState:
    """The verdict on a dependency now. An unknown job was deleted long after its end, and nothing tells which end that
    was."""
    never_started = ends.ended - ends.ok - ends.bad
    met, never = {
        When.ANY: (ends.settled, False),
        When.OK: (0 < ends.total == ends.ok, ends.ended > ends.ok or not ends.total),
        When.NOT_OK: (ends.settled and ends.bad > 0, ends.settled),
        When.STARTED: (0 < ends.total == ends.began, never_started > 0 or not ends.total),
    }[when]
    return DependencyState.MET if met else DependencyState.NEVER if never else DependencyState.OPEN


def wanted_words(after: After, *, many: bool) -> str:
    """The condition of the dependency as the end of a sentence: `j-7 has succeeded`."""
    return f"{after.job} {_WORDS[after.when][many]}"


def never_words(after: After, ends: Ends) -> str:
    """Why the dependency can never be satisfied."""
    if not ends.total:
        return f"{after.job} is not known any more"
    if ends.total > 1:
        return f"of the {ends.total} elements of {after.job} {ends.ok} succeeded, {ends.bad} failed"
    if ends.ok:
        return f"{after.job} has succeeded"
    return f"{after.job} has not succeeded" if ends.bad else f"{after.job} never started"
