"""One replica's requests: how many it has, how fast it is, and whether it is left alone for a while."""

from msgspec import Struct

from weftd.router.thinking.engine_metrics import NOTHING, EngineLoad
from weftd.router.thinking.table import RoutedReplica

SPEED_PART = 0.1  # of a new time in the mean of a replica
FAILURES_MAX = 3  # in a row, until a replica is left alone
ALONE_SECONDS = 1.0  # the first time, then twice as long each time in a row
ALONE_SECONDS_MAX = 8.0
REACHED_SECONDS = 2.5  # a request that is there so long was taken: no connection is tried for longer


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
    """A replica, as long as the table has it or a request is there. `others`: requests of other routers there."""

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
        """How many more requests it may be given: what other routers have there counts, but each router may always use
        its part of the replica, however late it hears of the others."""
        if not self.replica.takes or self.gone or now < self.alone_until:
            return 0
        most = concurrency if routers == 1 else max(-(-concurrency // routers), concurrency - self.others)
        if self.unreached:
            if any(now - request.granted > REACHED_SECONDS for request in self.requests.values()):
                self.unreached = False
            else:
                most = min(most, 1)  # the first request alone finds out whether it is back
        return most - len(self.requests)

    def cost(self, usual: float) -> float:
        """About how long the next request would take here, beside those that are here."""
        return (self.speed or usual) * (len(self.requests) + 1)

    def did(self, seconds: float, *, timed: bool) -> None:
        """It answered."""
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
        """It failed. `at_once`: it did not take the connection; `may_rest`: it may be left alone for a while."""
        self.failed += 1
        self.unreached = at_once
        self._failures += 1
        if may_rest and (at_once or self._failures >= FAILURES_MAX) and now >= self.alone_until:
            self.alone_until = now + min(ALONE_SECONDS * 2.0**self._alone_times, ALONE_SECONDS_MAX)
            self._alone_times = min(self._alone_times + 1, 10)
            self._failures = 0
