"""One scheduler's knowledge of the others from their messages, and whether it may hold its nodes without the store.

While the store is away, the last leader may hold its nodes (`NodeDesired.hold`) as long as no other leader can give
their jobs away. docs/decisions/0012-keep-jobs-running-without-postgres.md has the rule and its reason. No clock, no
I/O. A message of another scheduler names our message that it answers and counts from when we sent that: it cannot be
older, however late.
"""

from collections.abc import Iterable

from msgspec import Struct

from weft.domain.lease import Lease, Pledge
from weft.messages import Connection
from weft.messages.leaders import SCHEDULERS_MAX, LeadershipTold

LAPSE_SECONDS = 5.0  # how long a message counts; a new leader waits this much longer before it gives jobs away
SPEAK_SECONDS = 1.0
CLOCKS_PART = 0.1  # the rates of two schedulers' clocks may differ by this part
TRIED_SECONDS = 30.0  # an unanswered renewal may still reach the store for this long
WORDS_MAX = 64  # how many of our own messages are remembered


class Bond(Struct, frozen=True, kw_only=True):
    """A renewal with our own pledge, confirmed by the store: it allows us to hold nodes."""

    epoch: int
    at: float  # when it was sent
    connection: Connection
    members: frozenset[str]  # all schedulers that the pledge in the store may name, whichever of our renewals came last


class Claim(Struct, frozen=True, kw_only=True):
    """Our message that we lead came back from a server: all its listeners get it before any later message."""

    epoch: int
    server: str
    at: float


class Peers:
    def __init__(self, *, pool: str, name: str, holds_seconds: float) -> None:
        self.name = name
        self.holds_seconds = holds_seconds
        self._pool = pool
        self._number = 0
        self._said: dict[int, float] = {}  # by number of our latest messages, when we sent each
        self._heard: dict[str, int] = {}  # by other scheduler, its latest number; the latest heard last
        self._denied: dict[str, float] = {}  # by other scheduler, when we sent what its latest denial to lead answers
        self._back: tuple[Connection, float] | None = None  # of our latest message that came back, and when we sent it
        self._claim: Claim | None = None
        self._epoch = 0  # the greatest that any scheduler has named
        self._tried: dict[str, float] = {}  # when each member was last named in a renewal that we sent
        self._bond: Bond | None = None

    # messages

    def tell(self, now: float, *, leads: bool, epoch: int) -> LeadershipTold:
        self._epoch = max(self._epoch, epoch)
        self._number += 1
        self._said[self._number] = now
        self._said.pop(self._number - WORDS_MAX, None)
        return LeadershipTold(
            pool=self._pool,
            scheduler=self.name,
            number=self._number,
            leads=leads,
            epoch=self._epoch,
            heard=dict(self._heard),
        )

    def hear(self, told: LeadershipTold, now: float, connection: Connection | None) -> None:
        if told.scheduler == self.name:
            self._hear_ourselves(told, now, connection)
            return
        self._epoch = max(self._epoch, told.epoch)
        self._heard.pop(told.scheduler, None)
        self._heard[told.scheduler] = told.number
        while len(self._heard) > SCHEDULERS_MAX:
            self._denied.pop(oldest := next(iter(self._heard)), None)
            del self._heard[oldest]
        said_at = self._said.get(told.heard.get(self.name, 0))
        if said_at is not None and not told.leads:
            self._denied[told.scheduler] = max(said_at, self._denied.get(told.scheduler, said_at))

    def _hear_ourselves(self, told: LeadershipTold, now: float, connection: Connection | None) -> None:
        said_at = self._said.get(told.number)
        if said_at is None or connection is None:
            return
        self._back = (connection, said_at)
        if told.leads and (self._claim is None or self._claim.epoch != told.epoch):
            self._claim = Claim(epoch=told.epoch, server=connection.server, at=now)

    # while we lead

    def pledge(self, now: float, connection: Connection | None) -> Pledge:
        """The pledge to the next leader: the schedulers and the NATS server that we listen to while we hold nodes."""
        if self.holds_seconds <= 0 or connection is None:
            return Pledge()
        heard = [name for name, at in self._denied.items() if now - at <= LAPSE_SECONDS]
        return Pledge(seconds=self.holds_seconds, members=tuple(sorted({self.name, *heard})), nats=connection.server)

    def renews(self, pledge: Pledge | None, now: float) -> None:
        """A renewal is about to be sent: from now on the store may have this pledge, even if no answer comes."""
        for name in pledge.members if pledge is not None else ():
            self._tried[name] = now

    def renewed(self, pledge: Pledge | None, *, epoch: int, at: float, connection: Connection | None) -> None:
        """The store confirmed the renewal that was sent at `at`."""
        if pledge is None or not pledge.seconds or connection is None or connection.server != pledge.nats:
            self._bond = None
            return
        self._tried = {name: tried for name, tried in self._tried.items() if tried >= at - TRIED_SECONDS}
        self._bond = Bond(epoch=epoch, at=at, connection=connection, members=frozenset(self._tried))

    def why_not_hold(self, now: float, *, epoch: int, connection: Connection | None) -> str:
        """Why the leader of `epoch`, which cannot reach the store, may not hold its nodes; empty if it may."""
        bond = self._bond
        if bond is None or bond.epoch != epoch:
            return "the store has no pledge of this leader"
        if now - bond.at > self.holds_seconds:
            return f"the lease was renewed more than {self.holds_seconds:g} s ago"
        if self._epoch > epoch:
            return "another scheduler led meanwhile"
        if connection != bond.connection:
            return "the connection to NATS is not that of the latest renewal"
        if self._back is None or self._back[0] != connection or now - self._back[1] > LAPSE_SECONDS:
            return "NATS does not return published messages"
        members = self._required(bond)
        silent = sorted(name for name in members if now - self._denied.get(name, -1e18) > LAPSE_SECONDS)
        return f"{', '.join(silent)} does not say that it does not lead" if silent else ""

    def _required(self, bond: Bond) -> Iterable[str]:
        return (bond.members | self._tried.keys()) - {self.name}

    # when we begin to lead

    def claimed_at(self, epoch: int, server: str) -> float | None:
        """When we knew that all listeners at `server` get our claim to lead in `epoch`; None if we do not know."""
        claim = self._claim
        return claim.at if claim is not None and (claim.epoch, claim.server) == (epoch, server) else None

    def held_until(self, taken: Lease, at: float) -> float:
        """Until when an earlier leader may hold nodes. `taken`: our lease as we took it, at `at`."""
        pledge = taken.pledge
        if taken.went_back:  # the row may be older than the pledge of the leader that holds
            return at + max(pledge.seconds, self.holds_seconds) * (1 + CLOCKS_PART) + LAPSE_SECONDS
        if pledge.seconds <= 0:
            return at
        if self.name in pledge.members:
            return at + LAPSE_SECONDS
        claimed_at = self.claimed_at(taken.epoch, pledge.nats)
        if claimed_at is not None:
            return max(at, claimed_at) + LAPSE_SECONDS
        return at + pledge.seconds * (1 + CLOCKS_PART) + LAPSE_SECONDS
