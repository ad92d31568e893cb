"""Laws that every autoscaler keeps whatever the load: no size without a request, no flapping under a constant one."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from tests.bench.serving.baselines import NAMES, WEFTS, WITHOUT, compared
from tests.support.served import Served
from weft.serving.autoscaler import PredictiveAutoscaler
from weft.serving.loads import Goal, ReplicaLoad, ServiceLoad, Sized
from weft.serving.policies import QUICK
from weftd.reallocator.thinking.serving import TURNS_MAX, Steady

AT = 1_000_000.0
SILENT_SECONDS = 2 * 3600.0  # longer than any rule waits for a request
CHANGES_MAX = 12  # an hour, at a constant load: docs/serving.md
SEEDS = (1, 8, 9, 12)  # with the first three, services with a reserve for bursts flapped for ever


def in_turn(names: Iterable[str]) -> list[Any]:
    """Parameters of a test; those of benchmarks alone, Weft's rules without one of their parts, in `make nightly`."""
    return [pytest.param(name, marks=pytest.mark.nightly) if name in WITHOUT else name for name in names]


def bursts(random: Random, *, until: float) -> Callable[[float], float]:
    """A rate with bursts of up to ten times itself, the last one right before `until`, when all requests end."""
    rate, period = random.choice([0.02, 1.0, 4.0]), random.choice([75.0, 300.0])
    times, lasts = random.choice([5.0, 10.0]), random.choice([15.0, 30.0])
    return lambda at: 0.0 if at >= until else rate * (times if (at - until) % period >= period - lasts else 1.0)


def served(name: str, random: Random, rate: Callable[[float], float], least: int) -> Served:
    mean, start = random.choice([0.1, 0.5]), random.choice([2.0, 5.0, 20.0])
    goal = Goal(
        least=least,
        most=random.choice([4, 20]),
        concurrency=random.choice([1, 4]),
        latency=random.choice([None, 2 * mean, 2 * mean]),
        percentile=99.0,
    )
    return Served(
        Steady(compared(name, goal, at=AT, start=start)),
        goal,
        rate=rate,
        service=lambda random: random.gammavariate(4.0, mean / 4.0),
        start=start,
        wanted=max(1, least),
        room=random.choice([2, 10_000]) if name != "dynamo" else 10_000,  # it changes no size that it does not have
        seed=random.randrange(1000),
        at=AT,
    )


def least_of(name: str, run: Served) -> int:
    """The size without requests: `dynamo` and `hpa` keep one replica, `fixed` all that it had."""
    match name:
        case "fixed":
            return run.wanted
        case "dynamo" | "hpa":
            return max(1, run.goal.least)
        case _:
            return run.goal.least


@pytest.mark.parametrize("name", in_turn(NAMES))
@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_request_a_service_reaches_its_minimum_once_and_stays_there(name: str, seed: int) -> None:
    random = Random(f"silent {seed}")
    lasted = random.choice([75.0, 600.0])
    run = served(name, random, bursts(random, until=lasted), least=random.choice([0, 0, 1, 2]))
    run.run(lasted)
    while (load := run.load()).queued or load.in_flight:
        run.run(10.0)
    run.sizes.clear()
    run.run(SILENT_SECONDS)
    least = least_of(name, run)
    assert run.wanted == least, run.sizes
    assert sum(size == least for _, _, size in run.sizes) <= 1, run.sizes


@pytest.mark.parametrize("name", in_turn(name for name, rules in WEFTS.items() if rules is not QUICK))
@pytest.mark.parametrize("rate", [1 / 40, 1 / 100, 1 / 250, 1 / 700, 2.0, 15.0])
def test_under_a_constant_load_the_size_of_a_service_changes_a_dozen_times_an_hour_at_most(
    name: str, rate: float
) -> None:
    random = Random(f"constant {rate}")
    run = served(name, random, lambda at: rate, least=0)
    run.run(1800.0)  # until the load is known
    run.sizes.clear()
    run.run(3600.0)
    assert len(run.sizes) <= CHANGES_MAX, run.sizes


@pytest.mark.parametrize("name", in_turn(NAMES))
@pytest.mark.parametrize("rate", [1 / 100, 0.4, 15.0])
def test_under_a_constant_load_no_rule_turns_back_more_than_thirty_times_an_hour(name: str, rate: float) -> None:
    run = served(name, Random(f"turns {rate}"), lambda at: rate, least=0)
    run.run(1800.0)
    run.sizes.clear()
    run.run(3600.0)
    assert run.reversals <= 2 * TURNS_MAX + 1, run.sizes


def test_whatever_a_rule_says_the_size_turns_back_at_most_thirty_times_an_hour() -> None:
    """A rule that flaps as badly as one can. It may grow all the same."""

    class Flaps:
        def decide(self, load: ServiceLoad) -> Sized:
            weft = PredictiveAutoscaler(Goal(least=0, most=9, concurrency=1), at=AT).decide(load)
            return Sized(replicas=0 if load.wanted else 4, cause=weft.cause)

    rule, wanted, changes, asked = Steady(Flaps()), 0, [], ""
    for second in range(2 * 3600):
        there = tuple(ReplicaLoad(rank=rank, ready=True) for rank in range(wanted))
        sized = rule.decide(ServiceLoad(at=AT + second, replicas=there, wanted=wanted))
        if sized.replicas != wanted:
            changes.append(second)
        else:
            asked = sized.cause.sentence
        wanted = sized.replicas
    assert all(sum(begin <= at < begin + 3600 for at in changes) <= 2 * TURNS_MAX + 1 for begin in range(0, 7200, 60))
    assert asked == "stays 4: its size turned back 30 times within the last hour"


def test_bursts_of_the_past_start_no_replica_for_a_service_that_nobody_asks() -> None:
    """The reserve for bursts counted on the way up and not on the way down to zero: 0, 4, 0, 4 for ever."""
    goal = Goal(least=0, most=4, concurrency=1, latency=1.0, percentile=99.0)
    run = Served(
        PredictiveAutoscaler(goal, at=AT, start=5.0),
        goal,
        rate=lambda at: 0.0 if at > 75.0 else 40.0 if at > 60.0 else 4.0,
        service=lambda random: random.expovariate(2.0),
        start=5.0,
        at=AT,
    )
    run.run(75.0)
    run.sizes.clear()
    run.run(3600.0)
    assert [size for _, _, size in run.sizes if size == 0] == [0]
    assert run.wanted == 0


def test_a_service_that_failed_to_answer_is_not_woken_by_a_rate_that_is_no_replica_worth() -> None:
    """Two days with one request in a slot, none of which was answered: a forecast that is not zero is no request."""
    goal = Goal(least=0, most=4, concurrency=1)
    rule = PredictiveAutoscaler(goal, at=AT, start=2.0, day=1440.0)
    wanted, changes, arrived = 0, 0, 0
    for second in range(5 * 1440):
        arrived += second < 3 * 1440 and second % 1440 == 700
        there = tuple(ReplicaLoad(rank=rank, ready=True) for rank in range(wanted))
        sized = rule.decide(ServiceLoad(at=AT + second, replicas=there, wanted=wanted, arrived=arrived))
        changes += second > 3 * 1440 + 300 and sized.replicas != wanted
        wanted = sized.replicas
    assert changes <= 2
