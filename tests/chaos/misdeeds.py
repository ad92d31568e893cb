"""What the hostile tenant does when. Pure: a seed gives the same misdeeds.

Dealt from a deck that holds each of them, so that also a short run meets all.
"""

import random

from msgspec import Struct

BETWEEN_SECONDS = 1.5
FIRST_AT = 2.0
BY_JOBS = (  # what a job of its own does to its run's folder: see `vandal`
    "deep-folder",
    "wide-folder",
    "huge-exit",
    "negative-exit",
    "fifo-exit",
    "folder-exit",
    "link-exit",
    "no-folder",
)
BY_REQUESTS = (
    "base-60",  # a YAML number whose digits take quadratic time
    "many-lists",  # YAML of very many small things
    "costly-pattern",
    "large-specifications",
    "large-updates",  # of services that wait: an environment as large as a request may be, again and again
    "event-lists",  # the longest lists and streams of its own events, several at once
    "many-sessions",  # in a run of its own, each with a long command
    "many-jobs",
    "high-priority",
    "polite",  # a job that exits 0 when it is told to stop, and is put back into the queue
)

IN_CONTAINERS = ("contained-deep-folder",)


class Misdeed(Struct, frozen=True, kw_only=True):
    """`number` makes each one's names its own."""

    at: float
    what: str
    number: int


def misdeeds(seed: int, seconds: float, *, engine: bool = False) -> list[Misdeed]:
    """With an `engine` also those of jobs in containers."""
    drawn = random.Random(f"misdeeds {seed}")
    deck: list[str] = []
    made: list[Misdeed] = []
    at = FIRST_AT
    while at < seconds:
        if not deck:
            deck = [*BY_JOBS, *BY_REQUESTS, *(IN_CONTAINERS if engine else ())]
            drawn.shuffle(deck)
        made.append(Misdeed(at=at, what=deck.pop(), number=len(made)))
        at += drawn.expovariate(1 / BETWEEN_SECONDS)
    return made
