"""How many requests of a batch are asked at once, and when the next may be. Pure.

An answer adds a part of a request, so that each round of answers adds about one; a refusal halves the number, once for
all requests that were sent before it. While nothing is answered, each pause is twice as long as the last.
"""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 30.0
FIRST_AT_ONCE = 4.0


class Pace:
    """`most`: requests at once at most. Times are of one clock in seconds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._at_once = min(float(most), FIRST_AT_ONCE)
        self._pause = PAUSE_SECONDS
        self._halved_at = float("-inf")
        self.paused_until = float("-inf")

    @property
    def at_once(self) -> int:
        return int(self._at_once)

    def answered(self) -> None:
        self._pause = PAUSE_SECONDS
        self._at_once = min(float(self._most), self._at_once + 1.0 / self._at_once)

    def refused(self, *, sent_at: float, now: float, retry_after: float, chance: float) -> None:
        """`retry_after`: seconds that the answer named, else 0; `chance`: from 0 to 1, so that several clients do not
        come back together."""
        if sent_at <= self._halved_at:
            return
        self._at_once, self._halved_at = max(1.0, self._at_once / 2.0), now
        self.paused_until = now + max(min(retry_after, PAUSE_SECONDS_MAX), self._pause * (0.5 + chance / 2.0))
        self._pause = min(PAUSE_SECONDS_MAX, 2.0 * self._pause)
