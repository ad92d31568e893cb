"""The newest reports of nodes and routers about services: in memory, bounded, and lost at a restart.

A node's report counts only for runs that the store has on it, and only for their port: the address comes from the
store.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from msgspec import Struct

from weft.domain.job import Allocation, Job
from weft.messages.http.services import RequestsView
from weft.messages.serving import Endpoint, EndpointsSeen, ServiceServed, ServicesServed
from weftd.gateway.thinking.requests import ServedMark, ServedWindow, mark_of, requests_of

NODES_MAX = 10_000
TRACKS_MAX = 20_000  # services at routers, each counted once for every router
SECONDS_MAX = 10.0  # an older message does not show the present
WINDOW_SECONDS = 60.0
MARK_SECONDS = 5.0  # between two marks of a service

_Run = tuple[str, int, int]


class _Node(Struct):
    """The last report of a node and its time; `runs` is computed on first use."""

    at: float
    seen: EndpointsSeen
    runs: dict[_Run, Endpoint] | None = None

    def endpoint(self, run: _Run) -> Endpoint | None:
        if self.runs is None:
            self.runs = {(each.job_id, each.epoch, each.rank): each for each in self.seen.endpoints}
        return self.runs.get(run)


class _Track(Struct):
    """The reports of one router about one service, since the router started as `boot`."""

    boot: str
    seq: int
    told_at: float  # by the router's clock
    at: float
    newest: ServiceServed
    marks: deque[ServedMark]


class LiveServing:
    """The newest messages about services: `hear_…` receives them, the other methods return them. `clock` does not jump.
    `router_url`: address for requests to services; empty: none."""

    def __init__(self, *, clock: Callable[[], float], router_url: str = "") -> None:
        self._clock = clock
        self._router_url = router_url.rstrip("/")
        self._nodes: OrderedDict[str, _Node] = OrderedDict()
        self._tracks: OrderedDict[tuple[str, str], _Track] = OrderedDict()  # by job and router, the newest last
        self._routers: dict[str, dict[str, None]] = {}  # by job, those that have a track

    async def hear_endpoints(self, seen: EndpointsSeen) -> None:
        known = self._nodes.get(seen.node_id)
        is_older = known is not None and (seen.incarnation, seen.seq) < (known.seen.incarnation, known.seen.seq)
        if known is not None and is_older and self._clock() - known.at <= SECONDS_MAX:
            return
        self._nodes[seen.node_id] = _Node(at=self._clock(), seen=seen)
        self._nodes.move_to_end(seen.node_id)
        if len(self._nodes) > NODES_MAX:
            self._nodes.popitem(last=False)

    async def hear_served(self, told: ServicesServed) -> None:
        now = self._clock()
        for served in told.services:
            key = (served.job_id, told.router)
            known = self._tracks.get(key)
            if known is not None and _is_late(told, known):
                continue
            if known is None or known.boot != told.boot:
                known = _Track(told.boot, told.seq, told.at, now, served, deque())
            known.seq, known.told_at, known.at, known.newest = told.seq, told.at, now, served
            if not known.marks or now - known.marks[-1].at >= MARK_SECONDS:
                known.marks.append(mark_of(served, now))
                while len(known.marks) > 1 and now - known.marks[1].at >= WINDOW_SECONDS:
                    known.marks.popleft()
            self._tracks[key] = known
            self._tracks.move_to_end(key)
            self._routers.setdefault(served.job_id, {})[told.router] = None
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._tracks:
            (job_id, router), oldest = next(iter(self._tracks.items()))
            if len(self._tracks) <= TRACKS_MAX and now - oldest.at <= WINDOW_SECONDS:
                return
            del self._tracks[job_id, router]
            of_job = self._routers[job_id]
            del of_job[router]
            if not of_job:
                del self._routers[job_id]

    def url(self, job: Job) -> str:
        """Address for the job's requests; empty if it serves none, or there is no router."""
        return f"{self._router_url}/s/{job.id}/" if self._router_url and job.spec.service is not None else ""

    def endpoints(self, job: Job) -> list[tuple[Allocation, Endpoint]]:
        """The replicas of a job that listen, each by the node on which the store has it."""
        found = []
        for allocation in job.placement.allocations if job.placement is not None and job.state.holding else ():
            node = self._heard(allocation.node_id)
            endpoint = node.endpoint((job.id, job.epoch, allocation.rank)) if node is not None else None
            if endpoint is not None:
                found.append((allocation, endpoint))
        return found

    def hears_of(self, job: Job) -> bool:
        """Does any node report endpoints that has a replica of the job?"""
        allocations = job.placement.allocations if job.placement is not None else ()
        return any(self._heard(allocation.node_id) is not None for allocation in allocations)

    def requests(self, job: Job) -> RequestsView | None:
        """The requests of the last minute; None if no router reports the job."""
        now = self._clock()
        tracks = [self._tracks[job.id, router] for router in self._routers.get(job.id, ())]
        windows = [
            ServedWindow(
                begin=track.marks[0],
                recent=_recent(track),
                end=mark_of(track.newest, track.at),
                now=track.newest,
            )
            for track in tracks
            if now - track.at <= SECONDS_MAX
        ]
        return requests_of(windows, job.spec.objective)

    def _heard(self, node_id: str) -> _Node | None:
        node = self._nodes.get(node_id)
        return node if node is not None and self._clock() - node.at <= SECONDS_MAX else None


def _recent(track: _Track) -> ServedMark:
    """The last mark that is at least MARK_SECONDS old; the requests since then give the present rate."""
    return next((mark for mark in reversed(track.marks) if track.at - mark.at >= MARK_SECONDS), track.marks[0])


def _is_late(told: ServicesServed, known: _Track) -> bool:
    """True if it was sent before the last message. A restarted router counts from zero."""
    return told.seq < known.seq if told.boot == known.boot else told.at < known.told_at
