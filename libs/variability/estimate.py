"""What step times say of a GPU: a score with its age and its confidence, for one GPU and one class of jobs.

One sample is the time of a step on that GPU alone (waiting for other ranks left out), against the typical time of its
class. A sample far from what is known changes nothing by itself; AGREEING of them in a row, near to each other, do: a
transient does not brand a GPU, and one that turned slow is known after two samples. A sample may be worth less than
one, or more: then more of them must agree, or fewer. What is not measured any more grows old and counts less, until it
counts as typical; sooner where one run alone, the witness, ever said so. A GPU that turned slow all at once is
quarantined: for a while it counts as slow as it was, however old that is; afterwards it is let back in and measured
again. The quarantine doubles each time. It ends as soon as samples agree that the GPU is well, not where they agree on
another slow value; the more often it was quarantined, the more of them it takes.
"""

from math import inf
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

TYPICAL = 1.0
FAR = 0.08  # from what is known, as a part of it: about four times the noise of a median of steps
NEAR = 0.08  # to each other
AGREEING = 2
AGREEING_MAX = 8  # of a GPU that was quarantined again and again
ODD_MAX = 32
ROUNDING = 1e-9
WEIGHT_LEAST = 0.1  # of the newest sample: how quickly a slow drift is followed
HALF_LIFE_S = 24 * 3600.0  # after so long without a sample it counts half
ONE_WITNESS_HALF_LIFE_S = 1800.0
PRIOR_SAMPLES = 2.0  # what one knows beforehand is worth so many samples
SUDDEN = 1.5  # so many times slower, all at once: quarantine
QUARANTINE_S = 2 * 3600.0
ONE_WITNESS_QUARANTINE_S = 900.0
QUARANTINE_S_MAX = 48 * 3600.0


class Estimate(Struct, frozen=True, kw_only=True):
    """`value`: time relative to the typical GPU. `samples` since it was last thought to have changed, worth `weight`
    together; `at_s`: the last one's time. `odd`: the last samples, as long as they are far from `value`. `prior`: what
    is believed without any. `confirmed`: not only `witness` says so, or nobody says how one tells them apart."""

    value: float = TYPICAL
    samples: int = 0
    weight: float = 0.0
    at_s: float = 0.0
    odd: tuple[float, ...] = ()
    odd_weights: tuple[float, ...] = ()
    prior: float = TYPICAL
    quarantines: int = 0
    quarantined_until_s: float = 0.0
    witness: str = ""
    confirmed: bool = True

    def confidence(self, now: float) -> float:
        """0 for nothing known to 1; falls as it grows old."""
        if not self.samples:
            return 0.0
        age = max(0.0, now - self.at_s)
        half_life = HALF_LIFE_S if self.confirmed else ONE_WITNESS_HALF_LIFE_S
        return float(self.weight / (self.weight + PRIOR_SAMPLES) * 0.5 ** (age / half_life))

    def quarantined(self, now: float) -> bool:
        return now < self.quarantined_until_s

    def score(self, now: float) -> float:
        """What placement should go by: between what is believed beforehand and what was measured."""
        if self.quarantined(now):
            return self.value
        return self.prior + (self.value - self.prior) * self.confidence(now)


def observed(
    known: Estimate, sample: float, now: float, *, weight: float = 1.0, weight_most: float = inf, witness: str = ""
) -> Estimate:
    """`known` after one more sample (above 0, and finite). One that is older than the last one changes nothing.

    `weight`: how many usual samples it is worth; `weight_most`: how many all of its like are, however many there are:
    who is never sure puts no GPU into quarantine.
    `witness`: which run told it.
    """
    if now < known.at_s or not 0 < sample < inf or not 0 < weight < inf:
        return known
    expected = known.value if known.samples else known.prior
    if abs(sample / expected - 1.0) > FAR:
        return _surprised(known, sample, now, weight, weight_most, witness)
    share = max(WEIGHT_LEAST * min(1.0, weight), weight / (known.weight + weight))
    value = expected + (sample - expected) * share if known.samples else sample
    dropped = len(known.odd) if weight >= min(1.0, sum(known.odd_weights)) else 1  # a faint one outweighs one at most
    return Estimate(
        value=value,
        samples=known.samples + 1,
        weight=min(known.weight + weight, max(known.weight, weight_most)),
        at_s=now,
        odd=known.odd[dropped:],
        odd_weights=known.odd_weights[dropped:],
        prior=known.prior,
        quarantines=known.quarantines,
        quarantined_until_s=0.0 if _well(value, known) else known.quarantined_until_s,
        witness=witness,
        confirmed=known.confirmed or witness != known.witness,
    )


def _surprised(known: Estimate, sample: float, now: float, weight: float, weight_most: float, witness: str) -> Estimate:
    """After a sample far from what is known: that has changed, if enough of them agree."""
    needed = _needed(known, now)
    odd, weights = _latest((*known.odd, sample), (*known.odd_weights, weight), needed)
    middle = median(odd)
    if sum(weights) < needed - ROUNDING or any(abs(one / middle - 1.0) > NEAR for one in odd):
        return replace(known, odd=odd, odd_weights=weights)
    faint = weight_most < inf
    sudden = not faint and middle >= SUDDEN * (known.value if known.samples else known.prior)
    first = ONE_WITNESS_QUARANTINE_S if witness else QUARANTINE_S
    until = now + min(first * 2.0**known.quarantines, QUARANTINE_S_MAX) if sudden else known.quarantined_until_s
    return Estimate(
        value=middle,
        samples=len(odd),
        weight=min(sum(weights), weight_most),
        at_s=now,
        prior=known.prior,
        quarantines=known.quarantines + sudden,
        quarantined_until_s=0.0 if _well(middle, known) else until,
        witness=witness,
        confirmed=not witness or _well(middle, known),
    )


def _well(value: float, known: Estimate) -> bool:
    return value <= known.prior * (1.0 + FAR)


def _needed(known: Estimate, now: float) -> float:
    """How much must agree on a change: more before one that was quarantined often is let out."""
    if not known.quarantined(now):
        return float(AGREEING)
    return float(min(AGREEING + known.quarantines - 1, AGREEING_MAX))


def _latest(
    odd: tuple[float, ...], weights: tuple[float, ...], needed: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The last of these samples, no more than are worth `needed` together."""
    total, first = 0.0, len(odd)
    while first and total < needed - ROUNDING and len(odd) - first < ODD_MAX:
        first -= 1
        total += weights[first]
    return odd[first:], weights[first:]
