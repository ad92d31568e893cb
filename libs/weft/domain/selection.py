"""Which jobs a person means: by a pattern of names, the beginning of an id, labels, kind, node, or since when."""

import re

from msgspec import Struct

from weft.domain.classes import is_benchmark
from weft.domain.job import Job
from weft.domain.spec import LABEL_NAME_PATTERN, Kind

NAMES_PATTERN = r"^[a-z0-9*?-]{1,63}$(?!\n)"
ID_PREFIX_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,62})$(?!\n)"
ID_PREFIX_LEAST = 4  # characters, so that a slip of the finger hits no job
LABELS_MAX = 16
LABEL_VALUE_MAX = 253


class Selection(Struct, frozen=True, kw_only=True):
    """Conditions that a job meets all together; one that is not set is met by every job.

    `names`: a pattern in which `*` stands for any characters and `?` for one. `labels`: by name, the value; None stands
    for any value. `node`: on which the job has a rank, or had one last. `since`: in seconds since 1970, submitted then
    or later. `benchmarks`: whether jobs that only measure a GPU count; `elements`: whether those of arrays do.
    """

    names: str = ""
    id_prefix: str = ""
    labels: tuple[tuple[str, str | None], ...] = ()
    kinds: tuple[Kind, ...] = ()
    node: str = ""
    since: float | None = None
    benchmarks: bool = True
    elements: bool = True

    def holds(self, job: Job) -> bool:
        """True if the job meets all conditions."""
        spec = job.spec
        allocations = job.placement.allocations if job.placement is not None else ()
        return (
            (not self.names or names_match(self.names, job.name))
            and job.id.startswith(self.id_prefix)
            and all(name in spec.labels and value in (None, spec.labels[name]) for name, value in self.labels)
            and (not self.kinds or spec.kind in self.kinds)
            and (not self.node or any(each.node_id == self.node for each in allocations))
            and (self.since is None or job.submitted_at >= self.since)
            and (self.benchmarks or not is_benchmark(spec))
            and (self.elements or spec.element is None)
        )


EVERY = Selection()


def is_pattern(text: str) -> bool:
    """True if the text is a pattern of names, not a name."""
    return "*" in text or "?" in text


def names_match(pattern: str, name: str) -> bool:
    """True if a pattern matches a whole name; takes time in proportion to the product of their lengths at most."""
    at = place = 0
    star = retry = -1
    while place < len(name):
        if at < len(pattern) and pattern[at] in ("?", name[place]):
            at, place = at + 1, place + 1
        elif at < len(pattern) and pattern[at] == "*":
            star, retry = at, place
            at += 1
        elif star >= 0:  # let the last star stand for one character more
            retry += 1
            at, place = star + 1, retry
        else:
            return False
    return all(char == "*" for char in pattern[at:])


def simplified(pattern: str) -> str:
    """The pattern with each run of stars replaced by one star."""
    return re.sub(r"\*+", "*", pattern)


def labels_of(text: str) -> tuple[tuple[str, str | None], ...]:
    """Labels as a query has them, `team=vision,urgent`: a name alone stands for any value. Raises ValueError."""
    if "\0" in text:
        raise ValueError("has a NUL character")
    found: list[tuple[str, str | None]] = []
    for part in text.split(",") if text else ():
        name, given, value = part.partition("=")
        if re.match(LABEL_NAME_PATTERN, name) is None:
            raise ValueError("expected NAME=VALUE or NAME, with commas between several")
        if len(value) > LABEL_VALUE_MAX:
            raise ValueError(f"a label has at most {LABEL_VALUE_MAX} characters")
        found.append((name, value if given else None))
    if len(found) > LABELS_MAX:
        raise ValueError(f"at most {LABELS_MAX} labels")
    return tuple(found)
