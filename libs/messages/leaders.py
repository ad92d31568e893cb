"""Messages between the schedulers of a pool: does the sender lead, and what did it hear last of each other one?"""

from typing import Annotated, ClassVar

from msgspec import Meta

from libs.messages import Message
from libs.messages.bounds import Count, LeaseNumber, Token, Word

SCHEDULERS_MAX = 64  # of a pool


class LeadershipTold(Message, frozen=True, kw_only=True):
    """Scheduler → schedulers of its pool, every second. May be lost, and may come late.

    `number` counts what this scheduler told. `leads`: it has the lease, or is about to take it. `epoch`: the greatest
    of the lease that it knows of. `heard`: the number of the latest word of each other that it had heard by then, so
    that each knows from when on this one has not led.
    """

    subject: ClassVar[str] = "weft.leaders.{pool}"
    pool: Token
    scheduler: Word
    number: Count
    leads: bool
    epoch: LeaseNumber
    heard: Annotated[dict[Word, Count], Meta(max_length=SCHEDULERS_MAX)]
