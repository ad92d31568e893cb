"""Limits the waiting input of one cycle to what it has time for, so that the next cycle starts soon. Pure.

A few that take long, such as large updates, cannot be made fewer: after them a pause lets other input go first.

A cycle that could not be stored is followed by a smaller one: half as much, down to a single one, and twice as much
again after each cycle that could.
"""

COUNTED_LEAST = 8  # of fewer the time says little about each
NEWEST_WEIGHT = 0.3
PART_LEAST = 2.0**-10
PAUSE_PART = 3.0  # times as long as the few took


class BatchSize:
    """Between `least` and `most` at once, as many as take about `seconds`; fewer after cycles that were not stored.
    `part` is what one cycle takes of any other bound."""

    def __init__(self, *, seconds: float, least: int, most: int) -> None:
        self._seconds = seconds
        self._least, self._most = least, most
        self._each: float | None = None
        self.part = 1.0
        self.pause = 0.0  # seconds for which the next cycles should take none

    @property
    def limit(self) -> int:
        wanted = self._most
        if self._each:
            wanted = max(self._least, min(self._most, int(self._seconds / self._each)))
        return max(1, int(wanted * self.part))

    def failed(self) -> None:
        """Note that the last intake could not be stored."""
        self.part = max(PART_LEAST, self.part / 2)

    def stored(self) -> None:
        """Note that the last intake is stored."""
        self.part = min(1.0, self.part * 2)

    def took(self, seconds: float, count: int) -> None:
        """So many took so long."""
        self.pause = 0.0
        if count < COUNTED_LEAST:
            if count and seconds > self._seconds / 2:
                self.pause = PAUSE_PART * seconds
            return
        each = max(0.0, seconds) / count
        self._each = each if self._each is None else self._each + NEWEST_WEIGHT * (each - self._each)
