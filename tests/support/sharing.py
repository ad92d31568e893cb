"""A GPU, processes under a hook, and the arbiter's core, all in virtual time. All times in µs.

The GPU runs kernels in the order of their arrival, one at a time. A process launches as the hook does: within the quota
of its turn, within the bound of what is in flight, and gives the turn back when it has been idle for a millisecond.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from itertools import count, pairwise

from weftd.arbiter.thinking.core import Arbiter
from weftd.arbiter.thinking.slot import Terms
from weftd.arbiter.thinking.turns import Grant, Revoke

IDLE = 1_000
SECOND = 1_000_000


class Node:
    """One GPU, `gpu`, and the arbiter's core. A message takes `delay` µs, drawn from the seed."""

    def __init__(self, *, seed: int = 0, delay: tuple[int, int] = (50, 200)) -> None:
        self.now = 0
        self.core = Arbiter()
        self.processes: list[Process] = []
        self.ran: list[tuple[int, int, str]] = []  # begin, end, slot
        self._free_at = 0
        self._random, self._delay = random.Random(seed), delay
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order, self._numbers = count(), count(1)
        self._clients: dict[int, Process] = {}
        self._wakes: set[int] = set()

    def serve(self, name: str, request: int, **more: bool | int) -> None:
        self.core.serve(name, Terms(gpu="gpu", request=request, **more), self.now)  # type: ignore[arg-type]
        self._decide()

    def at(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self.now), next(self._order), what))

    def attach(self, process: "Process") -> None:
        process.client = next(self._numbers)
        self._clients[process.client] = process
        self.core.connected(process.client, process.slot)
        self.processes.append(process)

    def kill(self, process: "Process") -> None:
        """As the kernel ends a process: its connection ends. What it launched runs on."""
        process.dead = True
        self._clients.pop(process.client)
        self.at(self.now + self._some(), lambda: self._tell(lambda: self.core.gone(process.client, self.now)))

    def run(self, until: int) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def launch(self, slot: str, us: int) -> int:
        """Run a kernel after those before it; when it ends."""
        begin = max(self.now, self._free_at)
        self._free_at = begin + us
        self.ran.append((begin, self._free_at, slot))
        return self._free_at

    def say(self, process: "Process", *messages: Callable[[], None]) -> None:
        """Messages of a process, on their way after those before it. One in twenty times they come apart."""
        process.said_until = max(process.said_until, self.now + self._some())
        if self._random.random() < 0.05:
            for message in messages:
                self.at(process.said_until, lambda message=message: self._tell(message))
        else:
            self.at(process.said_until, lambda: self._tell(*messages))

    def used(self, slot: str, begin: int, end: int) -> int:
        """Device time of a slot between two times."""
        return sum(max(0, min(b, end) - max(a, begin)) for a, b, name in self.ran if name == slot)

    def shares(self, slot: str, begin: int, end: int, *, step: int = SECOND // 4) -> Iterator[float]:
        """The part of the GPU that a slot had in every second between two times, a second beginning each `step`."""
        return (self.used(slot, at, at + SECOND) / SECOND for at in range(begin, end - SECOND + 1, step))

    def longest_pause(self, slot: str, begin: int, end: int) -> int:
        times = sorted((a, b) for a, b, name in self.ran if name == slot and b > begin and a < end)
        return max(after[0] - before[1] for before, after in pairwise([(begin, begin), *times, (end, end)]))

    def _tell(self, *messages: Callable[[], None]) -> None:
        for message in messages:
            message()
        self._decide()

    def _decide(self) -> None:
        for order in self.core.decide(self.now):
            if (process := self._clients.get(order.client)) is not None:
                self.at(self.now + self._some(), lambda process=process, order=order: process.hear(order))
        if (at := self.core.next_at()) is not None and at not in self._wakes:
            self._wakes.add(at)
            self.at(at, lambda: self._wake(at))

    def _wake(self, at: int) -> None:
        self._wakes.discard(at)
        self._decide()

    def _some(self) -> int:
        return self._random.randint(*self._delay)


class Process:
    """Launches kernels of `kernel` µs without an end, or `burst` of them every `every` µs. Its hook obeys the turns."""

    def __init__(self, node: Node, slot: str, *, kernel: int = 1_000, burst: int = 0, every: int = 0) -> None:
        self.node, self.slot, self.kernel = node, slot, kernel
        self.client = self.said_until = 0
        self.dead = self.deaf = False
        self.pending = 0 if every else 1 << 60
        self.delays: list[int] = []  # from the time a burst was wanted to its end
        self.waits: list[int] = []  # from a WANT to the GRANT
        self._turn: Grant | None = None
        self._launched = 0
        self._ends: list[int] = []
        self._wanted_at: int | None = None
        self._burst, self._every = burst, every
        node.attach(self)
        node.at(node.now, self._begin)

    def _begin(self) -> None:
        if self.dead:
            return
        if self._every:
            self.pending += self._burst
            self._asked_at = self.node.now
            self.node.at(self.node.now + self._every, self._begin)
        self._go_on()

    def hear(self, order: Grant | Revoke) -> None:
        if self.dead or self.deaf:
            return
        if isinstance(order, Grant):
            assert self._turn is None
            self._turn, self._launched = order, 0
            if self._wanted_at is not None:
                self.waits.append(self.node.now - self._wanted_at)
                self._wanted_at = None
            self._go_on()
        elif self._turn is not None and self._turn.turn == order.turn:
            self._give_back()

    def _go_on(self) -> None:
        now = self.node.now
        if self.dead or self.deaf:
            return
        self._ends = [end for end in self._ends if end > now]
        if self._turn is None:
            if self.pending and self._wanted_at is None:
                self._want()
            return
        while self.pending and self._launched < self._turn.quota and self._in_flight() < self._turn.in_flight:
            self.pending -= 1
            self._launched += self.kernel
            self._ends.append(self.node.launch(self.slot, self.kernel))
            if self._every and not self.pending:
                self.delays.append(self._ends[-1] - self._asked_at)
        if self._launched >= self._turn.quota:
            self._give_back()
        elif self.pending:
            wake = self._ends[-1] - self._turn.in_flight + 1 if self._ends else now + 10
            self.node.at(max(wake, now + 10), self._go_on)
        else:
            idle_at, turn = (self._ends[-1] if self._ends else now) + IDLE, self._turn.turn
            self.node.at(idle_at, lambda: self._idle(turn))

    def _in_flight(self) -> int:
        """Of its own: what it launched and has not ended."""
        return min(len(self._ends) * self.kernel, max(0, (self._ends[-1] if self._ends else 0) - self.node.now))

    def _idle(self, turn: int) -> None:
        if self._turn is not None and self._turn.turn == turn and not self.pending and not self.dead:
            if self._ends and self._ends[-1] + IDLE > self.node.now:
                return
            self._give_back()

    def _give_back(self) -> None:
        assert self._turn is not None
        node, turn, used, client = self.node, self._turn.turn, self._launched, self.client
        self._turn = None
        left = self._in_flight()
        returned = lambda: node.core.returned(client, turn, used, left, node.now)  # noqa: E731
        if self.pending:
            self._want(returned)
        else:
            node.say(self, returned)

    def _want(self, *after: Callable[[], None]) -> None:
        client = self.client
        self._wanted_at = self.node.now
        self.node.say(self, lambda: self.node.core.want(client, self.kernel, self.node.now), *after)
