"""One service over time: its replicas start, take requests, drain and go, as many as its autoscaler wants."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

import numpy as np
from msgspec import Struct

from weft.domain.job import Allocation
from weft.serving.loads import Autoscaler, ReplicaLoad, ServiceLoad, Sized
from weft.simulator.counted import Counted, Trajectory
from weft.simulator.serving.queueing import Requests
from weft.simulator.serving.rates import Times
from weft.simulator.serving.service import TraceService

WINDOW_S = 10.0


class SimulatedReplica(Struct, kw_only=True):
    """Where one replica is, and since when. `lender`: the job that lent its GPU, if one did."""

    rank: int
    allocation: Allocation
    share: int | None
    score: float
    started_at: float
    ready_at: float
    is_ready: bool = False
    draining: bool = False
    lender: str | None = None
    part: int | None = None  # thousandths of its GPU's time that it gets, at least its share
    since: float = 0.0  # up to when its GPU-seconds are counted


class SimulatedService:
    """`wanted`: how many replicas its autoscaler wants, with `share` of a GPU each."""

    def __init__(
        self,
        trace: TraceService,
        autoscaler: Autoscaler,
        *,
        arrivals: Times,
        works: Times,
        starts: Iterator[float],
    ) -> None:
        self.trace = trace
        self.replicas: dict[int, SimulatedReplica] = {}
        self.wanted, self.share = trace.want, trace.share
        self._demand: list[tuple[float, int, int | None]] = [(0.0, trace.want, trace.share)]
        self._held: list[tuple[float, int, int]] = []
        self.requests = Requests(
            arrivals,
            works,
            concurrency=trace.concurrency,
            queue=trace.queue,
            timeout_s=trace.timeout_s,
            late_s=trace.latency_s,
            late_last=trace.late_last,
        )
        self.changes: list[tuple[float, float]] = []  # time, and how the capacity changed
        self.loans = self.evicted_jobs = self.starts = 0
        self.loan_lost_gpu_s = 0.0
        self.unattainable = ""
        self._autoscaler = autoscaler
        self._starts = starts
        self._next_rank = 0
        self._gpu_s = self._borrowed_gpu_s = self._short_s = 0.0
        self._looked_at = 0.0
        self._cold: list[int] = []  # requests that came while no replica was ready, by place
        self._ended_at = inf

    # replicas

    @property
    def staying(self) -> list[SimulatedReplica]:
        """Those that are not draining, by rank."""
        return [replica for replica in self.replicas.values() if not replica.draining]

    @property
    def serves(self) -> bool:
        return any(replica.is_ready and not replica.draining for replica in self.replicas.values())

    def new_rank(self) -> int:
        self._next_rank += 1
        return self._next_rank - 1

    def place(self, allocation: Allocation, now: float, *, score: float, after_s: float, lender: str | None) -> None:
        """A replica begins to start there, once `after_s` have passed."""
        self.starts += 1
        rank = allocation.rank
        self.replicas[rank] = SimulatedReplica(
            rank=rank,
            allocation=allocation,
            share=None if allocation.share is None else allocation.share.request,
            score=score,
            started_at=now,
            ready_at=now + after_s + next(self._starts),
            lender=lender,
            part=None if allocation.share is None else allocation.share.request,
            since=now,
        )
        self._note(now)

    def begin_ready(self, allocation: Allocation, now: float, *, score: float) -> None:
        """A replica that was there, and ready, before the simulation began."""
        self.place(allocation, now, score=score, after_s=0.0, lender=None)
        self.starts -= 1
        self._ready(self.replicas[allocation.rank], now)

    def reshare(self, replica: SimulatedReplica, allocation: Allocation, now: float) -> None:
        """Change the share of its GPU that the replica holds."""
        self._count(replica, now)
        assert allocation.share is not None
        replica.allocation, replica.share = allocation, allocation.share.request

    def retime(self, replica: SimulatedReplica, part: int) -> None:
        """The replica gets another part of its GPU's time; requests that begin from now on feel it."""
        replica.part = part
        server = self.requests.servers.get(replica.rank)
        if server is not None:
            server.slowness = self.trace.slowness(part, replica.score)

    def drain(self, replica: SimulatedReplica) -> None:
        replica.draining = True
        if replica.is_ready:
            self.requests.close(replica.rank)

    def gone(self, now: float) -> list[SimulatedReplica]:
        """The replicas that have drained; they hold nothing any more."""
        servers = self.requests.servers
        found = [
            replica
            for replica in self.replicas.values()
            if replica.draining and (not replica.is_ready or not servers[replica.rank].in_flight)
        ]
        for replica in found:
            self.remove(replica, now)
        return found

    def remove(self, replica: SimulatedReplica, now: float) -> None:
        """The replica is gone; requests that it had are tried again."""
        self._count(replica, now)
        if replica.is_ready:
            self.requests.remove(replica.rank)
        del self.replicas[replica.rank]
        self._note(now)

    # time

    def advance(self, now: float) -> None:
        """All that happens until then: replicas become ready, requests arrive and are answered."""
        due = [replica for replica in self.replicas.values() if not replica.is_ready and replica.ready_at <= now]
        for replica in sorted(due, key=lambda replica: (replica.ready_at, replica.rank)):
            if not replica.draining:
                self._advance_requests(max(replica.ready_at, self._looked_at))
                self._ready(replica, replica.ready_at)
        self._advance_requests(now)
        missing = max(0, self.wanted - len(self.staying))
        self._short_s += missing * max(0.0, now - self._looked_at)
        self._looked_at = now

    def _advance_requests(self, to: float) -> None:
        before = self.requests.arrived
        cold = not self.serves
        self.requests.advance(to)
        if cold:
            self._cold.extend(range(before, self.requests.arrived))
        else:
            self.requests.hand_out(to)

    def _ready(self, replica: SimulatedReplica, at: float) -> None:
        replica.is_ready = True
        self.requests.add(replica.rank, self.trace.slowness(replica.part, replica.score), at)

    def load(self, now: float, room: int | None) -> ServiceLoad:
        requests = self.requests
        oldest = 0.0 if requests.oldest is None else now - requests.arrivals[requests.oldest]
        return ServiceLoad(
            at=now,
            replicas=tuple(self._replica_load(replica) for replica in self.replicas.values()),
            wanted=self.wanted,
            arrived=requests.arrived,
            answered=requests.answered,
            refused=requests.refused,
            failed=requests.failed,
            late=requests.late,
            queued=requests.queued,
            oldest_wait=oldest,
            in_flight=requests.in_flight,
            waits=dict(requests.waits),
            services=dict(requests.services),
            totals=dict(requests.totals),
            room=room,
        )

    def _replica_load(self, replica: SimulatedReplica) -> ReplicaLoad:
        server = self.requests.servers.get(replica.rank)
        return ReplicaLoad(
            rank=replica.rank,
            ready=replica.is_ready,
            draining=replica.draining,
            in_flight=0 if server is None else server.in_flight,
            answered=0 if server is None else server.answered,
            busy_seconds=0.0 if server is None else server.busy_s,
            share=replica.share,
            score=replica.score,
            borrowed=replica.lender is not None,
            started_at=replica.started_at,
            ready_at=replica.ready_at if replica.is_ready else None,
        )

    def decide(self, now: float, room: int | None) -> Sized:
        """The size that its autoscaler decides, within the bounds of the service."""
        sized = self._autoscaler.decide(self.load(now, room))
        wanted = min(max(sized.replicas, self.trace.least), self.trace.most)
        share = self.share
        if sized.share is not None and self.trace.share is not None:
            share = min(max(sized.share, self.trace.share), self.trace.share_most or self.trace.share)
        changed = wanted * self.trace.held(share) - self.wanted * self.trace.held(self.share)
        if changed:
            self.changes.append((now, changed))
        if (wanted, share) != (self.wanted, self.share):
            self._demand.append((now, wanted, share))
        self.wanted, self.share = wanted, share
        self.unattainable = sized.unattainable or self.unattainable
        return sized

    # what came of it

    def end(self, now: float) -> None:
        """The service ends: nothing more is counted."""
        self.advance(now)
        self._ended_at = now
        for replica in list(self.replicas.values()):
            self._count(replica, now)
        self._note(now)

    def trajectory(self) -> Trajectory:
        return Trajectory(name=self.trace.name, wanted=tuple(self._demand), held=tuple(self._held))

    def outcome(self) -> Counted:
        requests, trace = self.requests, self.trace
        seen = requests.arrived
        latency = requests.latency[:seen]
        bad = bad_requests(requests.arrivals[:seen], latency, self._ended_at, trace.latency_s)
        windows = windows_of(
            requests.arrivals[:seen], latency, bad, percentile=trace.percentile, late_s=trace.latency_s
        )
        known = int((~np.isnan(bad)).sum())
        count = int(np.nansum(bad)) if seen else 0
        answered = np.array([each for each in latency if each < inf])
        waits = [self._waited(request) for request in self._cold]
        return Counted(
            name=trace.name,
            arrived=seen,
            answered=requests.answered,
            refused=requests.refused,
            failed=requests.failed,
            late=requests.late,
            open=seen - requests.answered - requests.refused - requests.failed,
            bad=count,
            attainment=1.0 - count / known if known else 1.0,
            windows=windows.count,
            bad_windows=windows.bad,
            worst_window=windows.worst,
            latency_p50_s=float(np.quantile(answered, 0.5)) if len(answered) else None,
            latency_p99_s=float(np.quantile(answered, 0.99)) if len(answered) else None,
            cold_waits=len(self._cold),
            cold_wait_most_s=max(waits, default=0.0),
            gpu_s=self._gpu_s,
            starts=self.starts,
            changes=len(self.changes),
            reversals=reversals(self.changes),
            short_s=self._short_s,
            retried=requests.retried,
            evicted_jobs=self.evicted_jobs,
            loans=self.loans,
            borrowed_gpu_s=self._borrowed_gpu_s,
            loan_lost_gpu_s=self.loan_lost_gpu_s,
            unattainable=self.unattainable,
        )

    def _waited(self, request: int) -> float:
        begun = self.requests.started[request]
        return (self._ended_at if begun != begun else begun) - self.requests.arrivals[request]

    def _count(self, replica: SimulatedReplica, now: float) -> None:
        held = self.trace.held(replica.share) * (now - replica.since)
        self._gpu_s += held
        self._borrowed_gpu_s += held if replica.lender is not None else 0.0
        replica.since = now

    def _note(self, now: float) -> None:
        borrowed = sum(replica.lender is not None for replica in self.replicas.values())
        self._held.append((now, len(self.replicas), borrowed))


