"""Requests of each service as counted by all routers, and reports of nodes about its replicas.

A router counts from its start (`boot`). Counts of earlier boots and of removed routers are kept, so that the totals
never fall and neither a restart nor a lost message loses any. All data are bounded.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from weft.messages.serving import Endpoint, EndpointsSeen, ReplicaServed, ServiceServed, ServicesServed
from weft.serving.loads import RequestCounts

SILENT_SECONDS = 3.0  # after this silence of a router its arrivals are unknown
GONE_SECONDS = 60.0  # after this time a router is no longer awaited
ROUTERS_MAX = 256
NODES_MAX = 10_000
SERVICES_MAX = 65_536  # services at one router, and of past counts

_Run = tuple[str, int, int]


class RoutedCounts(RequestCounts, frozen=True, kw_only=True):
    """One service at all routers: totals, and its waiting and running requests."""

    replicas: tuple[ReplicaServed, ...] = ()


NOTHING = RoutedCounts()


class _Router:
    def __init__(self, boot: str, now: float) -> None:
        self.boot, self.seq = boot, -1
        self.heard_at = now
        self.services: dict[str, ServiceServed] = {}


class Routed:
    """`hear` receives reports of routers; `of` returns a service at all routers. Times are of our clock."""

    def __init__(self) -> None:
        self._routers: dict[str, _Router] = {}
        self._past: dict[str, RoutedCounts] = {}

    def hear(self, told: ServicesServed, *, now: float) -> tuple[str, ...]:
        """The services in the message with waiting requests. Messages older than the last one are dropped."""
        router = self._routers.get(told.router)
        if router is None or router.boot != told.boot:
            if router is not None:
                self._retire(told.router)
            elif len(self._routers) >= ROUTERS_MAX:
                self._retire(min(self._routers, key=lambda name: self._routers[name].heard_at))
            router = self._routers[told.router] = _Router(told.boot, now)
        elif told.seq < router.seq:
            return ()
        router.seq, router.heard_at = told.seq, now
        for served in told.services:
            if served.job_id in router.services or len(router.services) < SERVICES_MAX:
                router.services[served.job_id] = served
        return tuple(served.job_id for served in told.services if served.queued)

    def keep_only(self, jobs: Iterable[str], *, now: float) -> None:
        """Forget ended services and removed routers."""
        for name in [name for name, one in self._routers.items() if now - one.heard_at > GONE_SECONDS]:
            self._retire(name)
        kept = set(jobs)
        self._past = {job_id: past for job_id, past in self._past.items() if job_id in kept}
        for router in self._routers.values():
            if len(router.services) > len(kept):
                router.services = {job_id: one for job_id, one in router.services.items() if job_id in kept}

    def silent(self, *, now: float) -> bool:
        """True if there is no router, or a silent one that may have unknown requests."""
        return not self._routers or any(now - one.heard_at > SILENT_SECONDS for one in self._routers.values())

    def counted_at(self, *, now: float) -> float:
        """Mean report time of the counts over the routers. Rates use these times, so that a slightly late message is no
        burst."""
        heard = [one.heard_at for one in self._routers.values() if now - one.heard_at <= SILENT_SECONDS]
        return min(now, sum(heard) / len(heard)) if heard else now

    def of(self, job_id: str, *, now: float) -> RoutedCounts:
        parts = [
            (router, served) for router in self._routers.values() if (served := router.services.get(job_id)) is not None
        ]
        total = self._past.get(job_id, NOTHING)
        for router, served in parts:
            total = _plus(total, served, now=now - router.heard_at <= SILENT_SECONDS)
        return total

    def _retire(self, name: str) -> None:
        router = self._routers.pop(name)
        for job_id, served in router.services.items():
            if job_id in self._past or len(self._past) < SERVICES_MAX:
                self._past[job_id] = _plus(self._past.get(job_id, NOTHING), served, now=False)


def _plus(total: RoutedCounts, served: ServiceServed, *, now: bool) -> RoutedCounts:
    """`now`: count waiting and running requests too."""
    return RoutedCounts(
        arrived=total.arrived + served.arrived,
        answered=total.answered + served.answered,
        refused=total.refused + served.refused,
        failed=total.failed + served.failed,
        late=total.late + served.late,
        queued=total.queued + (served.queued if now else 0),
        oldest_wait=max(total.oldest_wait, served.oldest_wait if now else 0.0),
        waits=_added(total.waits, served.waits),
        services=_added(total.services, served.services),
        totals=_added(total.totals, served.totals),
        tokens_out=total.tokens_out + served.tokens_out,
        token_times=_added(total.token_times, served.token_times),
        replicas=(*total.replicas, *served.replicas) if now else total.replicas,
    )


def _added(one: Mapping[int, int], other: Mapping[int, int]) -> Mapping[int, int]:
    if not one:
        return other
    total = dict(one)
    for bucket, count in other.items():
        total[bucket] = total.get(bucket, 0) + count
    return total


class SeenEndpoint(Struct, frozen=True, kw_only=True):
    """A run that serves requests, with its times on our clock."""

    ready: bool
    draining: bool
    started_at: float | None
    ready_at: float | None


class _Node(Struct):
    incarnation: int
    seq: int
    runs: dict[_Run, SeenEndpoint]


class SeenEndpoints:
    """Reports of nodes about their replicas. A node's report counts only for runs that the store has there."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}

    def hear(self, seen: EndpointsSeen, *, now: float) -> None:
        known = self._nodes.pop(seen.node_id, None)
        if known is not None and (seen.incarnation, seen.seq) < (known.incarnation, known.seq):
            self._nodes[seen.node_id] = known
            return
        while len(self._nodes) >= NODES_MAX:
            del self._nodes[next(iter(self._nodes))]
        runs = {(one.job_id, one.epoch, one.rank): _on_our_clock(one, seen.at, now) for one in seen.endpoints}
        self._nodes[seen.node_id] = _Node(seen.incarnation, seen.seq, runs)

    def of(self, node_id: str, job_id: str, epoch: int, rank: int) -> SeenEndpoint | None:
        node = self._nodes.get(node_id)
        return None if node is None else node.runs.get((job_id, epoch, rank))


def _on_our_clock(one: Endpoint, told_at: float, now: float) -> SeenEndpoint:
    """Convert a node's time to our clock; only differences of the node's clock count."""
    return SeenEndpoint(
        ready=one.ready,
        draining=one.draining,
        started_at=None if one.started_at is None else now - max(0.0, told_at - one.started_at),
        ready_at=None if one.ready_at is None else now - max(0.0, told_at - one.ready_at),
    )
