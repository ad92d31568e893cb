"""Weft's own rule: the fewest replicas, with the least share, that keep the objective at the rate to be ready for.

It scales up at once: first with larger shares, which act in milliseconds, then with replicas. It scales down slowly,
and only to a size that would have kept the objective at the highest rate of the last minutes. Starting replicas count
as present, so that none is requested twice. While no router reports, or soon after a restart, nothing shrinks.
docs/serving.md has the rule in one page.
"""

from collections import deque
from math import ceil, inf, sqrt

from weft.domain.job import Cause, CauseCode
from weft.serving.capacity import REPLICAS_MAX, ServiceCapacity
from weft.serving.demand import ServiceDemand
from weft.serving.forecast import DAY_SECONDS
from weft.serving.loads import Goal, ReplicaLoad, ServiceLoad, Sized
from weft.serving.rules import ScalingRules
from weft.serving.starts import LATE, StartTimes
from weft.serving.tokens import KV_FULL, is_full, kv_used

SHORT_SECONDS = 5.0  # replicas that are missing for so long have no GPU
SETTLED_SECONDS = 10.0  # after a replica became ready; until then late requests do not count against the size
TOLD_AGAIN_SECONDS = 10.0  # between two checks whether the objective is reachable
RESERVE_KEPT = 0.9  # a reserve is not made smaller for less
TURNED_SECONDS = 3600.0  # a reversal older than this no longer slows the next one
SEEN_SECONDS = 1.5  # from the beginning of a burst until more replicas are asked for
FAILED_SIZES_MAX = 32
TURNS_MAX = 16
REGRET_SECONDS = 300.0  # replicas requested again within this time were given up too early
WAIT_SECONDS = 4.0  # stands for the latency of a service without an objective


