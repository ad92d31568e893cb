"""A user's regular expression, checked so that compiling it is never costly.

Python compiles a set such as `[!-\\uffff]` character by character where case is ignored: milliseconds each. So ranges
end at \\xff, and sets, ranges and groups are counted before anything is compiled. Matching runs in a helper process.
"""

import re

SETS_MAX = 32
RANGES_MAX = 32
GROUPS_MAX = 64
_WIDE_RANGE = re.compile(r"-(?:[^\x00-\xff]|\\[uUN])")


def check_pattern(pattern: str) -> None:
    """Raises ValueError, in a person's words, unless it is a pattern with a named group that is cheap to compile."""
    _check_cost(pattern)
    try:
        groups = re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if not groups:
        raise ValueError("needs a named group, such as (?P<step>[0-9]+)")


def _check_cost(pattern: str) -> None:
    """Count by the text alone: whatever looks like a set, a range or a group counts as one."""
    counted = {"sets": (pattern.count("["), SETS_MAX), "groups": (pattern.count("("), GROUPS_MAX)}
    if "[" in pattern:
        counted["ranges"] = (pattern.count("-"), RANGES_MAX)
        if _WIDE_RANGE.search(pattern):
            raise ValueError("a range in a set ends at \\xff at the latest; \\w and . match all letters")
    for what, (count, most) in counted.items():
        if count > most:
            raise ValueError(f"has {count} {what}, at most {most} are taken: it would be slow to compile")
