"""Counts and rates over recent windows, from a service's totals, and tests for changes of a rate."""

from bisect import bisect_right
from math import log

from weft.serving.loads import ServiceLoad

KEPT_SECONDS = 900.0
PRUNE_AT = 2048  # samples; beyond that the older half is dropped
SAME_SECONDS = 0.05  # samples that are closer than this are one


class CountWindows:
    """The totals of one service, sample by sample. For a window longer than the known time it answers for the known
    time."""

    def __init__(self) -> None:
        self._at: list[float] = []
        self._arrived: list[int] = []
        self._bad: list[int] = []
        self._failed: list[int] = []
        self._places: dict[float, int] = {}  # index of the sample this many seconds ago, cached

    def take(self, load: ServiceLoad) -> bool:
        """Add a sample. Falling totals, or a clock that goes back, do not count. Return False if no time has passed
        since the last sample, which then gets these totals."""
        arrived, bad, failed = load.arrived, load.late + load.refused, load.failed
        self._places.clear()
        if self._at:
            arrived, bad = max(arrived, self._arrived[-1]), max(bad, self._bad[-1])
            failed = max(failed, self._failed[-1])
            if load.at - self._at[-1] < SAME_SECONDS:
                self._arrived[-1], self._bad[-1], self._failed[-1] = arrived, bad, failed
                return False
        self._at.append(load.at)
        self._arrived.append(arrived)
        self._bad.append(bad)
        self._failed.append(failed)
        if len(self._at) >= PRUNE_AT or (len(self._at) > 2 and self._at[1] < load.at - 2 * KEPT_SECONDS):
            keep = max(0, min(bisect_right(self._at, load.at - KEPT_SECONDS) - 1, len(self._at) - 2))
            keep = max(keep, len(self._at) - PRUNE_AT // 2)
            for column in (self._at, self._arrived, self._bad, self._failed):
                del column[:keep]
        return True

    def known_seconds(self) -> float:
        return self._at[-1] - self._at[0] if self._at else 0.0

    def arrivals(self, seconds: float) -> tuple[int, float]:
        """The number of arrivals in the last `seconds`, and the real length of that time."""
        times = self._at
        if not times:
            return 0, 0.0
        first = self._place(seconds)
        return self._arrived[-1] - self._arrived[first], times[-1] - times[first]

    def arrivals_and_before(self, seconds: float, since: float) -> tuple[int, float, int, float]:
        """Like `arrivals`, followed by the same for the time from `since` seconds ago until `seconds` ago."""
        times, arrived = self._at, self._arrived
        if not times:
            return 0, 0.0, 0, 0.0
        middle, first = self._place(seconds), self._place(since)
        late, early = arrived[-1] - arrived[middle], arrived[middle] - arrived[first]
        return late, times[-1] - times[middle], early, times[middle] - times[first]

    def last(self) -> tuple[int, float]:
        """The number of arrivals between the last two samples, and the seconds between these."""
        if len(self._at) < 2:
            return 0, 0.0
        return self._arrived[-1] - self._arrived[-2], self._at[-1] - self._at[-2]

    def rate(self, seconds: float) -> float:
        """The recent rate per second; 0 while unknown."""
        count, lasted = self.arrivals(seconds)
        return count / lasted if lasted > 0.0 else 0.0

    def bad(self, seconds: float) -> int:
        """The number of late or refused requests."""
        return self._growth(self._bad, seconds)

    def failed(self, seconds: float) -> int:
        return self._growth(self._failed, seconds)

    def _growth(self, totals: list[int], seconds: float) -> int:
        """The growth of one of the totals in the last `seconds`."""
        return totals[-1] - totals[self._place(seconds)] if totals else 0

    def _place(self, ago: float) -> int:
        """The index of the last sample that is at least this old, or of the first."""
        place = self._places.get(ago)
        if place is None:
            place = bisect_right(self._at, self._at[-1] - ago + 1e-9) - 1
            self._places[ago] = place = max(0, place)
        return place


def likelihood_of_change(count: int, seconds: float, before: int, before_seconds: float) -> float:
    """Log-likelihood ratio of two Poisson rates against one rate for the two counts. At one constant rate it exceeds x
    about once in e^x windows."""
    total = count + before
    if total == 0 or seconds <= 0.0 or before_seconds <= 0.0:
        return 0.0
    expected = total * seconds / (seconds + before_seconds)
    found = count * log(count / expected) if count else 0.0
    return found + (before * log(before / (total - expected)) if before else 0.0)
