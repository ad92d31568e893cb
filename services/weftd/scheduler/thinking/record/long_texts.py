"""Long texts of updates in records: a record says how long each is and what it hashes to.

A service may be updated with a megabyte, time and again, and the store drops what nothing runs any more. The core only
copies, compares and measures these texts. So a replay needs none of them: it decides about texts of the same lengths,
which are equal where the real ones were.

In a record a long text is a mark, such as `\\0900000:5d41…`. No text of a user begins with a zero byte. From a mark a
replay makes a filler of the same length, and from that the same mark.
"""

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeVar

import msgspec
from msgspec import structs

from weft.domain.job import Job, Revision, Step
from weft.messages.asks import Ask, Update

LONG_BYTES = 64  # as JSON; a record has a mark of a longer text
DIGEST_BYTES = 16
_BEGINS = "filler:"
_MARK = re.compile(r"\0(\d+):([0-9a-f]{32})")
_FILLER = re.compile(_BEGINS + r"([0-9a-f]{32}):-*")

T = TypeVar("T", Update, Revision)
Swap = Callable[[str], str]


def marked(text: str) -> str:
    """The text as a record has it."""
    if len(text) <= LONG_BYTES // 6:  # no character has more than six bytes as JSON
        return text
    encoded = msgspec.json.encode(text)
    if len(encoded) <= LONG_BYTES:
        return text
    return f"\0{len(encoded)}:{blake2b(encoded, digest_size=DIGEST_BYTES).hexdigest()}"


def marked_again(text: str) -> str:
    """The text of a replay as a record has it: a filler gets the mark that it was made from."""
    found = _FILLER.fullmatch(text)
    return text if found is None else f"\0{len(text) + 2}:{found[1]}"


def filler(text: str) -> str:
    """A text of a record as a replay has it."""
    found = _MARK.fullmatch(text)
    return text if found is None else f"{_BEGINS}{found[2]}:".ljust(int(found[1]) - 2, "-")


def in_job(job: Job, swap: Swap) -> Job:
    return structs.replace(job, revisions=_in_all(job.revisions, swap)) if job.revisions else job


def in_ask(ask: Ask, swap: Swap) -> Ask:
    return ask if ask.update is None else structs.replace(ask, update=_in_one(ask.update, swap))


def in_steps(steps: list[Step], swap: Swap) -> list[Step]:
    return [
        structs.replace(step, revisions=_in_all(step.revisions, swap)) if step.revisions else step for step in steps
    ]


def _in_all(revisions: tuple[Revision, ...], swap: Swap) -> tuple[Revision, ...]:
    return tuple(_in_one(one, swap) for one in revisions)


def _in_one(one: T, swap: Swap) -> T:
    command = None if one.command is None else tuple(map(swap, one.command))
    env = None if one.env is None else {name: swap(value) for name, value in one.env.items()}
    return structs.replace(one, command=command, env=env)
