"""Labels and taints of nodes: names with values. A node's own settings give some, and operators change them by a verb.

A job starts on a node only if the labels there match its `where`, and if it tolerates each taint there.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.spec import ALL_TAINTS, LABEL_NAME_PATTERN, LabelName, LabelValue

LABELS_MAX = 64  # the maximum for one node; it may have as many taints
VALUE_MAX = 253

Labels = Annotated[dict[LabelName, LabelValue], Meta(max_length=LABELS_MAX)]
LabelChanges = Annotated[dict[LabelName, LabelValue | None], Meta(max_length=LABELS_MAX)]


class Marking(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Labels and taints that an operator gives a node, by name; null takes one away, also one of the node's own
    settings."""

    labels: LabelChanges = {}
    taints: LabelChanges = {}

    def then(self, later: "Marking") -> "Marking":
        """Merge both markings; the later one wins."""
        return Marking(labels={**self.labels, **later.labels}, taints={**self.taints, **later.taints})

    @property
    def is_bounded(self) -> bool:
        return max(len(self.labels), len(self.taints)) <= LABELS_MAX

    @property
    def text(self) -> str:
        """Such as `labels zone=a, no nvlink; no taint spot`."""
        parts = []
        for kind, changes in (("label", self.labels), ("taint", self.taints)):
            words = [word_of(name, value) if value is not None else f"no {name}" for name, value in changes.items()]
            if words:
                parts.append(f"{kind}{'s' if len(words) > 1 else ''} {', '.join(words)}")
        return "; ".join(parts)


NOT_MARKED = Marking()


def changed(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The labels after the changes, in the order of their names."""
    after = {**labels, **changes}
    return {name: value for name, value in sorted(after.items()) if value is not None}


def labels_of(words: Iterable[str]) -> dict[str, str]:
    """The labels of `zone=a` and `nvlink`. Raises ValueError, which names the word."""
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if re.match(LABEL_NAME_PATTERN, name) is None or len(value) > VALUE_MAX or not value.isprintable():
            raise ValueError(f"expected NAME=VALUE or NAME, of letters, digits and '.', '_', '/', '-': {word[:100]!r}")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = value
    if len(found) > LABELS_MAX:
        raise ValueError(f"{len(found)} labels; a node has at most {LABELS_MAX}")
    return found


def word_of(name: str, value: str) -> str:
    """`zone=a`, or `nvlink` for a label without a value."""
    return f"{name}={value}" if value else name


def words_of(labels: Mapping[str, str]) -> list[str]:
    return [word_of(name, value) for name, value in sorted(labels.items())]


def tolerates(tolerated: Iterable[str], name: str, value: str) -> bool:
    """Is this taint one of the tolerated ones: by its name, by its name and value, or since all are?"""
    return any(word in (name, f"{name}={value}", ALL_TAINTS) for word in tolerated)
