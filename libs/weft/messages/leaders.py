"""Messages between the schedulers of a pool: whether each leads, and the last message that it got of each other."""

from typing import Annotated, ClassVar

from msgspec import Meta

from weft.messages import Message
from weft.messages.bounds import Count, LeaseNumber, Token, Word

SCHEDULERS_MAX = 64  # of a pool


class LeadershipTold(Message, frozen=True, kw_only=True):
    """Scheduler → schedulers of its pool, every second. May be lost, and may come late.

    `number` counts this scheduler's messages. `leads`: it has the lease, or is about to take it. `epoch`: the greatest
    epoch of the lease that it knows. `heard`: the number of the latest message of each other scheduler that it had got
    by then, so that each knows since when this one has not led.
    """

    subject: ClassVar[str] = "weft.leaders.{pool}"
    pool: Token
    scheduler: Word
    number: Count
    leads: bool
    epoch: LeaseNumber
    heard: Annotated[dict[Word, Count], Meta(max_length=SCHEDULERS_MAX)]
