"""The history of a pool, record by record: its leaders' inputs and decisions."""

from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True):
    """One part of a history. Times are seconds since the epoch, UTC.

    `number` counts the records of one leader from 1; after a missing one, the next `begins`. `begins`: the record opens
    with the leader's whole state, so a replay can begin here. `body` is compressed; only the scheduler's
    `thinking/record/entries.py` reads it.
    """

    epoch: int  # of the leader's lease
    number: int
    format: int
    begins: bool
    at: float  # its first cycle
    until: float  # of its last
    cycles: int
    steps: int  # decided in them
    body: bytes
