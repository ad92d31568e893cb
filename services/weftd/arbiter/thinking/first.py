"""First turns: the first short launch of a process runs beside the turn of another process.

Where hundreds of processes start together, each would otherwise wait for the turns of all the others to run one short
kernel. What they use is charged. Each connection has at most one, and each slot few in ten seconds.
"""

from collections.abc import Collection, Iterator

from weftd.arbiter.thinking.slot import SharingSlot, TurnPace
from weftd.arbiter.thinking.turns import GpuTurn, Grant, Revoke

PERIOD = 10_000_000


class FirstTurns:
    """Chooses the first turns on one GPU."""

    def __init__(self, pace: TurnPace) -> None:
        self._pace = pace
        self._wanted: dict[int, SharingSlot] = {}
        self._turns: dict[int, GpuTurn] = {}
        self._left: dict[str, tuple[int, int]] = {}  # slot: since when a period runs, and how many it had in it

    def want(self, slot: SharingSlot, client: int, us: int, now: int) -> None:
        """A process waits. It is meant if this is the first time, its launch is short, and its slot has some left."""
        if client in slot.known:
            return
        slot.known.add(client)
        since, had = self._left.get(slot.name, (now, 0))
        if now - since >= PERIOD:
            since, had = now, 0
        if us <= self._pace.first and had < self._pace.firsts:
            self._left[slot.name] = since, had + 1
            self._wanted[client] = slot

    def wanted(self, ready: Collection[SharingSlot]) -> list[tuple[SharingSlot, int]]:
        """The processes that wait for their first turn and may run. The others wait as any process does."""
        if not self._wanted:
            return []
        found = [(slot, client) for client, slot in self._wanted.items() if slot in ready and client in slot.waiting]
        self._wanted.clear()
        return found

    def grant(self, slot: SharingSlot, client: int, number: int, now: int) -> Grant:
        slot.serve(client, now)
        revoke_at = now + self._pace.first + self._pace.grace
        self._turns[client] = GpuTurn(number, client, slot, now, revoke_at)
        return Grant(client, number, self._pace.first, self._pace.first)

    def returned(self, slot: SharingSlot, client: int, number: int, us: int, in_flight: int, now: int) -> None:
        turn = self._turns.get(client)
        if turn is not None and turn.number == number:
            del self._turns[client]
            slot.paid(min(us, now - turn.granted_at + min(us, in_flight)), 0, now)

    def revoke(self, now: int) -> Iterator[Revoke]:
        """Revoke the turns that last too long; those that are not returned then are forgotten."""
        for client, turn in list(self._turns.items()):
            if turn.revoked_at is None and (now >= turn.revoke_at or turn.slot.terms.hold):
                turn.revoked_at = now
                yield Revoke(client, turn.number)
            elif turn.revoked_at is not None and now - turn.revoked_at >= self._pace.take_away:
                del self._turns[client]
                turn.slot.paid(self._pace.first, 0, now)

    def next_at(self) -> int | None:
        """When `revoke` is to be called again though nothing happens; None if never."""
        take_away = self._pace.take_away
        times = (
            turn.revoke_at if turn.revoked_at is None else turn.revoked_at + take_away for turn in self._turns.values()
        )
        return min(times, default=None)

    def drop(self, slot: SharingSlot) -> None:
        """A slot is gone, and its processes with it."""
        self._left.pop(slot.name, None)
        for client in slot.clients:
            self.forget(client)

    def forget(self, client: int) -> None:
        """A process is gone."""
        self._wanted.pop(client, None)
        self._turns.pop(client, None)
