"""The lease, which is the right to lead, and the pledge by which its owner holds its nodes while the store is away."""

from msgspec import Struct


class Pledge(Struct, frozen=True, kw_only=True):
    """The terms on which a leader holds its nodes without the store.

    docs/decisions/0012-keep-jobs-running-without-postgres.md has the rule.

    For at most `seconds` from its latest renewal on, and only while it hears each of `members` (itself is one of them)
    deny that it leads, over one connection to the NATS server `nats`.
    """

    seconds: float = 0.0
    members: tuple[str, ...] = ()
    nats: str = ""


class Lease(Struct, frozen=True, kw_only=True):
    """The right to write for `name`. `epoch` grows with every owner; `seq` with every renewal.

    `went_back`: the store was restored from a backup, and what ran in the time that it lost may run still. `pledge`:
    the latest that was given, which may be an earlier leader's.
    """

    name: str
    holder: str
    epoch: int
    seq: int
    went_back: bool = False
    pledge: Pledge = Pledge()
