"""What the autoscaler is made of: the queue's formulas, rates that changed, starts, forecasts, replicas that share."""

import itertools
from random import Random
from time import process_time

import pytest

from tests.support.served import Served, bucket
from weft.serving.autoscaler import PredictiveAutoscaler
from weft.serving.bursts import PastBursts
from weft.serving.demand import ServiceDemand
from weft.serving.forecast import SLOTS_A_DAY, Forecast
from weft.serving.lateness import AnswerTimes
from weft.serving.loads import Goal, ReplicaLoad, ServiceLoad
from weft.serving.policies import QUICK
from weft.serving.queueing import Shape, late_alone, late_by_waiting, waiting_makes_at_most, waiting_part
from weft.serving.slowdown import Slowdown
from weft.serving.starts import SECONDS_AT_FIRST, StartTimes
from weft.serving.windows import CountWindows, likelihood_of_change

AT = 1_000_000.0


def erlang_c(servers: int, load: float) -> float:
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked / (1.0 - load / servers * (1.0 - blocked))


@pytest.mark.parametrize("servers", [1, 2, 5, 10, 50, 200])
@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8, 0.9, 0.97])
def test_the_part_that_waits_is_erlang_s_c_to_a_few_hundredths(servers: int, busy: float) -> None:
    assert waiting_part(servers, busy * servers) == pytest.approx(erlang_c(servers, busy * servers), abs=0.06)


@pytest.mark.parametrize(("servers", "rate"), [(1, 1.4), (4, 6.4), (10, 17.0)])
def test_the_late_part_that_is_predicted_is_what_a_queue_shows(servers: int, rate: float) -> None:
    goal = Goal(least=servers, most=servers, concurrency=1, latency=1.5, percentile=99.0)
    rule = PredictiveAutoscaler(goal, at=AT)
    run = Served(
        rule, goal, rate=lambda at: rate, service=lambda random: random.gammavariate(4.0, 0.125), wanted=servers
    )
    run.run(4 * 3600.0)
    shape = rule.capacity.shape
    assert shape is not None
    predicted = late_alone(shape, slower=1.0, first=1.0, within=1.5) + late_by_waiting(
        shape, servers=servers, rate=rate, slower=1.0, first=1.0, within=1.5, arrivals=1.0
    )
    assert predicted == pytest.approx(run.late / run.answered, rel=0.5, abs=0.005)


def test_more_replicas_never_make_more_requests_late() -> None:
    random = Random(5)
    for _ in range(200):
        parts = ((0.0, random.uniform(0.01, 1.0), 0.7), (1.0, random.uniform(1.1, 3.0), 0.3))
        shape = Shape(0.6, random.uniform(0.0, 4.0), parts)
        rate, within = random.uniform(0.1, 100.0), random.uniform(0.1, 5.0)
        late = [
            late_by_waiting(shape, servers=count, rate=rate, slower=1.0, first=1.0, within=within, arrivals=1.0)
            for count in range(1, 120)
        ]
        assert all(more <= less + 1e-12 for less, more in itertools.pairwise(late))


def test_whether_too_many_are_late_is_answered_early_and_as_the_whole_computation_answers_it() -> None:
    random = Random(11)
    answers = set()
    for _ in range(3000):
        edges = sorted(random.uniform(0.0, 4.0) for _ in range(13))
        weights = [random.random() for _ in edges[1:]]
        parts = tuple(
            (low, high, weight / sum(weights))
            for (low, high), weight in zip(itertools.pairwise(edges), weights, strict=True)
        )
        shape = Shape(sum((low + high) / 2 * part for low, high, part in parts), random.uniform(0.0, 4.0), parts)
        servers, slower, first = random.randrange(0, 30), random.uniform(0.3, 3.0), random.choice((1.0, 0.2))
        rate, within, arrivals = random.uniform(0.0, 30.0), random.uniform(0.05, 12.0), random.uniform(1.0, 8.0)
        whole = late_by_waiting(
            shape, servers=servers, rate=rate, slower=slower, first=first, within=within, arrivals=arrivals
        )
        for most in (0.0, 0.01, 0.05, 1.0, 0.9 * whole, 1.1 * whole, whole + 1e-9):
            early = waiting_makes_at_most(
                most, shape, servers=servers, rate=rate, slower=slower, first=first, within=within, arrivals=arrivals
            )
            assert early == (whole <= most), (most, whole)
            answers.add((early, 0.0 < whole < 1.0))
    assert answers == {(True, True), (True, False), (False, True), (False, False)}


