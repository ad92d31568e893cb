"""How much of what waits one turn takes in: as much as it has time for, so that the next need not wait long. Pure."""

COUNTED_LEAST = 8  # of fewer the time says little about each
NEWEST_WEIGHT = 0.3


class Appetite:
    """Between `least` and `most` at once, as many as take about `seconds`."""

    def __init__(self, *, seconds: float, least: int, most: int) -> None:
        self._seconds = seconds
        self._least, self._most = least, most
        self._each: float | None = None

    @property
    def limit(self) -> int:
        if not self._each:
            return self._most
        return max(self._least, min(self._most, int(self._seconds / self._each)))

    def took(self, seconds: float, count: int) -> None:
        """So many took so long."""
        if count < COUNTED_LEAST:
            return
        each = max(0.0, seconds) / count
        self._each = each if self._each is None else self._each + NEWEST_WEIGHT * (each - self._each)