def reversals(changes: list[tuple[float, float]]) -> int:
    """How many changes go in the opposite direction of the change before."""
    signs = [change > 0 for _, change in changes]
    return sum(one != other for one, other in pairwise(signs))


class Windows(Struct, frozen=True, kw_only=True):
    count: int
    bad: int
    worst: float | None


def bad_requests(arrivals: Sequence[float], latency: Sequence[float], end_s: float, late_s: float | None) -> Times:
    """For each request 1.0 if it was bad, 0.0 if not, nan if it was still open and not late yet."""
    took = np.array(latency, dtype=float)
    at = np.array(arrivals[: len(took)], dtype=float)
    most = inf if late_s is None else late_s
    bad = np.where(np.isinf(took) | (took > most), 1.0, 0.0)
    pending = np.isnan(took)
    bad[pending] = np.where(end_s - at[pending] > most, 1.0, np.nan)
    return bad


def windows_of(
    arrivals: Sequence[float], latency: Sequence[float], bad: Times, *, percentile: float, late_s: float | None
) -> Windows:
    """The windows by the arrivals of their requests; requests that are still open are in none."""
    if late_s is None:
        return Windows(count=0, bad=0, worst=None)
    known = ~np.isnan(bad)
    place = (np.array(arrivals[: len(bad)])[known] // WINDOW_S).astype(int)
    took = np.where(np.isnan(latency), inf, latency)[known]
    if not len(place):
        return Windows(count=0, bad=0, worst=None)
    allowed = 1.0 - percentile / 100.0
    order = np.lexsort((took, place))
    place, took = place[order], took[order]
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    counts = np.diff(np.r_[starts, len(place)])
    late = np.add.reduceat((took > late_s).astype(int), starts)
    at = starts + np.minimum(counts - 1, np.ceil(counts * percentile / 100.0).astype(int) - 1)
    worst = float(took[at].max()) / late_s
    is_bad = late > np.floor(counts * allowed + 1e-9)
    return Windows(count=len(starts), bad=int(is_bad.sum()), worst=worst if worst < inf else None)