def test_the_fewest_replicas_are_found_wherever_the_search_begins() -> None:
    goal = Goal(least=0, most=64, concurrency=1, latency=1.0, percentile=99.0)
    rule = PredictiveAutoscaler(goal, at=AT)
    there = (ReplicaLoad(rank=0, ready=True, started_at=AT - 200.0, ready_at=AT - 100.0),)
    counts = {bucket(0.1): 60, bucket(0.2): 30, bucket(0.8): 2}
    rule.decide(ServiceLoad(at=AT, replicas=there, wanted=1))
    rule.decide(ServiceLoad(at=AT + 1.0, replicas=there, wanted=1, arrived=92, answered=92, services=counts))
    random = Random(3)
    found = set()
    for _ in range(600):
        rate, aim, most = random.uniform(0.5, 400.0), random.choice((0.4, 0.7, 1.0)), random.choice((5, 40, 64, 500))
        one_by_one = (count for count in range(1, most) if rule.capacity.fits(count, rate, aim=aim))
        need = rule.capacity.need(rate, aim=aim, most=most)
        assert need == next(one_by_one, most)
        found.add(need)
    assert len(found) > 40


def test_one_rate_is_hardly_ever_taken_for_two_and_two_are_told_apart() -> None:
    random = Random(2)

    def count(mean: float) -> int:
        return _poisson(random, mean)

    same = [likelihood_of_change(count(12.0), 6.0, count(120.0), 60.0) for _ in range(20_000)]
    assert max(same) < 20.0
    assert likelihood_of_change(80, 2.0, 600, 60.0) > 20.0, "four times as much for two seconds, at ten a second"
    assert likelihood_of_change(0, 6.0, 0, 60.0) == 0.0


def _poisson(random: Random, mean: float) -> int:
    found, at = 0, random.expovariate(mean)
    while at < 1.0:
        found, at = found + 1, at + random.expovariate(mean)
    return found


def test_the_quick_rule_forgets_within_a_minute_that_requests_came_in_heaps() -> None:
    """Readers that wait for each other's streams send theirs together. One that is left then needs one replica."""
    demand, arrived = ServiceDemand(QUICK), 0
    for second in range(90):
        arrived += 15 * (second % 3 == 0) if second < 20 else second % 5 in (0, 2)
        demand.take(ServiceLoad(at=AT + second, replicas=(), wanted=3, arrived=arrived), start=5.0)
        assert second != 20 or demand.variation > 4.0
    assert demand.bound() < 3.0, "0.4 a second arrive"


def test_windows_answer_for_what_is_known_and_totals_never_fall() -> None:
    windows = CountWindows()
    assert windows.rate(60.0) == 0.0
    for second in range(5000):
        windows.take(ServiceLoad(at=AT + second, replicas=(), wanted=0, arrived=3 * second))
    assert windows.rate(60.0) == pytest.approx(3.0)
    assert windows.arrivals_and_before(30.0, 60.0) == (90, 30.0, 90, 30.0)
    windows.take(ServiceLoad(at=AT + 5000, replicas=(), wanted=0, arrived=0))
    assert windows.rate(60.0) == pytest.approx(3.0, rel=0.05)
    assert len(windows._at) < 2100


def test_the_start_time_is_the_95th_percentile_of_those_seen_once_each() -> None:
    starts = StartTimes()
    assert starts.seconds == SECONDS_AT_FIRST
    replicas = [
        ReplicaLoad(rank=rank, ready=True, started_at=AT, ready_at=AT + 10.0 + rank / 10.0) for rank in range(40)
    ]
    for _ in range(5):
        starts.take(replicas)
    assert len(starts.measured) == 40
    assert starts.seconds == pytest.approx(13.8, abs=0.11)
    starts.take([ReplicaLoad(rank=99, ready=True, started_at=AT + 5.0, ready_at=AT)])
    starts.take([ReplicaLoad(rank=98, ready=True, started_at=AT, ready_at=AT + 1e9)])
    assert len(starts.measured) == 40, "neither can be"
    assert StartTimes(4.0).seconds == 4.0


def test_a_forecast_needs_two_days_and_takes_what_is_usual() -> None:
    forecast = Forecast(day=1440.0)
    slot = 1440.0 / SLOTS_A_DAY
    for day, rate in enumerate((5.0, 50.0, 6.0)):
        assert forecast.highest(at=day * 1440.0, seconds=slot) == (0.0 if day < 2 else 27.5)
        forecast.take(rate, at=day * 1440.0 + slot)
    assert forecast.highest(at=3 * 1440.0, seconds=slot) == 6.0
    assert forecast.highest(at=3 * 1440.0 + 20 * slot, seconds=slot) == 0.0


def test_what_is_kept_of_days_is_bounded() -> None:
    forecast = Forecast(day=1440.0)
    for minute in range(20_000):  # 138 days
        forecast.take(1.0, at=minute * 10.0)
    assert len(forecast._highest) <= SLOTS_A_DAY * 14 + 1


