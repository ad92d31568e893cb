"""How long each token of a stream takes, at how many tokens a second for each replica.

An engine with continuous batching computes one token of each running request in every step. With B requests a step
takes s + k B seconds, so that at r = B / (s + k B) tokens a second each token takes s / (1 - k r): the line that
`Slowdown` learns. Prompts that are computed in between take their part of the time in the same proportion. Streams of
one time differ around that mean; how much is learnt from each sample beside the mean of its own time, so that what an
overload did to all of them does not count as their difference.
"""

from collections.abc import Sequence
from math import inf, sqrt
from statistics import NormalDist

from weft.serving.loads import ReplicaLoad, ServiceLoad
from weft.serving.queueing import HALF_LIFE_SECONDS, MIDDLE, CountsBefore, seconds_of
from weft.serving.slowdown import Slowdown

KNOWN_STREAMS = 20
MEAN_SECONDS = 3.0  # half-life of the mean of now
ALONE_SLOWER = 1.1  # where even a stream alone is too slow: no more than that slower
KV_FULL = 0.9  # part of the KV cache: engines preempt requests from about here on


class TokenPace:
    """While too few streams were read, `keeps` says yes: the size follows the requests alone."""

    def __init__(self, percentile: float) -> None:
        self._deviations = max(0.0, NormalDist().inv_cdf(percentile / 100.0))
        self._before, self._slowdown = CountsBefore(), Slowdown()
        self._totals: tuple[int, int] | None = None  # the tokens and answers in the last report
        self._at = 0.0
        self._mean = 0.0  # seconds for each token, now
        self._streams = self._spread = 0.0  # how many were read, older ones counted less; the sum of (time / mean - 1)²
        self._tokens = self._answers = 0.0  # the same of all answers

    @property
    def known(self) -> bool:
        return self._streams >= KNOWN_STREAMS and self._answers > 0.0

    def take(self, load: ServiceLoad, *, speed: float) -> None:
        """`speed`: all ready replicas together, 1.0 for a typical GPU."""
        counts, before, elapsed = self._before.news(load.token_times), self._totals, load.at - self._at
        self._totals, self._at = (load.tokens_out, load.answered), load.at
        if before is None or speed <= 0.0 or elapsed <= 0.0:
            return
        tokens, answers = max(0, load.tokens_out - before[0]), max(0, load.answered - before[1])
        streams = sum(counts.values())
        mean = seconds_of(counts) / streams if streams else 0.0
        self._slowdown.take(tokens if streams else 0, mean, speed, at=load.at)
        left = 2.0 ** -min(1000.0, elapsed / HALF_LIFE_SECONDS)
        self._tokens, self._answers = self._tokens * left + tokens, self._answers * left + answers
        if not streams:
            return
        kept = 2.0 ** -min(1000.0, elapsed / MEAN_SECONDS) if self._mean else 0.0
        self._mean = self._mean * kept + mean * (1.0 - kept)
        off = sum(count * (MIDDLE[bucket] / self._mean - 1.0) ** 2 for bucket, count in counts.items())
        self._streams, self._spread = self._streams * left + streams, self._spread * left + off

    def keeps(self, each: float, *, within: float, slower: float = 1.0) -> bool:
        """Do the objective's percentile of streams have each token `within` seconds, at `each` requests a second for a
        replica of the speed 1.0? `slower`: than the replicas of now."""
        if not self.known:
            return True
        spread = 1.0 + self._deviations * sqrt(self._spread / self._streams)
        mean, full = self._slowdown.mean(each * self._tokens / self._answers)
        alone, _ = self._slowdown.mean(0.0)
        if mean is None or alone is None:
            return True  # it takes as long at any rate, as far as is known
        return not full and mean * spread * slower <= max(within, ALONE_SLOWER * alone * spread * slower)

    def bears(self, *, within: float, slower: float = 1.0) -> float:
        """The most requests a second for which `keeps` holds; infinite while no bound is known."""
        if not self.known:
            return inf
        spread = 1.0 + self._deviations * sqrt(self._spread / self._streams)
        alone, _ = self._slowdown.mean(0.0)
        if alone is None:
            return inf
        most = max(within / (spread * slower), ALONE_SLOWER * alone)
        return self._slowdown.rate(most) * self._answers / self._tokens if self._tokens > 0.0 else inf


def kv_used(replicas: Sequence[ReplicaLoad]) -> float | None:
    """The part of the KV cache in use, the mean of the ready replicas whose engine reports it; None: none does."""
    told = [one.kv_used for one in replicas if one.ready and one.kv_used is not None]
    return sum(told) / len(told) if told else None


def is_full(replicas: Sequence[ReplicaLoad]) -> bool:
    """Do requests wait in the engines, for want of room in their KV caches?"""
    used = kv_used(replicas)
    return used is not None and used >= KV_FULL and any(one.engine_waiting for one in replicas if one.ready)
