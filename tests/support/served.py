"""A small model of one service: Poisson arrivals, one queue, replicas that take time to start; one autoscaler decides.

Replicas are alike. A request is served by the replica that is free first. Answers count when they begin to be served.
Cheap enough for a day in seconds; the whole simulator is `weft.simulator`.
"""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import ceil, log2
from random import Random

from weft.messages.serving import BUCKETS_MAX
from weft.serving.loads import Autoscaler, Goal, ReplicaLoad, ServiceLoad, Sized


def bucket(seconds: float) -> int:
    return 0 if seconds <= 0.001 else min(BUCKETS_MAX - 1, max(0, ceil(4 * log2(seconds / 0.001))))


class Served:
    """`service`: draws the seconds of one request on a whole GPU. `sizes`: every change, as (when, from, to)."""

    def __init__(
        self,
        autoscaler: Autoscaler,
        goal: Goal,
        *,
        rate: Callable[[float], float],
        service: Callable[[Random], float],
        start: float = 20.0,
        wanted: int = 1,
        room: int = 10_000,
        seed: int = 1,
        at: float = 1_000_000.0,
        shares_work: bool = True,
    ) -> None:
        self.autoscaler, self.goal = autoscaler, goal
        self._rate, self._service, self._start, self._room = rate, service, start, room
        self._random = Random(seed)
        self.began = self.at = at
        self.wanted = wanted
        self.share = goal.share
        self._shares_work = shares_work
        self._next_rank = 0
        self._replicas: dict[int, tuple[float, float]] = {}  # began, ready
        self._free: list[tuple[float, int]] = []  # slots: when each is free, of which replica
        self._queue: deque[float] = deque()
        self._arrival: float | None = None
        self.arrived = self.answered = self.late = 0
        self._waits: dict[int, int] = {}
        self._services: dict[int, int] = {}
        self._totals: dict[int, int] = {}
        self._answered: dict[int, int] = {}
        self.sizes: list[tuple[float, int, int]] = []
        self.shares: list[tuple[float, int]] = []
        self.gpu_seconds = 0.0
        self.last: Sized | None = None
        self._grow()
        for rank in self._replicas:  # those of the beginning are ready
            self._replicas[rank] = (at - start, at)
        self._free = [(at, rank) for _, rank in self._free]
        heapify(self._free)

    def run(self, seconds: float, *, tick: float = 1.0) -> None:
        until = self.at + seconds
        while self.at < until - 1e-9:
            self._serve(self.at + tick)
            self.at += tick
            self.gpu_seconds += tick * len(self._replicas) * (1.0 if self.share is None else self.share / 1000)
            self.last = self.autoscaler.decide(self.load())
            self._apply(self.last)

    def load(self) -> ServiceLoad:
        busy: dict[int, int] = {}
        for free, rank in self._free:
            if free > self.at and self._replicas[rank][1] <= self.at:
                busy[rank] = busy.get(rank, 0) + 1
        replicas = tuple(
            ReplicaLoad(
                rank=rank,
                ready=ready <= self.at,
                in_flight=busy.get(rank, 0),
                answered=self._answered.get(rank, 0),
                share=self.share,
                started_at=began,
                ready_at=ready if ready <= self.at else None,
            )
            for rank, (began, ready) in self._replicas.items()
        )
        return ServiceLoad(
            at=self.at,
            replicas=replicas,
            wanted=self.wanted,
            arrived=self.arrived,
            answered=self.answered,
            late=self.late,
            queued=len(self._queue),
            oldest_wait=self.at - self._queue[0] if self._queue else 0.0,
            in_flight=sum(busy.values()),
            waits=dict(self._waits),
            services=dict(self._services),
            totals=dict(self._totals),
        )

    @property
    def reversals(self) -> int:
        """How often the size went down after it went up, or up after it went down."""
        ways = [after > before for _, before, after in self.sizes]
        return sum(one is not other for one, other in pairwise(ways))

    def _serve(self, until: float) -> None:
        self._arrive(until)
        queue, free = self._queue, self._free
        speed = 1.0 if self.share is None or not self._shares_work else self.share / 1000
        while queue and free:
            start = max(queue[0], free[0][0])
            if start >= until:
                break
            arrived = queue.popleft()
            _, rank = heappop(free)
            if rank not in self._replicas:
                queue.appendleft(arrived)
                continue
            took = self._service(self._random) / speed
            heappush(free, (start + took, rank))
            total = start - arrived + took
            self.answered += 1
            self._answered[rank] = self._answered.get(rank, 0) + 1
            if self.goal.latency is not None and total > self.goal.latency:
                self.late += 1
            for counts, seconds in ((self._waits, start - arrived), (self._services, took), (self._totals, total)):
                place = bucket(seconds)
                counts[place] = counts.get(place, 0) + 1

    def _arrive(self, until: float) -> None:
        at = self.at
        while True:
            if self._arrival is None:
                rate = self._rate(at - self.began)
                if rate <= 0.0:
                    return
                self._arrival = at + self._random.expovariate(rate)
            if self._arrival >= until:
                # Memoryless: drawn anew in the next tick, at that time's rate.
                self._arrival = None
                return
            at = self._arrival
            self.arrived += 1
            self._queue.append(at)
            self._arrival = None

    def _apply(self, sized: Sized) -> None:
        if sized.share is not None and sized.share != self.share:
            self.share = sized.share
            self.shares.append((self.at, sized.share))
        if sized.replicas != self.wanted:
            self.sizes.append((self.at, self.wanted, sized.replicas))
            self.wanted = sized.replicas
        self._grow()
        for rank in sorted(self._replicas, reverse=True)[: max(0, len(self._replicas) - self.wanted)]:
            del self._replicas[rank]
            self._free = [slot for slot in self._free if slot[1] != rank]
            heapify(self._free)

    def _grow(self) -> None:
        while len(self._replicas) < min(self.wanted, self._room):
            rank, self._next_rank = self._next_rank, self._next_rank + 1
            ready = self.at + self._start
            self._replicas[rank] = (self.at, ready)
            for _ in range(self.goal.concurrency):
                heappush(self._free, (ready, rank))
