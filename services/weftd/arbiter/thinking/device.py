"""One GPU: at most one process has the turn; which is next, and when a turn is revoked or taken away."""

from collections.abc import Iterator

from weftd.arbiter.thinking.first import FirstTurns
from weftd.arbiter.thinking.slot import SharingSlot, TurnPace
from weftd.arbiter.thinking.turns import GpuTurn, Grant, Order, Revoke


class _Seen:
    """The slots of a GPU at one moment: ready for a turn, held back by their limits, connected for latency.

    `running`: the virtual times of those that count; `active`: the requests of those that want or have a turn.
    """

    def __init__(self) -> None:
        self.ready: list[SharingSlot] = []
        self.limited: list[SharingSlot] = []
        self.latency: list[SharingSlot] = []
        self.running: list[float] = []
        self.active = 0

    def is_beside_latency(self, slot: SharingSlot) -> bool:
        return any(other is not slot for other in self.latency)


class SharedGpu:
    """One GPU and the slots on it."""

    def __init__(self, pace: TurnPace, now: int) -> None:
        self.slots: dict[str, SharingSlot] = {}
        self.turn: GpuTurn | None = None
        self._pace = pace
        self._virtual = 0.0
        self._number = 0
        self._first = FirstTurns(pace)
        self._taken: dict[int, tuple[int, int]] = {}  # client: the turn taken from it, and what was charged for it
        self._given = 0  # the bound of what was in flight in the last turn of another than a latency slot, beside one
        self._drained_at = now  # when what was launched in earlier turns has run, as far as known
        self._unused = 0.0  # device time that no slot was charged for, of the last window
        self._refilled_at = now
        self._room_at: int | None = None
        self._weights = 0
        self._accounted_at = now

    # what happens

    def add(self, slot: SharingSlot) -> None:
        """Serve a slot, or serve it on other terms."""
        if slot.name not in self.slots:
            slot.virtual = self._virtual
            self.slots[slot.name] = slot
        self._weights = sum(other.weight for other in self.slots.values())

    def remove(self, name: str, now: int) -> SharingSlot:
        """Forget a slot and its turn."""
        slot = self.slots.pop(name)
        self._weights -= slot.weight
        if self.turn is not None and self.turn.slot is slot:
            self._end(self.turn, 0, now)
        for client in slot.clients:
            self._taken.pop(client, None)
        self._first.drop(slot)
        return slot

    def want(self, slot: SharingSlot, client: int, us: int, now: int) -> None:
        if client in slot.waiting:
            return
        is_active = slot.waiting or (self.turn is not None and self.turn.slot is slot)
        if not is_active and not self._lingers(slot, now):
            self._catch_up(slot, self._virtual_at(now))
        slot.waiting[client] = now, us
        self._first.want(slot, client, us, now)

    def returned(self, slot: SharingSlot, client: int, number: int, us: int, in_flight: int, now: int) -> None:
        """A process gives its turn back, with so much device time used and so much of it left to run.

        No more can have run than time passed. A turn that was taken away is charged for what was used beyond.
        """
        turn = self.turn
        if turn is not None and turn.client == client and turn.number == number:
            in_flight = min(in_flight, us)  # what is left to run is paid for
            self._drained_at = now + in_flight
            self._end(turn, min(us, now - turn.granted_at + in_flight), now)
        elif self._taken.get(client, (None, 0))[0] == number:
            charged = self._taken.pop(client)[1]
            self.corrected(slot, max(0, us - charged), now)
        else:
            self._first.returned(slot, client, number, us, in_flight, now)

    def corrected(self, slot: SharingSlot, us: int, now: int) -> None:
        """A process found out that it used more, or less, than it reported. All slots use no more than there is."""
        self._refill(now)
        self._unused -= slot.correct(min(us, max(0, int(self._unused))), now)

    def gone(self, slot: SharingSlot, client: int, now: int) -> None:
        """A process is gone: its turn is free at once."""
        slot.clients.discard(client)
        slot.known.discard(client)
        slot.waiting.pop(client, None)
        self._taken.pop(client, None)
        self._first.forget(client)
        if self.turn is not None and self.turn.client == client:
            self._end(self.turn, 0, now)

    # what follows

    def decide(self, now: int) -> Iterator[Order]:
        seen = self._look(now)
        self._advance(seen)
        turn = self.turn
        if turn is not None and turn.revoked_at is not None and now - turn.revoked_at >= self._pace.take_away:
            self._take_away(turn, now)
        elif turn is not None and turn.revoked_at is None:
            yield from self._hold_to_terms(turn, seen, now)
        if self.turn is None and seen.ready:
            yield self._grant(self._next(seen, now), seen, now)
        for slot, client in self._first.wanted(seen.ready):
            self._number += 1
            yield self._first.grant(slot, client, self._number, now)
        yield from self._first.revoke(now)
        self._room_at = min((slot.room_at(now) for slot in seen.limited), default=None)

    def next_at(self) -> int | None:
        """When `decide` is to be called again though nothing happens; None if never."""
        times = [at for at in (self._room_at, self._first.next_at()) if at is not None]
        if (turn := self.turn) is not None:
            times.append(turn.revoke_at if turn.revoked_at is None else turn.revoked_at + self._pace.take_away)
        return min(times, default=None)

    def account(self, now: int) -> None:
        """Note what each slot borrowed and lent since the last call."""
        passed, self._accounted_at = now - self._accounted_at, now
        accounts = {name: slot.account(passed) for name, slot in self.slots.items()}
        left, beyond = (sum(account[part] for account in accounts.values()) for part in (0, 1))
        for name, slot in self.slots.items():
            slot.borrowed_us += accounts[name][1]
            slot.lent_us += accounts[name][0] * min(left, beyond) // max(1, left)

    # parts of it

    def _look(self, now: int) -> _Seen:
        """Let the accounts of all slots grow, and sort the slots by what they may do."""
        seen = _Seen()
        scale = min(1.0, 1000 / max(1, self._weights))
        held = self.turn.slot if self.turn is not None else None
        for slot in self.slots.values():
            if slot.waiting:
                slot.refill(now, scale=scale)
                seen.active += slot.weight
                within = slot.within()
                if within and not slot.terms.hold:
                    if slot.held_back:  # what it might not use is not owed to it
                        self._catch_up(slot, self._virtual_at(now))
                    seen.ready.append(slot)
                    seen.running.append(slot.virtual)
                elif not slot.terms.hold:
                    seen.limited.append(slot)
                slot.held_back = slot.terms.hold or not within
            elif slot is held:
                seen.active += slot.weight
            elif self._lingers(slot, now):
                seen.running.append(slot.virtual)
            if slot.terms.latency and slot.clients:
                seen.latency.append(slot)
        if held is not None:
            seen.running.append(held.virtual)
        return seen

    def _advance(self, seen: _Seen) -> None:
        """Set the virtual time of the GPU: of the slots that may run, the least. It never goes back.

        A slot that ran just now counts, too: it may be between two launches.
        """
        self._virtual = max(self._virtual, min(seen.running, default=0.0))

    def _hold_to_terms(self, turn: GpuTurn, seen: _Seen, now: int) -> Iterator[Revoke]:
        if turn.contended_at is None and _others_wait(turn.slot, turn.client, seen):
            turn.contended_at = now
            turn.revoke_at = min(turn.revoke_at, max(now, turn.granted_at + self._quantum(turn.slot, seen)))
        overtaken = not turn.slot.is_urgent() and any(slot.is_urgent() for slot in seen.ready)
        if now >= turn.revoke_at or turn.slot.terms.hold or overtaken:
            turn.revoked_at = now
            yield Revoke(turn.client, turn.number)

    def _take_away(self, turn: GpuTurn, now: int) -> None:
        turn.slot.overruns += 1
        cost = now - turn.granted_at
        self._taken[turn.client] = turn.number, cost
        self._end(turn, cost, now)

    def _end(self, turn: GpuTurn, us: int, now: int) -> None:
        """Charge a turn that is over: what is reported, and no less than half the time that others waited for it."""
        held = 0 if turn.contended_at is None else now - turn.contended_at
        self._refill(now)
        self._unused -= turn.slot.paid(us, max(0, held - turn.overlap) // 2, now)
        turn.slot.refill(now)  # afterwards: the accounts hold no more than a turn, which must not cut off what it cost
        turn.slot.ended_at = now
        turn.slot.virtual = min(turn.slot.virtual, self._virtual + self._pace.debt * 1000 / turn.slot.weight)
        self.turn = None

    def _grant(self, slot: SharingSlot, seen: _Seen, now: int) -> Grant:
        client, (_, us) = next(iter(slot.waiting.items()))
        contended = _others_wait(slot, client, seen)
        quota = self._quantum(slot, seen) if contended else self._pace.alone
        if slot.limit < 1000:
            quota = min(quota, max(int(slot.level), int(slot.need)))
        slot.serve(client, now)
        self._number += 1
        self._taken.pop(client, None)
        self.turn = GpuTurn(
            number=self._number,
            client=client,
            slot=slot,
            granted_at=now,
            revoke_at=now + quota + self._pace.grace,
            overlap=max(0, self._drained_at - now),
            contended_at=now if contended else None,
        )
        return Grant(client, self._number, quota, self._in_flight(slot, us, seen))

    def _in_flight(self, slot: SharingSlot, us: int, seen: _Seen) -> int:
        """How much a process may have in flight, one of whose launches waits and takes `us`.

        A hook that wants to measure a kernel waits as long as its own bound for the work of others to be over: no
        process is given less than the one before it.
        """
        pace = self._pace
        least = pace.beside_latency_in_flight + pace.ahead
        if slot.terms.latency:
            return max(least, self._given)
        if not seen.is_beside_latency(slot):
            return pace.in_flight
        self._given = min(pace.in_flight, max(us, pace.beside_latency_in_flight) + pace.ahead)
        return self._given

    def _refill(self, now: int) -> None:
        self._unused = min(float(self._pace.window), self._unused + now - self._refilled_at)
        self._refilled_at = now

    def _next(self, seen: _Seen, now: int) -> SharingSlot:
        if urgent := [slot for slot in seen.ready if slot.is_urgent()]:
            return min(urgent, key=_order)
        if starving := [slot for slot in seen.ready if now - slot.waiting_since() >= self._pace.wait_max]:
            return min(starving, key=lambda slot: (slot.waiting_since(), slot.name))
        return min(seen.ready, key=_order)

    def _lingers(self, slot: SharingSlot, now: int) -> bool:
        return now - slot.ended_at < self._pace.linger

    def _quantum(self, slot: SharingSlot, seen: _Seen) -> int:
        """A slot's part of a round, shared by its processes where they are many."""
        pace = self._pace
        if slot.terms.latency:
            return pace.latency_quantum
        part = pace.round * slot.weight // max(1, seen.active) * 8 // max(8, len(slot.waiting))
        most = pace.beside_latency_quantum if seen.is_beside_latency(slot) else pace.quantum_max
        return max(pace.quantum_min, min(part, most))

    def _virtual_at(self, now: int) -> float:
        """The virtual time of the GPU; during a turn it goes on by the requests of all slots that want one."""
        if (turn := self.turn) is None:
            return self._virtual
        contending = (
            slot for slot in self.slots.values() if slot is turn.slot or (slot.waiting and not slot.held_back)
        )
        active = sum(slot.weight for slot in contending)
        return self._virtual + (now - turn.granted_at) * 1000 / max(1, active)

    def _catch_up(self, slot: SharingSlot, virtual: float) -> None:
        slot.virtual = max(slot.virtual, virtual - self._pace.credit * 1000 / slot.weight)


def _others_wait(slot: SharingSlot, client: int, seen: _Seen) -> bool:
    """True if a process other than this one of that slot could have a turn."""
    if any(other is not slot for other in seen.ready):
        return True
    return len(slot.waiting) > (client in slot.waiting)


def _order(slot: SharingSlot) -> tuple[float, str]:
    return slot.virtual, slot.name
