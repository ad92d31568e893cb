"""The arbiter's core: all GPUs of a node, their slots, and the connections of the slots' processes.

What happens comes in by methods, each with the time in whole µs of one monotonic clock; `decide` returns what follows.
"""

from weftd.arbiter.thinking.device import SharedGpu
from weftd.arbiter.thinking.slot import SharingSlot, Terms, TurnPace
from weftd.arbiter.thinking.turns import Order


class Arbiter:
    """The same calls give the same orders."""

    def __init__(self, pace: TurnPace | None = None) -> None:
        self._pace = pace or TurnPace()
        self._devices: dict[str, SharedGpu] = {}
        self._slots: dict[str, tuple[SharedGpu, SharingSlot]] = {}
        self._clients: dict[int, tuple[SharedGpu, SharingSlot]] = {}
        self._due: dict[SharedGpu, int | None] = {}  # when each GPU is to be decided on next
        self._touched: set[SharedGpu] = set()

    def serve(self, name: str, terms: Terms, now: int) -> None:
        """A slot is there, or has other terms. On another GPU it begins anew, with its connections."""
        clients: set[int] = set()
        if name in self._slots:
            device, slot = self._slots[name]
            if slot.terms.gpu == terms.gpu:
                slot.refill(now)
                slot.hold_to(terms)
                device.add(slot)
                self._touched.add(device)
                return
            clients = slot.clients
            self.drop(name, now)
        device = self._devices.setdefault(terms.gpu, SharedGpu(self._pace, now))
        slot = SharingSlot(name, terms, self._pace, now)
        device.add(slot)
        self._slots[name] = device, slot
        for client in clients:
            self.connected(client, name)

    def drop(self, name: str, now: int) -> None:
        """A slot is gone, and with it its connections."""
        if name not in self._slots:
            return
        device, slot = self._slots.pop(name)
        device.remove(name, now)
        for client in slot.clients:
            self._clients.pop(client, None)
        self._touched.add(device)
        if not device.slots:
            self._devices.pop(slot.terms.gpu)
            self._due.pop(device, None)
            self._touched.discard(device)

    def connected(self, client: int, name: str) -> None:
        """A process of the slot is connected. Numbers of connections are never used again."""
        device, slot = self._slots[name]
        slot.clients.add(client)
        self._clients[client] = device, slot

    def gone(self, client: int, now: int) -> None:
        if (known := self._clients.pop(client, None)) is not None:
            device, slot = known
            device.gone(slot, client, now)
            self._touched.add(device)

    def want(self, client: int, us: int, now: int) -> None:
        """A process waits with a launch of about so many µs."""
        if (known := self._clients.get(client)) is not None:
            device, slot = known
            device.want(slot, client, us, now)
            self._touched.add(device)

    def returned(self, client: int, turn: int, us: int, in_flight: int, now: int) -> None:
        """A process gives its turn back: `us` of device time to charge, of which `in_flight` are still to run."""
        if (known := self._clients.get(client)) is not None:
            device, slot = known
            device.returned(slot, client, turn, us, in_flight, now)
            self._touched.add(device)

    def charge(self, client: int, us: int, now: int) -> None:
        if (known := self._clients.get(client)) is not None:
            device, slot = known
            device.corrected(slot, us, now)

    def decide(self, now: int) -> list[Order]:
        """Messages to send now, in this order."""
        orders: list[Order] = []
        due = [device for device, at in self._due.items() if at is not None and at <= now]
        for device in {**dict.fromkeys(due), **dict.fromkeys(self._in_order(self._touched))}:
            orders += device.decide(now)
            self._due[device] = device.next_at()
        self._touched.clear()
        return orders

    def next_at(self) -> int | None:
        """When `decide` is to be called though nothing happens; None if never."""
        return min((at for at in self._due.values() if at is not None), default=None)

    def account(self, now: int) -> None:
        """Note what was lent and borrowed since the last call."""
        for device in self._devices.values():
            device.account(now)

    def slot(self, name: str) -> SharingSlot | None:
        """The state of a slot, read-only."""
        known = self._slots.get(name)
        return known[1] if known is not None else None

    def _in_order(self, devices: set[SharedGpu]) -> list[SharedGpu]:
        return [device for device in self._devices.values() if device in devices] if len(devices) > 1 else list(devices)
