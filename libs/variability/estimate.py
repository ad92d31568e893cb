"""What step times say of a GPU: a score with its age and its confidence, for one GPU and one class of jobs.

One sample is the time of a step on that GPU alone (waiting for other ranks left out), against the typical time of its
class. A sample far from what is known changes nothing by itself; AGREEING of them in a row, near to each other, do: a
transient does not brand a GPU, and one that turned slow is known after two samples. What is not measured any more
grows old and counts less, until it counts as typical. A GPU that turned slow all at once is quarantined: for a while it
counts as slow as it was, however old that is; afterwards it is let back in and measured again. The quarantine doubles
each time.
"""

from math import inf
from statistics import median

from msgspec import Struct

TYPICAL = 1.0
FAR = 0.08  # from what is known, as a part of it: about four times the noise of a median of steps
NEAR = 0.08  # to each other
AGREEING = 2
WEIGHT_LEAST = 0.1  # of the newest sample: how quickly a slow drift is followed
HALF_LIFE_S = 24 * 3600.0  # after so long without a sample it counts half
PRIOR_SAMPLES = 2.0  # what one knows beforehand is worth so many samples
SUDDEN = 1.5  # so many times slower, all at once: quarantine
QUARANTINE_S = 2 * 3600.0
QUARANTINE_S_MAX = 48 * 3600.0


class Estimate(Struct, frozen=True, kw_only=True):
    """`value`: time relative to the typical GPU. `samples` since it was last thought to have changed; `at_s`: the last
    one's time. `odd`: the last samples, as long as they are far from `value`. `prior`: what is believed without any."""

    value: float = TYPICAL
    samples: int = 0
    at_s: float = 0.0
    odd: tuple[float, ...] = ()
    prior: float = TYPICAL
    quarantines: int = 0
    quarantined_until_s: float = 0.0

    def confidence(self, now: float) -> float:
        """0 for nothing known to 1; falls as it grows old."""
        if not self.samples:
            return 0.0
        age = max(0.0, now - self.at_s)
        return float(self.samples / (self.samples + PRIOR_SAMPLES) * 0.5 ** (age / HALF_LIFE_S))

    def quarantined(self, now: float) -> bool:
        return now < self.quarantined_until_s

    def score(self, now: float) -> float:
        """What placement should go by: between what is believed beforehand and what was measured."""
        if self.quarantined(now):
            return self.value
        return self.prior + (self.value - self.prior) * self.confidence(now)


def observed(known: Estimate, sample: float, now: float) -> Estimate:
    """`known` after one more sample (above 0, and finite). One that is older than the last one changes nothing."""
    if now < known.at_s or not 0 < sample < inf:
        return known
    expected = known.value if known.samples else known.prior
    if abs(sample / expected - 1.0) > FAR:
        odd = (*known.odd, sample)[-AGREEING:]
        middle = median(odd)
        if len(odd) < AGREEING or any(abs(one / middle - 1.0) > NEAR for one in odd):
            return _with(known, odd=odd)
        sudden = middle >= SUDDEN * expected
        return Estimate(
            value=middle,
            samples=AGREEING,
            at_s=now,
            prior=known.prior,
            quarantines=known.quarantines + sudden,
            quarantined_until_s=now + _quarantine_s(known.quarantines) if sudden else 0.0,
        )
    weight = max(WEIGHT_LEAST, 1.0 / (known.samples + 1.0))
    return Estimate(
        value=expected + (sample - expected) * weight if known.samples else sample,
        samples=known.samples + 1,
        at_s=now,
        prior=known.prior,
        quarantines=known.quarantines,
        quarantined_until_s=known.quarantined_until_s,
    )


def _quarantine_s(before: int) -> float:
    return min(QUARANTINE_S * 2.0**before, QUARANTINE_S_MAX)


def _with(known: Estimate, *, odd: tuple[float, ...]) -> Estimate:
    return Estimate(
        value=known.value,
        samples=known.samples,
        at_s=known.at_s,
        odd=odd,
        prior=known.prior,
        quarantines=known.quarantines,
        quarantined_until_s=known.quarantined_until_s,
    )
