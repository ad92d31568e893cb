"""A forecast of the next minutes from the arrivals in the same part of earlier days and weeks.

A forecast can only add to the present rate. It is kept in memory: after a restart it is empty until a day has passed.
"""

from statistics import median

DAY_SECONDS = 86_400.0
SLOTS_A_DAY = 144  # of ten minutes
DAYS_MAX = 14
DAYS_LEAST = 2  # so that a single odd day has no effect


class Forecast:
    """`day`: length of a day in seconds, for simulations with short days."""

    def __init__(self, *, day: float = DAY_SECONDS) -> None:
        self._slot = day / SLOTS_A_DAY
        self._highest: dict[int, float] = {}  # by number of the slot since time 0: its rates
        self._told: tuple[int, int, float] | None = None  # cached answers by slot, until a rate changes

    def take(self, rate: float, *, at: float) -> None:
        """`rate`: of the last minute."""
        slot = int(at / self._slot)
        if rate > self._highest.get(slot, -1.0):
            self._highest[slot] = rate
            self._told = None
        if len(self._highest) > SLOTS_A_DAY * DAYS_MAX:
            oldest = slot - SLOTS_A_DAY * DAYS_MAX
            self._highest = {each: value for each, value in self._highest.items() if each > oldest}

    def highest(self, *, at: float, seconds: float) -> float:
        """The median rate of the next `seconds`: the highest of the slots that they touch, from the same day of the
        week if two of those are known, else from any day."""
        first, last = int(at / self._slot), int((at + max(0.0, seconds)) / self._slot)
        if self._told is None or self._told[:2] != (first, last):
            slots = range(first, min(last, first + SLOTS_A_DAY) + 1)
            self._told = first, last, max((self._usual(slot) for slot in slots), default=0.0)
        return self._told[2]

    def _usual(self, slot: int) -> float:
        weeks = [self._highest[each] for ago in (7, 14) if (each := slot - ago * SLOTS_A_DAY) in self._highest]
        days = [
            self._highest[each] for ago in range(1, DAYS_MAX + 1) if (each := slot - ago * SLOTS_A_DAY) in self._highest
        ]
        found = weeks if len(weeks) >= DAYS_LEAST else days
        return median(found) if len(found) >= DAYS_LEAST else 0.0
