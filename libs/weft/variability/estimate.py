"""A GPU's score from step times, with its age and its confidence, for one GPU and one class of jobs.

One sample is the time of a step on that GPU alone (waiting for other ranks left out), against the typical time of its
class. A sample far from the present value changes nothing by itself; AGREEING of them in a row, near to each other, do:
a transient does not mark a GPU as slow, and a GPU that turned slow is known after two samples. A sample may be worth
less than one, or more: then more of them must agree, or fewer. A value that is not measured any more fades until it
counts as typical; sooner if all its samples came from one run, the witness. A GPU that turned slow all at once is
quarantined: for a while it counts as slow as it was, however old that is; afterwards it is let back in and measured
again. The quarantine doubles each time. It ends as soon as samples agree that the GPU is well, not if they agree on
another slow value; the more often the GPU was quarantined, the more samples that takes.
"""

from math import inf
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

TYPICAL = 1.0
FAR = 0.08  # from the present value, as a part of it: about four times the noise of a median of steps
NEAR = 0.08  # to each other
AGREEING = 2
AGREEING_MAX = 8  # of a GPU that was quarantined again and again
ODD_MAX = 32
ROUNDING = 1e-9
WEIGHT_LEAST = 0.1  # of the newest sample: the speed at which a slow drift is followed
HALF_LIFE_S = 24 * 3600.0  # after this long without a sample a value counts half
ONE_WITNESS_HALF_LIFE_S = 1800.0
PRIOR_SAMPLES = 2.0  # a prior is worth this many samples
SUDDEN = 1.5  # this many times slower, all at once: quarantine
QUARANTINE_S = 2 * 3600.0
ONE_WITNESS_QUARANTINE_S = 900.0
QUARANTINE_S_MAX = 48 * 3600.0


class ScoreEstimate(Struct, frozen=True, kw_only=True):
    """`value`: time relative to the typical GPU. `samples` since its last change, worth `weight`
    together; `at_s`: the time of the last one. `odd`: the last samples, as long as they are far from `value`. `prior`:
    the value without samples. `confirmed`: another run than `witness` measured it too, or runs have no names."""

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
        """Confidence from 0 (no samples) to 1; falls with age."""
        if not self.samples:
            return 0.0
        age = max(0.0, now - self.at_s)
        half_life = HALF_LIFE_S if self.confirmed else ONE_WITNESS_HALF_LIFE_S
        return float(self.weight / (self.weight + PRIOR_SAMPLES) * 0.5 ** (age / half_life))

    def quarantined(self, now: float) -> bool:
        return now < self.quarantined_until_s

    def score(self, now: float) -> float:
        """The score for placement: between the prior and the measured value."""
        if self.quarantined(now):
            return self.value
        return self.prior + (self.value - self.prior) * self.confidence(now)


def observed(
    known: ScoreEstimate, sample: float, now: float, *, weight: float = 1.0, weight_most: float = inf, witness: str = ""
) -> ScoreEstimate:
    """`known` after one more sample (above 0, and finite). A sample older than the last one changes nothing.

    `weight`: how many usual samples it is worth. `weight_most`: how many all samples of its kind are worth together: a
    kind that is never certain puts no GPU into quarantine. `witness`: the run that measured it.
    """
    if now < known.at_s or not 0 < sample < inf or not 0 < weight < inf:
        return known
    expected = known.value if known.samples else known.prior
    if abs(sample / expected - 1.0) > FAR:
        return _surprised(known, sample, now, weight, weight_most, witness)
    share = max(WEIGHT_LEAST * min(1.0, weight), weight / (known.weight + weight))
    value = expected + (sample - expected) * share if known.samples else sample
    dropped = len(known.odd) if weight >= min(1.0, sum(known.odd_weights)) else 1  # a faint sample replaces one at most
    return ScoreEstimate(
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


def _surprised(
    known: ScoreEstimate, sample: float, now: float, weight: float, weight_most: float, witness: str
) -> ScoreEstimate:
    """After a sample far from the present value: take the new value, if enough samples agree."""
    needed = _needed(known, now)
    odd, weights = _latest((*known.odd, sample), (*known.odd_weights, weight), needed)
    middle = median(odd)
    if sum(weights) < needed - ROUNDING or any(abs(one / middle - 1.0) > NEAR for one in odd):
        return replace(known, odd=odd, odd_weights=weights)
    faint = weight_most < inf
    sudden = not faint and middle >= SUDDEN * (known.value if known.samples else known.prior)
    first = ONE_WITNESS_QUARANTINE_S if witness else QUARANTINE_S
    until = now + min(first * 2.0**known.quarantines, QUARANTINE_S_MAX) if sudden else known.quarantined_until_s
    return ScoreEstimate(
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


def _well(value: float, known: ScoreEstimate) -> bool:
    return value <= known.prior * (1.0 + FAR)


def _needed(known: ScoreEstimate, now: float) -> float:
    """The weight that must agree on a change: more to release a GPU that was quarantined often."""
    if not known.quarantined(now):
        return float(AGREEING)
    return float(min(AGREEING + known.quarantines - 1, AGREEING_MAX))


def _latest(
    odd: tuple[float, ...], weights: tuple[float, ...], needed: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The last samples, as many as are worth `needed` together."""
    total, first = 0.0, len(odd)
    while first and total < needed - ROUNDING and len(odd) - first < ODD_MAX:
        first -= 1
        total += weights[first]
    return odd[first:], weights[first:]
