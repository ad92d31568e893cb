"""The request rate for which a service must be ready: from arrivals, a trend, bursts and earlier days."""

from collections import deque
from math import sqrt

from weft.serving.bursts import STEADY_SECONDS, PastBursts
from weft.serving.forecast import DAY_SECONDS, Forecast
from weft.serving.loads import ServiceLoad
from weft.serving.rules import ScalingRules
from weft.serving.windows import CountWindows, likelihood_of_change

VARIATION_MOST = 8.0
VARIATION_KNOWN = 30.0  # samples: with fewer, arrivals count mostly as a Poisson process
FIRST_DEVIATIONS = 2.0  # standard deviations by which the rate of less than a window may be too high
CHANGED_AT = 6.0  # the logarithm of a likelihood
TREND_MOST, TREND_NOW_SECONDS = 1.25, 20.0
CALM_SECONDS = 180.0  # of the mean without bursts
FALL_DEVIATIONS = 2.0  # standard deviations by which the rate after a fall may be higher
CLIPPED_AT = 16.0  # times the mean: a larger change is a jump of the rate, not variation


class ServiceDemand:
    """`rate`: the rate to be ready for now; `burst`: True if a burst is part of it; `peak(seconds)`: its recent
    maximum."""

    def __init__(self, rules: ScalingRules, *, day: float = DAY_SECONDS) -> None:
        self._rules = rules
        self.windows = CountWindows()
        self.forecast = Forecast(day=day)
        self.bursts = PastBursts()
        self.rate = 0.0
        self.measured = 0.0  # of the last minute
        self.calm = 0.0  # of the last minutes, without bursts
        self.foreseen = 0.0
        self.unsure = 1.0  # uncertainty of the rate: 1 at first, 0 after two windows
        self.burst = False
        self.variation = 1.0  # the squared coefficient of variation of the times between arrivals
        self.arrived_at: float | None = None  # when a request arrived last
        self._peaks: deque[tuple[float, float]] = deque()  # rates that fall, the newest last
        self._squares, self._counts = 0.0, 0.0
        self._since_fall: float | None = None  # the window in which significantly less arrived than before it
        self._before: tuple[float, float] | None = None  # duration of the last sample, and its number of arrivals

    def take(self, load: ServiceLoad, *, start: float) -> None:
        """`start`: seconds in which a replica becomes ready."""
        rules, windows = self._rules, self.windows
        is_news = windows.take(load)
        count, lasted = windows.last()
        if count or load.queued or load.in_flight:
            self.arrived_at = load.at
        if is_news:
            self._vary(count, lasted)
        self._since_fall = self._fall()
        self.measured = windows.rate(rules.window)
        self.unsure = max(0.0, 1.0 - windows.known_seconds() / (2.0 * rules.window))
        rate = max(self._at_least(), self._trend(start))
        self.burst = False
        if rules.sees_bursts:
            burst, before = self._burst()
            self.burst = burst > rate
            self.bursts.take(
                load.at, burst=burst if self.burst else 0.0, before=before, rate=windows.rate(STEADY_SECONDS)
            )
            rate = max(burst, rate)
        if self.bursts.before is None and lasted > 0.0 and is_news:
            known = min(windows.known_seconds(), CALM_SECONDS)
            self.calm += (count / lasted - self.calm) * min(1.0, lasted / max(known, lasted))
        self.foreseen = 0.0
        if rules.forecasts:
            if windows.known_seconds() >= rules.window:
                self.forecast.take(self.measured, at=load.at)
            self.foreseen = self.forecast.highest(at=load.at, seconds=start)
            rate = max(rate, self.foreseen)
        self.rate = rate
        self._remember(load.at)

    def peak(self, seconds: float, *, at: float) -> float:
        """The highest rate of the last `seconds`."""
        return next((rate for then, rate in self._peaks if then >= at - seconds), self.rate)

    def bound(self) -> float:
        """A bound that the measured rate will hardly exceed if arrivals continue as now: the rate of the last minutes
        without change, plus the deviation by chance of that rate and of each window."""
        rules, windows = self._rules, self.windows
        if self._since_fall is not None:
            late, seconds = windows.arrivals(self._since_fall)
            rate = late / seconds + rules.rate_deviations * sqrt(self.variation * max(late, 1.0)) / seconds
            return rate + rules.noise * sqrt(self.variation * max(rate, 1.0 / rules.window) / rules.window)
        late, seconds, early, early_seconds = windows.arrivals_and_before(rules.window, rules.steady * rules.window)
        changed = likelihood_of_change(late, seconds, early, early_seconds) / self.variation >= CHANGED_AT
        if early_seconds > 0.0 and not changed:
            late, seconds = late + early, seconds + early_seconds
        if seconds <= 0.0:
            return self.rate
        rate = late / seconds + rules.rate_deviations * sqrt(self.variation * max(late, 1.0)) / seconds
        return rate + rules.noise * sqrt(self.variation * max(rate, 1.0 / rules.window) / rules.window)

    def _remember(self, at: float) -> None:
        while self._peaks and self._peaks[-1][1] <= self.rate:
            self._peaks.pop()
        self._peaks.append((at, self.rate))
        while self._peaks[0][0] < at - self._rules.hold_most:
            self._peaks.popleft()

    def _at_least(self) -> float:
        """The measured rate; in the first window, with few requests, its lower confidence bound."""
        if self._since_fall is not None:
            late, seconds = self.windows.arrivals(self._since_fall)
            return min(self.measured, (late + FALL_DEVIATIONS * sqrt(self.variation * max(late, 1.0))) / seconds)
        if self.unsure <= 0.0 or self.measured <= 0.0:
            return self.measured
        count = self.measured * max(self.windows.known_seconds(), 1e-9)
        return self.measured * max(0.0, 1.0 - self.unsure * FIRST_DEVIATIONS * sqrt(self.variation / count))

    def _trend(self, start: float) -> float:
        """The expected rate when a replica that starts now is ready, if the rate grows significantly. A jump is no
        slope, so it is at most a quarter above the present rate."""
        most, bound = 0.0, TREND_MOST * self.windows.rate(TREND_NOW_SECONDS)
        for half in (self._rules.window / 2, self._rules.window, 2 * self._rules.window):
            late, late_seconds, early, early_seconds = self.windows.arrivals_and_before(half, 2 * half)
            if late_seconds < 0.9 * half or early_seconds < 0.9 * half:
                continue
            now, then = late / late_seconds, early / early_seconds
            if now <= then:
                continue
            sure = likelihood_of_change(late, late_seconds, early, early_seconds) / self.variation
            if sure >= self._rules.trend_likelihood:
                most = max(most, min(bound, now + (now - then) / half * (start + half / 2)))
        return most

    def _burst(self) -> tuple[float, float]:
        """The rate of a window that is significantly higher than the one before it, and the rate before; 0 if there is
        none."""
        most, before = 0.0, 0.0
        for window in self._rules.bursts:
            since = window + self._rules.window
            count, lasted, early, early_seconds = self.windows.arrivals_and_before(window, since)
            if lasted <= 0.0 or early_seconds < window or count * early_seconds <= early * lasted:
                continue
            sure = likelihood_of_change(count, lasted, early, early_seconds) / self.variation
            if sure >= self._rules.likelihood and count / lasted > most:
                most, before = count / lasted, early / early_seconds
        return most, before

    def _fall(self) -> float | None:
        """The shortest window, within the usual one, in which significantly less arrived than before it; None if there
        is none."""
        for window in self._rules.falls:
            count, lasted, early, early_seconds = self.windows.arrivals_and_before(window, self._rules.window)
            if lasted < 0.9 * window or early_seconds < window or count * early_seconds >= early * lasted:
                continue
            if likelihood_of_change(count, lasted, early, early_seconds) / self.variation >= self._rules.likelihood:
                return window
        return None

    def _vary(self, count: int, lasted: float) -> None:
        """Learn the variation from neighbouring samples, so that a trend does not count as variation."""
        if not 0.5 <= lasted <= 2.0:
            self._before = None
            return
        before, self._before = self._before, (lasted, count)
        if before is None:
            return
        mean = (count + before[1]) / (lasted + before[0])
        square = (count / lasted - before[1] / before[0]) ** 2 / (1.0 / lasted + 1.0 / before[0])
        left = 1.0 - 1.0 / self._rules.variation_samples
        self._squares = self._squares * left + min(square, CLIPPED_AT * mean)
        self._counts = self._counts * left + mean
        if self._counts > 0.0:
            known = VARIATION_KNOWN * max(mean, 1.0)
            self.variation = min(VARIATION_MOST, max(1.0, (self._squares + known) / (self._counts + known)))
