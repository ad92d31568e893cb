"""The requests of one service, one by one: a queue as routers have it, and replicas that each take so many at once.

Every request has the same arrival and the same work whatever an autoscaler does: only the replicas differ.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf, log

from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH, BUCKETS_MAX
from weft.serving.lateness import AnswerTimes
from weft.simulator.serving.rates import Times

_GROWTH = log(BUCKET_GROWTH)
NEVER = inf  # the latency of a request that was refused or lost


def bucket_of(seconds: float) -> int:
    """The bucket of `weft.messages.serving` into which a time falls."""
    if seconds <= BUCKET_FIRST_SECONDS:
        return 0
    return min(BUCKETS_MAX - 1, ceil(log(seconds / BUCKET_FIRST_SECONDS) / _GROWTH - 1e-9))


class ReplicaServer:
    """One replica that takes requests. A request takes `slowness` times its work there."""

    __slots__ = ("answered", "busy_s", "in_flight", "is_open", "slowness")

    def __init__(self, slowness: float) -> None:
        self.slowness = slowness
        self.is_open = True
        self.in_flight = self.answered = 0
        self.busy_s = 0.0


class Requests:
    """`latency`: of each request, by its place: seconds to its answer; infinite if it was refused or lost; nan as long
    as it waits or is worked on. Counts are as in `ServiceLoad`. `late_last`: requests that cannot be answered within
    `late_s` any more are served after all others, as routers do; else all are served in order of arrival."""

    def __init__(
        self,
        arrivals: Times,
        works: Times,
        *,
        concurrency: int,
        queue: int,
        timeout_s: float,
        late_s: float | None,
        late_last: bool = True,
    ) -> None:
        self.arrivals: Sequence[float] = arrivals.tolist()
        self._works: Sequence[float] = works.tolist()
        self._concurrency, self._bound, self._timeout_s = concurrency, queue, timeout_s
        self._late_s = inf if late_s is None else late_s
        self.latency = [float("nan")] * len(self.arrivals)
        self.started = [float("nan")] * len(self.arrivals)
        self.arrived = self.answered = self.refused = self.failed = self.late = self.retried = 0
        self.waits: dict[int, int] = {}
        self.services: dict[int, int] = {}
        self.totals: dict[int, int] = {}
        self.waiting: deque[int] = deque()
        self.behind: deque[int] = deque()  # late in any case: they wait until no other does
        self._late_last = late_last and late_s is not None
        self._times = AnswerTimes()
        self.servers: dict[int, ReplicaServer] = {}
        self._busy: list[tuple[float, int, int, int, float]] = []  # end, rank, slot, request, begun
        self._idle: list[tuple[int, float, int]] = []  # slot, slowness, rank

    @property
    def next_at(self) -> float:
        """When the next request arrives."""
        return self.arrivals[self.arrived] if self.arrived < len(self.arrivals) else inf

    @property
    def queued(self) -> int:
        return len(self.waiting) + len(self.behind)

    @property
    def oldest(self) -> int | None:
        """The request that has waited longest, by its place."""
        heads = [line[0] for line in (self.waiting, self.behind) if line]
        return min(heads, default=None)

    @property
    def in_flight(self) -> int:
        return sum(server.in_flight for server in self.servers.values())

    def advance(self, to: float) -> None:
        """All that happens until then: arrivals, answers."""
        busy, arrivals, servers = self._busy, self.arrivals, self.servers
        while True:
            end = busy[0][0] if busy else inf
            arrives = arrivals[self.arrived] if self.arrived < len(arrivals) else inf
            if end <= arrives:
                if end > to:
                    break
                _, rank, slot, request, begun = heappop(busy)
                server = servers[rank]
                self._answer(server, request, begun, end)
                if server.is_open:
                    self._free(end, rank, slot, server)
            else:
                if arrives > to:
                    break
                request = self.arrived
                self.arrived += 1
                taken = self._take_idle()
                if taken is not None:
                    self._start(arrives, request, *taken)
                elif self.queued >= self._bound and not self._forget_lost(arrives) and not self._refuse_late(arrives):
                    self.refused += 1
                    self.latency[request] = NEVER
                else:
                    self.waiting.append(request)
        self._forget_lost(to)

    def add(self, rank: int, slowness: float, at: float) -> None:
        """A replica is ready; all that happened before is to be counted."""
        server = self.servers[rank] = ReplicaServer(slowness)
        for slot in range(self._concurrency):
            self._free(at, rank, slot, server)

    def close(self, rank: int) -> None:
        """The replica gets no more requests, and answers those that it has."""
        self.servers[rank].is_open = False

    def remove(self, rank: int) -> None:
        """The replica is gone. Requests that it had go back to the head of the queue: they are tried again."""
        del self.servers[rank]
        again = sorted(entry[3] for entry in self._busy if entry[1] == rank)
        self._busy = [entry for entry in self._busy if entry[1] != rank]
        self._busy.sort()
        for request in reversed(again):
            self.started[request] = float("nan")
            self.waiting.appendleft(request)
        self.retried += len(again)

    def hand_out(self, at: float) -> None:
        """Requests that wait go to replicas with room."""
        while (self.waiting or self.behind) and (taken := self._take_idle()) is not None:
            self._start(at, self._next(at), *taken)

    def _free(self, at: float, rank: int, slot: int, server: ReplicaServer) -> None:
        self._forget_lost(at)
        if self.waiting or self.behind:
            self._start(at, self._next(at), slot, rank, server)
        else:
            heappush(self._idle, (slot, server.slowness, rank))

    def _next(self, at: float) -> int:
        """The request that is served next, of those that wait."""
        self._put_behind(at)
        return self.waiting.popleft() if self.waiting else self.behind.popleft()

    def _put_behind(self, at: float) -> None:
        if not self._late_last:
            return
        since = at - self._times.patience(self._late_s)
        waiting, arrivals = self.waiting, self.arrivals
        while waiting and arrivals[waiting[0]] < since:
            self.behind.append(waiting.popleft())

    def _refuse_late(self, at: float) -> bool:
        """Refuse a request that is late in any case, so that one that is not has room; whether there was one."""
        self._put_behind(at)
        if not self.behind:
            return False
        self.latency[self.behind.popleft()] = NEVER
        self.refused += 1
        return True

    def _take_idle(self) -> tuple[int, int, ReplicaServer] | None:
        """A slot of a replica that has few requests, of those the fastest."""
        while self._idle:
            slot, _, rank = heappop(self._idle)
            server = self.servers.get(rank)
            if server is not None and server.is_open:
                return slot, rank, server
        return None

    def _start(self, at: float, request: int, slot: int, rank: int, server: ReplicaServer) -> None:
        wait = bucket_of(at - self.arrivals[request])
        self.waits[wait] = self.waits.get(wait, 0) + 1
        self.started[request] = at
        server.in_flight += 1
        heappush(self._busy, (at + self._works[request] * server.slowness, rank, slot, request, at))

    def _answer(self, server: ReplicaServer, request: int, begun: float, end: float) -> None:
        total = end - self.arrivals[request]
        self.latency[request] = total
        server.in_flight -= 1
        server.answered += 1
        server.busy_s += end - begun
        self.answered += 1
        self.late += total > self._late_s
        self._times.take(end - begun)
        bucket = bucket_of(end - begun)
        self.services[bucket] = self.services.get(bucket, 0) + 1
        bucket = bucket_of(total)
        self.totals[bucket] = self.totals.get(bucket, 0) + 1

    def _forget_lost(self, now: float) -> bool:
        """Requests that waited too long are lost; whether any was."""
        lost = False
        for line in (self.behind, self.waiting):
            while line and self.arrivals[line[0]] + self._timeout_s <= now:
                self.latency[line.popleft()] = NEVER
                self.failed += 1
                lost = True
        return lost
