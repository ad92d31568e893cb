"""One slot as it is served: its folder, its connections, what it may send, and what was seen of it."""

from typing import NamedTuple

from weft.sharing.pages import SlotUse
from weft.sharing.records import SlotSeen, SlotShare
from weftd.arbiter.connection import HookConnection, Named
from weftd.arbiter.folder import SlotFolder
from weftd.arbiter.thinking.slot import SharingSlot, Terms

UNNAMED_SECONDS_MAX = 10.0
"""An entry of the use page that no connection names, and whose process shows no sign of life, is freed after this."""

CONNECTIONS_PER_SECOND_MAX = 500


class Sign(NamedTuple):
    """The last content of an entry, and the time of its change in seconds."""

    said: tuple[int, ...]
    since: float


class ServedSlot:
    def __init__(self, folder: SlotFolder, share: SlotShare) -> None:
        self.folder, self.share = folder, share
        self.clients: dict[int, HookConnection] = {}
        self.refused = self.accepted = 0  # connections
        self.resting = False  # its listener, after too many connections
        self._connected_before = 0
        self._messages_left = 0.0
        self._signs: dict[int, Sign] = {}
        self._seen: SlotSeen | None = None

    @property
    def terms(self) -> Terms:
        share = self.share
        return Terms(gpu=share.gpu, request=share.request, limit=share.limit, latency=share.latency, hold=share.hold)

    def may_send(self, messages: int) -> bool:
        """Count messages. False when the slot has sent more than it may."""
        self._messages_left -= messages
        return self._messages_left >= 0

    def refill(self, messages: float, most: float) -> None:
        self._messages_left = min(most, max(0.0, self._messages_left) + messages)

    def is_flooded(self) -> bool:
        """True if more connections were made since the last look than processes of a run would make."""
        return self.refused + self.accepted - self._connected_before > CONNECTIONS_PER_SECOND_MAX

    def name_entry(self, client: HookConnection, place: int) -> None:
        """Note the entry of the use page that a process calls its own. Raises OSError."""
        entry = self.folder.use.entry(place)
        client.named = None if entry is None else Named(entry.place, entry.pid, entry.generation)

    def free_entry(self, client: HookConnection) -> None:
        """Free the entry of a process that is gone, unless another process has it by now. Raises OSError."""
        named = client.named
        if named is None or any(other.named == named for other in self.clients.values() if other is not client):
            return
        entry = self.folder.use.entry(named.place)
        if entry is not None and (entry.pid, entry.generation) == (named.pid, named.generation):
            self.folder.use.clear(named.place)

    def sweep(self, use: SlotUse, now: float) -> None:
        """Free entries of processes that ended while no arbiter was there, or before they connected. Raises OSError."""
        named = {client.named.place for client in self.clients.values() if client.named is not None}
        signs: dict[int, Sign] = {}
        for entry in use.entries:
            if entry.place in named:
                continue
            said = tuple(entry[1:])
            sign = self._signs.get(entry.place)
            if sign is None or sign.said != said:
                signs[entry.place] = Sign(said, now)
            elif now - sign.since < UNNAMED_SECONDS_MAX:
                signs[entry.place] = sign
            else:
                self.folder.use.clear(entry.place)
        self._signs = signs

    def look(self, slot: SharingSlot, now: float, now_ns: int) -> None:
        """Once a second: free what is left over, and write what was seen if it changed. Raises OSError."""
        self._connected_before = self.refused + self.accepted
        use = self.folder.use.read()
        self.sweep(use, now)
        seen = _seen(self, slot, use)
        if self._seen != seen:
            self.folder.write_seen(_at(seen, now_ns))
            self._seen = seen


def _at(seen: SlotSeen, now_ns: int) -> SlotSeen:
    return SlotSeen(**{**{name: getattr(seen, name) for name in seen.__struct_fields__}, "at_ns": now_ns})


def _seen(served: ServedSlot, slot: SharingSlot, use: SlotUse) -> SlotSeen:
    waits = sorted(slot.waits)
    return SlotSeen(
        at_ns=0,
        device_us=slot.device_us,
        borrowed_us=slot.borrowed_us,
        lent_us=slot.lent_us,
        turns=slot.turns,
        wait_p50_us=waits[len(waits) // 2] if waits else 0,
        wait_p99_us=waits[len(waits) * 99 // 100] if waits else 0,
        overruns=slot.overruns,
        connections=len(served.clients),
        pids=tuple(sorted(client.pid for client in served.clients.values())),
        refused=served.refused,
        memory=use.memory,
        denied=use.denied,
        given_up=use.waits_given_up,
        launches=use.launches,
        blocked_ns=use.blocked_ns,
        longest_kernel_us=use.longest_kernel_us,
    )
