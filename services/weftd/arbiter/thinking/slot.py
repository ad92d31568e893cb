"""State of one slot: its terms, its waiting processes, and the GPU time used.

Three accounts say what a slot may have next. All are in µs of device time.
- `virtual`: device time used over the request. Among the slots that wait, the least is next.
- `level`: how much of the limit is left to use. It grows with the limit and holds little, so that no burst exceeds it.
- `credit`: how much of the request a latency slot may still use ahead of the others.
"""

from collections import deque

from msgspec import Struct

WAITS_KEPT = 512


class TurnPace(Struct, frozen=True, kw_only=True):
    """Lengths of time slices and of waits. All in µs.

    round           about how long it takes until every slot that waits had a turn; `quantum_min`, `quantum_max`: of one
    alone           a turn while no other process waits; it is revoked when one does
    in_flight       what a process may have launched and not yet finished; less beside a connected latency slot: then
                    `beside_latency_in_flight`, or one kernel if that is longer; `ahead` more, so that the next is
                    there when one ends
    grace           how much longer than its quota a turn may take before it is revoked
    take_away       how long after that the arbiter waits for the turn
    wait_max        a process that waited this long is next, whatever its slot has used
    credit, debt    how far a slot may be behind or ahead of the others; what is beyond is forgotten
    first           a process's first turn, if its launch is as short: it does not wait for the turn of another
    firsts          how many first turns a slot may have at once, and in ten seconds
    linger          how long a slot keeps its place among the others when none of its processes wants a turn
    burst           how much of its limit a slot can save up
    window          how much of its request a latency slot can save up, as a time
    """

    round: int = 30_000
    quantum_min: int = 2_000
    quantum_max: int = 15_000
    alone: int = 100_000
    in_flight: int = 4_000
    latency_quantum: int = 10_000
    beside_latency_quantum: int = 4_000
    beside_latency_in_flight: int = 1_000
    ahead: int = 250
    grace: int = 4_000
    take_away: int = 1_000_000
    wait_max: int = 1_000_000
    credit: int = 5_000
    debt: int = 500_000
    first: int = 500
    firsts: int = 64
    linger: int = 20_000
    burst: int = 10_000
    window: int = 250_000


class Terms(Struct, frozen=True, kw_only=True):
    """The terms of a slot. `request` and `limit` in thousandths of the GPU's time."""

    gpu: str
    request: int
    limit: int = 1000
    latency: bool = False
    hold: bool = False


class SharingSlot:
    """One slot on its GPU. Its processes are known by the numbers of their connections."""

    def __init__(self, name: str, terms: Terms, pace: TurnPace, now: int) -> None:
        self.name, self._pace = name, pace
        self.hold_to(terms)
        self.clients: set[int] = set()
        self.known: set[int] = set()  # of these, the ones that have wanted a turn
        self.waiting: dict[
            int, tuple[int, int]
        ] = {}  # client: since when, for a launch of how many µs; the next is first
        self.virtual = 0.0
        self.held_back = False  # by a hold or its limit, when it was looked at last
        self.level = float(pace.burst)
        self.credit = pace.window * self.weight / 1000
        self.spare = 0.0  # charged beyond what the slot's turns cost at least: a correction takes back no more
        self.device_us = self.borrowed_us = self.lent_us = self.turns = self.overruns = 0
        self.waits: deque[int] = deque(maxlen=WAITS_KEPT)
        self.ended_at = -pace.linger  # when its last turn ended
        self._began = self._refilled_at = now
        self._accounted_us = 0

    def hold_to(self, terms: Terms) -> None:
        """Set the terms and what follows from them.

        `weight`: the request, or a thousandth of a slot that has none. `limit`: never below that. `need`: how much of
        the limit must be left for a turn, so that the limit is reached in few turns.
        """
        self.terms = terms
        self.weight = max(1, terms.request)
        self.limit = max(terms.limit, self.weight)
        self.need = min(8_000.0, max(500.0, self.limit * 20.0))

    def refill(self, now: int, *, scale: float = 1.0) -> None:
        """Let the accounts grow up to now. `scale`: what the requests of a GPU are cut by if they exceed it."""
        passed, self._refilled_at = now - self._refilled_at, now
        if self.limit >= 1000 and not self.terms.latency:
            return
        self.level = min(float(self._pace.burst), self.level + passed * self.limit / 1000)
        request = self.weight * scale / 1000
        self.credit = min(self._pace.window * request, self.credit + passed * request)

    def charge(self, us: int, now: int) -> None:
        """Take device time off the accounts, or give it back. A slot has never used more than the time it was there."""
        us = min(us, now - self._began + self._pace.take_away - self.device_us)
        us = max(us, -self.device_us)
        self.device_us += us
        self.virtual += us * 1000 / self.weight
        self.level = max(self.level - us, -self._pace.wait_max * self.limit / 1000)
        self.credit -= us
        if us > 0:
            self.credit = max(self.credit, -self._pace.window * self.weight / 1000)

    def correct(self, us: int, now: int) -> int:
        """Charge what was found out later, and return how much that was.

        It takes back at most what was charged beyond the least cost of turns.
        """
        us = max(us, -int(self.spare))
        self.spare += min(us, 0)
        self.charge(us, now)
        return us

    def paid(self, us: int, least: int, now: int) -> int:
        """Charge a turn: what its process says, and no less than the turn cost the others; return how much that was."""
        cost = max(us, least)
        self.charge(cost, now)
        self.spare = min(self.spare + cost - least, float(self._pace.window))
        return cost

    def is_urgent(self) -> bool:
        """True if its launches come ahead of those of others."""
        return self.terms.latency and self.credit > 0

    def within(self) -> bool:
        """True if the limit leaves room for a turn."""
        return self.limit >= 1000 or self.level >= self.need

    def room_at(self, now: int) -> int:
        """When the limit leaves room for a turn."""
        return now + max(0, int((self.need - self.level) * 1000 / self.limit) + 1)

    def waiting_since(self) -> int:
        return next(iter(self.waiting.values()))[0]

    def serve(self, client: int, now: int) -> None:
        """A process that waits is given a turn."""
        since, _ = self.waiting.pop(client)
        self.waits.append(now - since)
        self.turns += 1

    def account(self, passed: int) -> tuple[int, int]:
        """The unused part of the request and the use beyond it in the elapsed time, in µs."""
        used, self._accounted_us = self.device_us - self._accounted_us, self.device_us
        due = passed * self.terms.request // 1000
        return max(0, due - used), max(0, used - due)
