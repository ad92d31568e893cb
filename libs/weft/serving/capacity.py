"""Capacity of a number of replicas, from the measured times of requests and the speed of the GPUs."""

from collections.abc import Sequence
from math import ceil, exp, log

from weft.domain.shares import WHOLE
from weft.serving.loads import Goal, ReplicaLoad, ServiceLoad
from weft.serving.queueing import (
    HALF_LIFE_SECONDS,
    CountsBefore,
    ServiceTimes,
    Shape,
    late_alone,
    late_by_waiting,
    seconds_of,
    waiting_makes_at_most,
)
from weft.serving.rules import ScalingRules
from weft.serving.slowdown import Slowdown
from weft.serving.tokens import TokenPace

KNOWN_ANSWERS = 20
FRESH_PART = 0.2  # fraction of the answers of a sample; with more from fresh replicas the sample is left out
WHOLE_ANSWER = 0.9  # from this part of its time on, an answer counts as sent all at once
ELASTIC_ANSWERS = 50  # answers with another share before its effect is judged
ELASTIC_LEAST, ELASTIC_MOST = 0.0, 1.2
SECONDS_MAX = 1e6
REPLICAS_MAX = 65_536  # largest number for which a need is computed


class ServiceCapacity:
    def __init__(self, goal: Goal, rules: ScalingRules) -> None:
        self._goal, self._rules = goal, rules
        self._services, self._steady = ServiceTimes(), ServiceTimes()  # all; without those of fresh replicas
        self._before = CountsBefore(), CountsBefore(), CountsBefore()  # of the waits, the services and the totals
        self._slowdown = Slowdown()
        self._pace = TokenPace(goal.percentile)
        self._mass, self._at = 0.0, 0.0  # how many times were measured, older ones counted less; and when the last was
        self._score_log, self._share_log = 0.0, 0.0  # means: of the GPUs and shares with which they were measured
        self._rate_mean = 0.0  # requests a second for each replica, when they were
        self._sums = [0.0, 0.0, 0.0]  # of the waits, the services and the totals
        self._answered: dict[int, int] = {}
        self._elastic = 1.0  # a share that is twice as large makes a request 2 ** this times as fast
        self._share_trial: tuple[int, float, int, float] | None = None  # share and mean before; answers and time since
        self._share: int | None = goal.share
        self._score_now = 0.0
        self._needed_last = 1  # the last answer of `need`
        self._speeds: dict[int | None, tuple[float, float]] = {}  # for each share; until more is known
        self._late_of: Shape | None = None
        self._late: dict[tuple[float, float, float], float] = {}  # parts of that shape that are late alone
        self.variation = 1.0  # of the times between arrivals, as `ServiceDemand` has it
        self.share_most: int | None = None  # largest possible share; None: no shares, or no other share
        self.speed = 1.0  # speed of a replica now; 1.0: a whole typical GPU

    @property
    def known(self) -> bool:
        """True if enough requests were answered to know their times."""
        return self._services.count >= KNOWN_ANSWERS

    @property
    def shape(self) -> Shape | None:
        """None while too little is known."""
        return self._services.shape if self.known else None

    @property
    def elastic(self) -> float:
        """The benefit of shares: 1.0 for all that they promise, 0.0 for none."""
        return self._elastic

    def take(self, load: ServiceLoad) -> None:
        ready = [one for one in load.replicas if one.ready and not one.draining]
        waits_before, before, totals_before = self._before
        waits, counts, totals = (
            waits_before.seconds(load.waits),
            before.news(load.services),
            totals_before.seconds(load.totals),
        )
        fresh = self._is_fresh(load, ready)
        if not ready:
            return
        self._speeds.clear()
        self._see_share(ready)
        self._speeds.clear()
        score = sum([1.0 / max(0.01, one.score) for one in ready]) / len(ready)
        self._score_now = log(score)
        self.speed = score * self._part(self._share)
        answers = sum(counts.values())
        mean = seconds_of(counts) / answers if answers else 0.0
        if self._goal.tpot is not None:
            self._pace.take(load, speed=len(ready) * self.speed)
        if self._goal.concurrency > 1:
            self._slowdown.take(answers, mean, len(ready) * self.speed, at=load.at)
        if not answers or (fresh and self._services is self._steady):
            return
        self._learn_elastic(answers, mean)
        elapsed = min(load.at - self._at, HALF_LIFE_SECONDS) if self._mass else 1.0
        left = 2.0 ** (-max(0.0, elapsed) / HALF_LIFE_SECONDS)
        self._at = load.at
        self._mass = self._mass * left + answers
        part = answers / self._mass
        self._score_log += (self._score_now - self._score_log) * part
        self._share_log += (_share_log(self._share) - self._share_log) * part
        if elapsed > 0.0:
            self._rate_mean += (answers / elapsed / (len(ready) * self.speed) - self._rate_mean) * part
        self._services.add(counts, at=load.at)
        if not fresh and self._services is not self._steady:
            self._steady.add(counts, at=load.at)
            if self._steady.count >= KNOWN_ANSWERS:
                self._services = self._steady
        for place, seconds in enumerate((waits, mean * answers, totals)):
            self._sums[place] = self._sums[place] * left + seconds
        self._speeds.clear()

    def fits(self, replicas: int, rate: float, *, share: int | None = None, aim: float) -> bool:
        """True if this number of replicas keeps `aim` times the latency at that rate. `share`: if not the present
        one."""
        shape = self.shape
        if shape is None:
            return True
        if replicas <= 0:
            return rate <= 0.0
        slower, full = self._slower(rate / replicas, share)
        servers = replicas * self._goal.concurrency
        if full or rate * shape.mean * slower >= servers:
            return False
        if self._goal.latency is None:
            return rate * shape.mean * slower <= servers * self._rules.busy_most * aim / self._rules.aim
        within = aim * self._goal.latency
        first = self._first
        late = self._late_alone(shape, slower, first, within)
        allowed = 1.0 - self._goal.percentile / 100.0
        if self._goal.tpot is not None and not self._keeps_tokens(rate / replicas, share, aim):
            return False
        if late > allowed / 2.0:
            # Requests that take too long even alone, with the largest share, are no reason for more replicas.
            idle = self._late_alone(shape, self._slower(0.0, self.share_most)[0], first, within)
            allowed = max(allowed, idle + allowed / 2.0)
        return late <= allowed and waiting_makes_at_most(
            allowed - late,
            shape,
            servers=servers,
            rate=rate,
            slower=slower,
            first=first,
            within=within,
            arrivals=self.variation,
        )

    def _keeps_tokens(self, each: float, share: int | None, aim: float) -> bool:
        """Do the tokens after the first come soon enough, at `each` requests a second for a replica?"""
        assert self._goal.tpot is not None, "only such services are asked"
        speed = self._speed(share)
        # Half the margin: a mean over the tokens of an answer varies less than a wait.
        within = (1.0 + aim) / 2.0 * self._goal.tpot
        return self._pace.keeps(each / speed, within=within, slower=self.speed / speed)

    def need(self, rate: float, *, share: int | None = None, aim: float, most: int = REPLICAS_MAX) -> int:
        """The fewest replicas that keep the latency at that rate; `most` if even `most` do not. The search starts near
        the last answer, since more replicas never do worse than fewer."""
        low = min(most, self._busy(rate, share)) - 1  # this number would be busy all the time
        high, step = min(most, max(low + 1, self._needed_last)), 1
        if self.fits(high, rate, share=share, aim=aim):
            while high - step > low and self.fits(high - step, rate, share=share, aim=aim):
                high, step = high - step, 2 * step
            low = max(low, high - step)
        else:
            low = high
            while high < most:
                low, high, step = high, min(most, high + step), 2 * step
                if self.fits(high, rate, share=share, aim=aim):
                    break
            else:
                low = high
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle, rate, share=share, aim=aim):
                high = middle
            else:
                low = middle
        self._needed_last = high
        return high

    def bears(self, replicas: int, *, share: int | None = None, aim: float) -> float:
        """The highest rate, within one percent, at which this number of replicas keeps the latency."""
        shape = self.shape
        if shape is None or replicas <= 0:
            return 0.0
        low, high = 0.0, replicas * self._goal.concurrency / (shape.mean * self._slower(0.0, share)[0])
        while high - low > 0.01 * high:
            middle = (low + high) / 2
            if self.fits(replicas, middle, share=share, aim=aim):
                low = middle
            else:
                high = middle
        return low

    def predicted(self, replicas: int, rate: float) -> float | None:
        """Seconds, within two percent, within which the objective's percentile of requests is answered; None: not
        known, or the replicas do not suffice for any."""
        shape = self.shape
        if shape is None or replicas <= 0:
            return None
        slower, full = self._slower(rate / replicas, None)
        servers = replicas * self._goal.concurrency
        if full or rate * shape.mean * slower >= servers:
            return None
        allowed = 1.0 - self._goal.percentile / 100.0

        def late(within: float) -> float:
            first = self._first
            waits = late_by_waiting(
                shape,
                servers=servers,
                rate=rate,
                slower=slower,
                first=first,
                within=within,
                arrivals=self.variation,
            )
            return waits + late_alone(shape, slower=slower, first=first, within=within)

        low, high = 0.0, shape.parts[-1][1] * slower
        while late(high) > allowed and high < SECONDS_MAX:
            low, high = high, 2.0 * high
        while high - low > 0.02 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if late(middle) > allowed else (low, middle)
        return high

    def alone(self, share: int | None = None) -> float | None:
        """Seconds until the objective's percentile of requests gets the first byte, if none waits; None if unknown."""
        shape = self.shape
        if shape is None:
            return None
        left = 1.0 - self._goal.percentile / 100.0
        slower = self._slower(0.0, share)[0] * self._first
        for low, high, part in reversed(shape.parts):
            if part >= left:
                return (high - (high - low) * left / part) * slower
            left -= part
        return shape.parts[0][0] * slower

    def each(self, share: int | None = None) -> float:
        """The most requests per second that one replica can answer; 0 if unknown."""
        shape = self.shape
        if shape is None:
            return 0.0
        each = self._goal.concurrency / (shape.mean * self._slower(0.0, share)[0])
        if self._goal.tpot is None:
            return each
        speed = self._speed(share)
        return min(each, speed * self._pace.bears(within=self._goal.tpot, slower=self.speed / speed))

    def _late_alone(self, shape: Shape, slower: float, first: float, within: float) -> float:
        """Like `late_alone`, cached within one decision."""
        if shape is not self._late_of:
            self._late_of = shape
            self._late.clear()
        key = (slower, first, within)
        late = self._late.get(key)
        if late is None:
            late = self._late[key] = late_alone(shape, slower=slower, first=first, within=within)
        return late

    def _busy(self, rate: float, share: int | None) -> int:
        each = self.each(share)
        return 1 if each <= 0.0 else min(REPLICAS_MAX, max(1, ceil(min(rate / each, REPLICAS_MAX))))

    @property
    def _first(self) -> float:
        """The part of its time at a replica after which a request's answer begins."""
        waits, services, totals = self._sums
        if services <= 0.0 or totals <= 0.0:
            return 1.0
        part = (totals - waits) / services
        return 1.0 if part >= WHOLE_ANSWER else max(0.01, part)

    def _slower(self, each: float, share: int | None) -> tuple[float, bool]:
        """The factor on the measured time of a request at `each` requests per second and replica, and True if that
        exceeds a replica's capacity."""
        given = self._share if share is None or self._share is None else share
        found = self._speeds.get(given)
        if found is None:
            slower = exp(self._score_log - self._score_now + self._elastic * (self._share_log - _share_log(given)))
            found = self._speeds[given] = slower, exp(self._score_now) * self._part(given)
        slower, speed = found
        if not self._slowdown.known:
            return slower, False
        each /= speed
        return slower * self._slowdown.times(each) / self._slowdown.times(self._rate_mean), self._slowdown.full(each)

    def _speed(self, share: int | None) -> float:
        """The speed of a replica with that share, as `speed` is with the one of now."""
        return exp(self._score_now) * self._part(self._share if share is None or self._share is None else share)

    def _part(self, share: int | None) -> float:
        """The speed with this share, as a part of the GPU's."""
        return exp(self._elastic * _share_log(share))

    def _see_share(self, ready: Sequence[ReplicaLoad]) -> None:
        shares = [one.share for one in ready if one.share is not None]
        share = min(shares, default=None)
        if share != self._share and share is not None and self._share is not None and self.known:
            shape = self.shape
            assert shape is not None, "it is known"
            mean_before = shape.mean * self._slower(self._rate_mean * self.speed, None)[0]
            self._share_trial = (self._share, mean_before, 0, 0.0)
        self._share = share

    def _learn_elastic(self, answers: int, mean: float) -> None:
        """Learn the benefit of shares, once enough requests were answered with another share."""
        if self._share_trial is None or self._share is None:
            return
        share, before, count, took = self._share_trial
        count, took = count + answers, took + answers * mean
        self._share_trial = (share, before, count, took)
        if count < ELASTIC_ANSWERS:
            return
        self._share_trial = None
        grew = log(self._share / share)
        if abs(grew) > 0.1 and took > 0.0 and before > 0.0:
            found = log(before * count / took) / grew
            self._elastic += (min(ELASTIC_MOST, max(ELASTIC_LEAST, found)) - self._elastic) / 2.0

    def _is_fresh(self, load: ServiceLoad, ready: Sequence[ReplicaLoad]) -> bool:
        """True if many of the latest answers come from replicas that became ready just now."""
        before, recent = self._answered, self._rules.fresh
        self._answered = {one.rank: one.answered for one in ready}
        young = [one for one in ready if one.ready_at is not None and load.at - one.ready_at < recent]
        if not young:
            return False
        fresh, total = (
            sum([max(0, one.answered - before.get(one.rank, one.answered)) for one in some]) for some in (young, ready)
        )
        return fresh > FRESH_PART * total


def _share_log(share: int | None) -> float:
    return 0.0 if share is None else log(max(1, share) / WHOLE)