def test_a_forecast_starts_replicas_before_the_load_of_every_day_comes() -> None:
    goal = Goal(least=1, most=50, concurrency=1, latency=1.0, percentile=99.0)

    def rate(at: float) -> float:
        return 20.0 if at % 1800.0 > 900.0 else 2.0

    wanted = {}
    for day in (1800.0, 1e9):
        run = Served(
            PredictiveAutoscaler(goal, at=AT - AT % 1800.0, start=40.0, day=day),
            goal,
            rate=rate,
            service=lambda random: random.expovariate(4.0),
            start=40.0,
            wanted=4,
            at=AT - AT % 1800.0,
        )
        run.run(3 * 1800.0 + 898.0)
        wanted[day] = run.wanted
    assert wanted[1800.0] >= 8
    assert wanted[1e9] <= 4


def test_replicas_that_work_on_several_requests_at_once_are_learnt_to_slow_down() -> None:
    slowdown = Slowdown()
    at = AT
    for step in range(300):
        rate = 2.0 + 6.0 * (step % 20) / 20.0
        for _ in range(10):
            at += 1.0
            slowdown.take(round(2 * rate), 1.0 / (10.0 - rate), 2.0, at=at)
    assert slowdown.known
    assert slowdown.times(5.0) == pytest.approx(2.0, rel=0.1)
    assert slowdown.full(9.9)
    steady = Slowdown()
    for step in range(3000):
        steady.take(10 + step % 3, 0.1, 2.0, at=AT + step)
    assert not steady.known


def test_a_decision_on_a_thousand_services_takes_little_time_of_the_processor() -> None:
    goal = Goal(least=0, most=64, concurrency=1, latency=1.0, percentile=99.0, rate=20.0)
    rules = [PredictiveAutoscaler(goal, at=AT) for _ in range(1000)]
    replicas = tuple(ReplicaLoad(rank=rank, ready=True, started_at=AT, ready_at=AT + 9.0) for rank in range(8))
    spent = []
    for second in range(70):
        load = ServiceLoad(
            at=AT + second,
            replicas=replicas,
            wanted=8,
            arrived=20 * second,
            services=dict.fromkeys(range(bucket(0.05), bucket(0.5)), 5 * second),
        )
        began = process_time()
        for rule in rules:
            rule.decide(load)
        spent.append(process_time() - began)
    assert sorted(spent)[35] < 1.0, f"{sorted(spent)[35]:.3f} s; about a tenth of a second on a quiet machine"


def test_the_reserve_is_the_least_with_which_past_bursts_make_no_more_late_than_allowed() -> None:
    random = Random(7)
    for _ in range(200):
        past, at, made = PastBursts(), AT, []
        past.take(at, burst=0.0, before=1.0, rate=1.0)
        for _ in range(random.randint(1, 8)):
            times = random.uniform(1.5, 8.0)
            made.append(times)
            past.take(at, burst=times, before=1.0, rate=times)
            past.take(at + 5.0, burst=0.0, before=1.0, rate=1.0)
            at += random.uniform(600.0, 3000.0)
        seconds, late, allowed = max(at - AT, 3600.0), random.uniform(1.0, 60.0), random.uniform(0.0001, 0.05)
        found = past.headroom(at, late=late, allowed=allowed)

        def missed(room: float, made: list[float] = made, late: float = late, seconds: float = seconds) -> float:
            return sum(max(0.0, times - room) for times in made) * late / seconds

        assert missed(found) <= allowed * (1 + 1e-9)
        assert found == 0.0 or missed(found - 0.01) > allowed


def test_bursts_of_more_than_a_day_ago_are_forgotten_and_without_any_nothing_is_kept() -> None:
    past = PastBursts()
    past.take(AT, burst=0.0, before=5.0, rate=5.0)
    assert past.headroom(AT + 10.0, late=20.0, allowed=0.0) == 0.0
    past.take(AT + 60.0, burst=40.0, before=5.0, rate=40.0)
    past.take(AT + 90.0, burst=0.0, before=5.0, rate=5.0)
    assert past.headroom(AT + 100.0, late=20.0, allowed=1e-9) == pytest.approx(8.0, rel=1e-3)
    past.take(AT + 90_000.0, burst=0.0, before=5.0, rate=5.0)
    assert past.headroom(AT + 90_000.0, late=20.0, allowed=1e-9) == 0.0


def test_a_request_may_wait_for_what_its_answer_leaves_of_the_latency() -> None:
    times = AnswerTimes()
    assert times.patience(1.0) == float("inf"), "nothing is known"
    for _ in range(500):
        times.take(0.3)
    assert times.patience(1.0) == pytest.approx(0.7, abs=0.01)
    assert times.patience(0.2) == float("inf"), "all are late: they go in order of arrival"
    random = Random(3)
    for _ in range(2000):
        times.take(random.uniform(0.0, 0.6))
    assert 0.0 < times.patience(1.0) < 0.6