class PredictiveAutoscaler:
    """An `Autoscaler`. `start`: expected seconds of a start, from the workload; `day`: length of a day in seconds."""

    def __init__(
        self,
        goal: Goal,
        *,
        at: float,
        rules: ScalingRules | None = None,
        start: float | None = None,
        day: float = DAY_SECONDS,
    ) -> None:
        self._goal = goal
        self._rules = ScalingRules() if rules is None else rules
        self.starts = StartTimes(start)
        self.demand = ServiceDemand(self._rules, day=day)
        self.capacity = ServiceCapacity(goal, self._rules)
        self._firm_from = at + self._hold  # before, nothing shrinks
        self._began = at
        self._grew_at, self._shrank_at, self._short_since = -inf, -inf, inf
        self._failed: deque[tuple[float, int, float]] = deque(maxlen=FAILED_SIZES_MAX)  # when, replicas, rate
        self._share_asked: tuple[float, int] | None = None
        self._share_most, self._share_most_until = 1000, -inf
        self._cannot, self._cannot_at = "", -inf
        self._reserved = 0
        self._asleep = False  # it has no replica because no request came
        self._woken: deque[float] = deque(maxlen=TURNS_MAX)  # when requests ended that
        self._withdrew_at = -inf  # when it no longer asked for replicas without a GPU
        self._regretted: deque[float] = deque(maxlen=TURNS_MAX)  # when it asked for them again soon after

    @property
    def _hold(self) -> float:
        """Seconds for which a size is kept before it shrinks."""
        rules = self._rules
        return min(rules.hold_most, max(rules.hold_least, rules.hold_starts * self.starts.seconds))

    @property
    def _loan_hold(self) -> float:
        """Seconds for which borrowed replicas are kept; shorter, as their lenders need the GPUs."""
        rules = self._rules
        return min(self._hold, max(rules.loan_least, rules.loan_starts * self.starts.seconds))

    def decide(self, load: ServiceLoad) -> Sized:
        goal = self._goal
        wanted = min(goal.most, max(goal.least, load.wanted))
        if load.silent:
            self._firm_from = max(self._firm_from, load.at + self._hold)
            cause = _cause(f"stays {wanted}: no router reports its requests", {"wanted": float(wanted)})
            return Sized(replicas=wanted, cause=cause, unattainable=self._cannot)
        self.starts.take(load.replicas)
        self.demand.take(load, start=self.starts.seconds)
        self.capacity.variation = self.demand.variation
        self.capacity.take(load)
        there = [one for one in load.replicas if not one.draining]
        starting = [one for one in there if not one.ready]
        self._see_short(load, there)
        share = self._share_now(there, load.at)
        if not there and (load.queued or (wanted == 0 and self.demand.windows.arrivals(SETTLED_SECONDS)[0])):
            return self._from_zero(load, wanted, share)
        sized = self._more(load, wanted, there, starting, share) or self._fewer(load, wanted, there, starting, share)
        if sized is None:
            cause = _cause(f"stays {wanted}", self._numbers(wanted))
            sized = Sized(replicas=wanted, cause=cause)
        return self._told(sized, load, there)

    def predicted(self, replicas: int) -> float | None:
        """Seconds within which the objective's percentile of requests is answered at the present rate by this number of
        replicas; None if unknown, or if they are too few for any latency."""
        return self.capacity.predicted(replicas, self.demand.rate)

    # up

    def _from_zero(self, load: ServiceLoad, wanted: int, share: int | None) -> Sized:
        need = self._needed(self.demand.rate, share) + self._backlog(load, share, 0) if self.capacity.known else 1
        need = min(self._goal.most, max(1, wanted, need))
        if need > wanted:
            self._grew_at = load.at
        if self._asleep:
            self._asleep = False
            self._woken.append(load.at)
        sentence = f"{wanted} → {need}: {load.queued} requests wait and no replica is running"
        cause = _cause(sentence, {**self._numbers(need), "queued": float(load.queued)})
        return self._told(Sized(replicas=need, cause=cause), load, [])

    def _more(
        self,
        load: ServiceLoad,
        wanted: int,
        there: list[ReplicaLoad],
        starting: list[ReplicaLoad],
        share: int | None,
    ) -> Sized | None:
        rules, goal = self._rules, self._goal
        late = [one for one in starting if self._is_late(one, load.at)] if not load.fails else []
        have = len(there) - len(late)
        rate = self.demand.rate
        alarm = self._alarm(load)
        settled = self._is_settled(load, there, starting)
        if alarm and settled and have:
            # Requests that are late now came at the highest rate of the last minute, not at the present one.
            highest = max(self.demand.peak(rules.regret, at=load.at), self.demand.windows.rate(rules.alarm_window))
            self._failed.append((load.at, have, highest))
        if not self.capacity.known:
            return self._more_unknown(load, wanted, have, len(late), share, alarm=alarm and settled)
        trouble = alarm or self.demand.burst
        aim = rules.aim + (1.0 - rules.aim) * self.demand.unsure
        ready = len(there) - len(starting)
        # Checking if the present replicas suffice takes one computation; the number that would takes several.
        reserve = self._reserve(share, load.at)
        suffice = not trouble and have >= max(1, reserve) and self.capacity.fits(have, rate, share=share, aim=aim)
        need = have if suffice else max(reserve, self._needed(rate, share, aim))
        more = min(need, self._backlog(load, share, ready)) if trouble else 0
        need += more
        larger = None
        short = need > have or (alarm and settled)
        if short and share is not None and (most := self._share_bound(load.at)) > share:
            # In a burst use the whole share: the burst may grow, and replicas take far longer to start.
            larger = most if trouble else self._larger(have, rate, share, most, aim)
            need = max(self._needed(rate, larger, aim), self._reserve(larger, load.at))
            if trouble:
                need += min(more, self._backlog(load, larger, ready))
        if alarm and settled and larger is None:
            need = max(need, have + max(1, ceil(have / 10)))
        target = min(goal.most, need + len(late))
        replicas = max(wanted, target) if need > have else wanted
        if replicas <= wanted and larger is None:
            return None
        if replicas > wanted:
            self._grew_at = load.at
            if load.at - self._withdrew_at < REGRET_SECONDS:
                self._regretted.append(load.at)
                self._withdrew_at = -inf
        if larger is not None:
            self._ask_share(larger, load.at)
        cause = _cause(self._why_more(load, wanted, replicas, share, larger, alarm), self._numbers(replicas))
        return Sized(replicas=replicas, share=larger, cause=cause)

    def _more_unknown(
        self, load: ServiceLoad, wanted: int, have: int, late: int, share: int | None, *, alarm: bool
    ) -> Sized | None:
        """Replicas to add while no request was answered and latencies are unknown: enough for the concurrent requests,
        at most double, and no more until those have had time to start."""
        at_once = load.in_flight + load.queued
        waits_long = load.oldest_wait > (self._goal.latency or WAIT_SECONDS) / 4.0
        need = ceil(at_once / (self._rules.busy_most * self._goal.concurrency)) if waits_long else 0
        if alarm and share is not None and (most := self._share_bound(load.at)) > share:
            return self._larger_share(load, wanted, share, min(most, 2 * share))
        if alarm:
            need = max(need, have + 1)
        if have:
            need = min(need, 2 * have if load.at >= self._grew_at + self.starts.seconds else have)
        replicas = min(
            self._goal.most, max(need, 1 if at_once or self._needed(self.demand.foreseen, share) else 0) + late
        )
        if replicas <= wanted or need <= have:
            return None
        self._grew_at = load.at
        return Sized(replicas=replicas, cause=_cause(f"{wanted} → {replicas}: {at_once} concurrent requests", {}))

    def _needed(self, rate: float, share: int | None, aim: float | None = None) -> int:
        """The replicas for that rate, within the maximum; 0 without requests."""
        if not self.capacity.known:
            return 1 if rate * max(self.starts.seconds, self._rules.window) >= 1.0 else 0
        if rate * max(self.starts.seconds, self._rules.window) < 0.5:
            return 0
        return self.capacity.need(rate, share=share, aim=self._rules.aim if aim is None else aim, most=self._goal.most)

    def _reserve(self, share: int | None, at: float) -> int:
        """The replicas that are kept for the bursts to come, those for the usual rate included. A service without
        requests keeps none: its size would swing between its minimum and the reserve."""
        if self._goal.latency is None or self._rules.reserve <= 0.0 or self._is_quiet(at):
            return 0
        if share is not None and self._goal.share_most is not None:
            share = max(share, self._share_bound(at))  # the share grows faster than a burst
        each = self.capacity.each(share)
        if each <= 0.0:
            return 0
        # Requests of the last seconds of a start wait, and are still answered in time.
        late = max(1.0, self.starts.usual + SEEN_SECONDS - max(0.0, self._goal.latency - self._goal.concurrency / each))
        allowed = self._rules.reserve * (1.0 - self._goal.percentile / 100.0)
        most = self.demand.bursts.headroom(at, late=late, allowed=allowed) * self.demand.calm / each
        if not self._reserved * RESERVE_KEPT - 1.0 <= most <= self._reserved + 0.5:
            self._reserved = min(self._goal.most, ceil(most - 0.5))
        return self._reserved

    def _backlog(self, load: ServiceLoad, share: int | None, ready: int) -> int:
        """Extra replicas that answer the backlog once they are ready: the requests that wait now, and those that the
        `ready` replicas cannot answer until then."""
        each = self.capacity.each(share)
        if each <= 0.0:
            return 0
        start = self.starts.seconds
        waits = load.queued + max(0.0, self.demand.rate - each * ready) * start if load.queued else 0.0
        within = max(self._goal.latency or 0.0, self._rules.clear_starts * start, 1.0)
        return min(REPLICAS_MAX, int(waits / (each * within)))

    def _larger(self, have: int, rate: float, share: int, most: int, aim: float) -> int:
        """The smallest share with which the present replicas suffice; the largest if none does."""
        step = self._rules.share_step
        for larger in range(share + step, most, step):
            if have > 0 and self.capacity.fits(have, rate, share=larger, aim=aim):
                return larger
        return most

    def _alarm(self, load: ServiceLoad) -> bool:
        """Are more requests late or refused than chance explains, or are the KV caches of the engines full?"""
        rules = self._rules
        if not rules.alarms:
            return False
        if is_full(load.replicas):
            return True
        windows = self.demand.windows
        bad = windows.bad(rules.alarm_window)
        if load.queued:
            bad += windows.failed(rules.alarm_window)
            if self._goal.latency is not None and load.oldest_wait > self._goal.latency:
                bad += load.queued
        usual = (1.0 - self._goal.percentile / 100.0) * windows.arrivals(rules.alarm_window)[0]
        return bad >= rules.alarm_least + usual + rules.alarm_deviations * sqrt(usual)

    def _is_settled(self, load: ServiceLoad, there: list[ReplicaLoad], starting: list[ReplicaLoad]) -> bool:
        """True if the size has been constant for long enough to judge it."""
        if len(there) < load.wanted or any(not self._is_late(one, load.at) for one in starting):
            return False
        newest = max((one.ready_at for one in there if one.ready_at is not None), default=-inf)
        return load.at >= max(newest, self._grew_at) + SETTLED_SECONDS

    def _is_late(self, one: ReplicaLoad, at: float) -> bool:
        return one.started_at is not None and at - one.started_at > LATE * max(self.starts.seconds, 1.0)

    # down

    def _fewer(
        self,
        load: ServiceLoad,
        wanted: int,
        there: list[ReplicaLoad],
        starting: list[ReplicaLoad],
        share: int | None,
    ) -> Sized | None:
        goal, rules = self._goal, self._rules
        if wanted > goal.least and self._is_idle(load, starting):
            self._asleep = goal.least == 0
            idle = load.at - self._quiet_since
            return Sized(replicas=goal.least, cause=_cause(f"{wanted} → {goal.least}: no request for {idle:.0f} s", {}))
        if wanted > len(there) and (fewer := self._withdrawn(load, wanted, len(there), share)) is not None:
            return fewer
        at = load.at
        borrowed = sum(one.borrowed for one in there)
        hold = self._loan_hold if borrowed else self._hold
        if at < max(self._firm_from, self._grew_at + hold, self._shrank_at + rules.down_every) or starting:
            return None
        if load.queued or self._alarm(load) or wanted > len(there):
            return None
        allowed = (1.0 - goal.percentile / 100.0) * self.demand.windows.arrivals(rules.regret)[0]
        if self.demand.windows.bad(rules.regret) > max(1.0, allowed):
            return None
        rate = max(self.demand.peak(hold, at=at), self.demand.bound())
        step = max(1, wanted // rules.down_part)
        step = min(step, borrowed) if borrowed else step
        floor = max(goal.least, 1, self._reserve(share, at))
        for replicas in sorted({max(floor, wanted - step), max(floor, wanted - 1)}):
            if replicas < wanted and self._suffices(replicas, rate, share, at) and _holds(load, len(there), replicas):
                self._shrank_at = at
                sentence = f"{wanted} → {replicas}: enough for the recent peak of {rate:.3g} requests/s"
                return Sized(replicas=replicas, cause=_cause(sentence, self._numbers(replicas)))
        return self._smaller(load, wanted, rate, share)

    def _smaller(self, load: ServiceLoad, wanted: int, rate: float, share: int | None) -> Sized | None:
        goal = self._goal
        if not self._rules.shares or share is None or goal.share is None or share <= goal.share:
            return None
        less = max(goal.share, share - self._rules.share_step)
        if not self.capacity.known or not self.capacity.fits(wanted, rate, share=less, aim=self._rules.down_aim):
            return None
        self._shrank_at, self._share_asked = load.at, None
        sentence = f"share {share / 1000:g} → {less / 1000:g}: enough for the recent peak of {rate:.3g} requests/s"
        return Sized(replicas=wanted, share=less, cause=_cause(sentence, self._numbers(wanted)))

    def _withdrawn(self, load: ServiceLoad, wanted: int, there: int, share: int | None) -> Sized | None:
        """Withdraw requested replicas without a GPU once they have not been needed for a while. The while doubles for
        each time in the last hour that they were requested again soon after."""
        lately = min(self._rules.hold_most, self._rules.window / 2 * 2 ** _lately(self._regretted, load.at))
        if load.at < max(self._firm_from, self._grew_at + lately) or not self.capacity.known:
            return None
        # Counted as in `_more`, at the highest recent rate: withdrawn replicas must not be requested again at once.
        rate = self.demand.peak(lately, at=load.at)
        need = max(self._needed(rate, share), self._reserve(share, load.at))
        need += min(need, self._backlog(load, share, there))
        too_few = self._too_few(rate, load.at)
        need = max(there, self._goal.least, need, too_few + 1 if too_few else 0)
        if need >= wanted:
            return None
        self._withdrew_at = load.at
        return Sized(replicas=need, cause=_cause(f"{wanted} → {need}: no longer needed", self._numbers(need)))

    def _suffices(self, replicas: int, rate: float, share: int | None, at: float) -> bool:
        if replicas <= self._too_few(rate, at):
            return False
        if not self.capacity.known:
            return self.demand.measured * self._hold < 0.5
        return self.capacity.fits(replicas, rate, share=share, aim=self._rules.down_aim)

    def _too_few(self, rate: float, at: float) -> int:
        """The largest number of replicas with which requests were late recently at such a rate."""
        remembered = self._rules.remembered
        return max(
            (had for when, had, then in self._failed if at - when < remembered and rate >= 0.9 * then), default=0
        )

    def _is_idle(self, load: ServiceLoad, starting: list[ReplicaLoad]) -> bool:
        busy = bool(load.queued or load.in_flight or starting) or load.at < self._firm_from
        return not busy and not self._needed(self.demand.foreseen, None) and self._is_quiet(load.at)

    def _is_quiet(self, at: float) -> bool:
        """True if no request came for long enough. The time doubles for each time in the last hour that the service
        went to zero too early, so that one request every few minutes does not start a replica each time."""
        rules = self._rules
        least = max(rules.idle_least, rules.idle_starts * self.starts.seconds)
        quiet: float = min(rules.idle_most, least * 2 ** _lately(self._woken, at))
        return at - self._quiet_since >= quiet

    @property
    def _quiet_since(self) -> float:
        return self._began if self.demand.arrived_at is None else self.demand.arrived_at

    # shares

    def _share_now(self, there: list[ReplicaLoad], at: float) -> int | None:
        """The share of every replica. A larger share that was requested and not granted is not requested again for a
        while."""
        if not self._rules.shares or self._goal.share is None or self._goal.share_most is None:
            return None
        share = min((one.share for one in there if one.share is not None), default=self._goal.share)
        if self._share_asked is not None:
            when, asked = self._share_asked
            if share >= asked:
                self._share_asked = None
            elif at - when >= self._rules.share_wait:
                self._share_most, self._share_most_until = share, at + self._rules.share_rest
                self._share_asked = None
        on_its_way = self._share_asked is not None
        self.capacity.share_most = self._goal.share_most if on_its_way else max(share, self._share_bound(at))
        return share

    def _larger_share(self, load: ServiceLoad, wanted: int, share: int, larger: int) -> Sized:
        self._ask_share(larger, load.at)
        sentence = f"share {share / 1000:g} → {larger / 1000:g}: more requests are late than the objective allows"
        return Sized(replicas=wanted, share=larger, cause=_cause(sentence, self._numbers(wanted)))

    def _ask_share(self, larger: int, at: float) -> None:
        self._share_asked, self._grew_at = (at, larger), at
        self._failed.clear()  # with larger shares, fewer replicas may do

    def _share_bound(self, at: float) -> int:
        assert self._goal.share_most is not None, "only services with shares are asked"
        if self._share_asked is not None:
            return 0  # it is on its way
        return min(self._goal.share_most, self._share_most if at < self._share_most_until else 1000)

    # why the objective cannot be kept, for the finding `unattainable`

    def _see_short(self, load: ServiceLoad, there: list[ReplicaLoad]) -> None:
        short = len(there) < load.wanted
        self._short_since = min(self._short_since, load.at) if short else inf

    def _told(self, sized: Sized, load: ServiceLoad, there: list[ReplicaLoad]) -> Sized:
        if load.at - self._cannot_at >= TOLD_AGAIN_SECONDS or sized.replicas != load.wanted:
            self._cannot, self._cannot_at = self._why_not(sized, load, there), load.at
        if not self._cannot:
            return sized
        return Sized(replicas=sized.replicas, cause=sized.cause, share=sized.share, unattainable=self._cannot)

    def _why_not(self, sized: Sized, load: ServiceLoad, there: list[ReplicaLoad]) -> str:
        """Why the objective cannot be kept, now or at the rate that it names."""
        goal, capacity = self._goal, self.capacity
        share = goal.share_most if self._rules.shares and goal.share is not None else None
        if goal.latency is not None and capacity.known:
            alone = capacity.alone(share)
            if alone is not None and alone > goal.latency:
                with_share = f" with {share / 1000:g} of a GPU" if share is not None else ""
                return (
                    f"one request alone takes {alone:.3g} s at the {goal.percentile:g}th percentile{with_share}; "
                    f"the objective is {goal.latency:g} s"
                )
        if load.at - self._short_since >= SHORT_SECONDS:
            room = "" if load.room is None else f", and there is room for {load.room} more"
            fails = f": {load.fails}" if load.fails else room
            return f"it needs {load.wanted} replicas and has {len(there)}{fails}"
        if not capacity.known:
            return ""
        rate = self.demand.rate
        if not capacity.fits(goal.most, rate, share=share, aim=1.0):
            bears = capacity.bears(goal.most, share=share, aim=1.0)
            return f"it receives {rate:.3g} requests/s; its maximum of {goal.most} replicas can serve {bears:.3g}/s"
        if goal.rate is not None and not capacity.fits(goal.most, goal.rate, share=share, aim=1.0):
            bears = capacity.bears(goal.most, share=share, aim=1.0)
            return (
                f"its objective is {goal.rate:g} requests/s; its maximum of {goal.most} replicas"
                f" can serve {bears:.3g}/s"
            )
        return ""

    def _why_more(
        self, load: ServiceLoad, wanted: int, replicas: int, share: int | None, larger: int | None, alarm: bool
    ) -> str:
        what = [f"{wanted} → {replicas}"] if replicas != wanted else []
        if larger is not None and share is not None:
            what.append(f"share {share / 1000:g} → {larger / 1000:g}")
        why = f"{self.demand.rate:.3g} requests a second"
        if self.demand.burst:
            why += " in a burst"
        elif self.demand.foreseen >= self.demand.rate > 0.0:
            why += " are usual at this time"
        if alarm and is_full(load.replicas):
            why += ", and the KV caches of its replicas are full"
        elif alarm:
            why += ", more of them late or refused than the objective allows"
        if load.queued:
            why += f", {load.queued} wait"
        return f"{', '.join(what)}: {why}"

    def _numbers(self, replicas: int) -> dict[str, float]:
        shape = self.capacity.shape
        numbers = {"replicas": float(replicas), "rate": round(self.demand.rate, 3)}
        if shape is not None:
            numbers["service_seconds"] = round(shape.mean, 6)
        return numbers


def _holds(load: ServiceLoad, there: int, replicas: int) -> bool:
    """Would that number have room in their KV caches for what is in them now?"""
    used = kv_used(load.replicas)
    return used is None or used * there / replicas < KV_FULL


def _cause(sentence: str, numbers: dict[str, float]) -> Cause:
    return Cause(code=CauseCode.LOAD, sentence=sentence, numbers=numbers)


def _lately(turns: deque[float], at: float) -> int:
    return sum(at - then < TURNED_SECONDS for then in turns)
