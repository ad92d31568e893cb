"""The requests and the speed of one replica, and its pauses after failures."""

from msgspec import Struct

from weftd.router.thinking.engine_metrics import NOTHING, EngineLoad
from weftd.router.thinking.table import RoutedReplica

SPEED_PART = 0.1  # weight of the newest request's time in the replica's mean request time
FAILURES_MAX = 3  # failures in a row until a replica is paused
ALONE_SECONDS = 1.0  # the first pause; each further one in a row is twice as long
ALONE_SECONDS_MAX = 8.0
REACHED_SECONDS = 2.5  # after this time a request counts as accepted: no connection attempt lasts longer


class InFlightRequest(Struct):
    """One request at one replica, from its admission to the end of the request. Times of the router's clock.

    `runs`: how often the request may have run before; `upgraded`: it lasts as long as its client wants; `call`: the
    front for models reads its answer."""

    number: int
    job_id: str
    backend: "Backend"
    arrived: float
    granted: float
    deadline: float
    tries: int = 1
    runs: int = 0
    upgraded: bool = False
    call: str = ""
    batch: bool = False


class Backend:
    """A replica, for as long as the table has it or it has requests. `others`: its requests from other routers."""

    def __init__(self, replica: RoutedReplica) -> None:
        self.replica = replica
        self.requests: dict[int, InFlightRequest] = {}
        self.others = 0
        self.answered = 0
        self.failed = 0
        self.busy_seconds = 0.0
        self.speed: float | None = None  # mean seconds for one request
        self.alone_until = 0.0
        self.gone = False
        self.engine: EngineLoad = NOTHING  # as its engine said last
        self.engine_at = 0.0  # when it is asked again
        self.unreached = False  # it did not take the last connection of which we know
        self._failures = 0  # in a row
        self._alone_times = 0

    def room(self, concurrency: int, routers: int, now: float) -> int:
        """Number of further requests for it. Requests of other routers count, but each router may always use its own
        part of the replica, because news of other routers is late."""
        if not self.replica.takes or self.gone or now < self.alone_until:
            return 0
        most = concurrency if routers == 1 else max(-(-concurrency // routers), concurrency - self.others)
        if self.unreached:
            if any(now - request.granted > REACHED_SECONDS for request in self.requests.values()):
                self.unreached = False
            else:
                most = min(most, 1)  # only one request tests if it is back
        return most - len(self.requests)

    def cost(self, usual: float) -> float:
        """Estimated time of the next request here, beside the present ones."""
        return (self.speed or usual) * (len(self.requests) + 1)

    def did(self, seconds: float, *, timed: bool) -> None:
        """Note that it answered a request."""
        self.answered += 1
        self.did_well()
        if timed:
            self.busy_seconds += seconds
            self.speed = seconds if self.speed is None else self.speed + SPEED_PART * (seconds - self.speed)

    def did_well(self) -> None:
        """Earlier failures no longer count."""
        self.unreached = False
        self._failures = self._alone_times = 0

    def fell(self, now: float, *, at_once: bool, may_rest: bool) -> None:
        """Note a failure. `at_once`: it refused the connection; `may_rest`: it may be paused for a while."""
        self.failed += 1
        self.unreached = at_once
        self._failures += 1
        if may_rest and (at_once or self._failures >= FAILURES_MAX) and now >= self.alone_until:
            self.alone_until = now + min(ALONE_SECONDS * 2.0**self._alone_times, ALONE_SECONDS_MAX)
            self._alone_times = min(self._alone_times + 1, 10)
            self._failures = 0
