"""The rules of other autoscalers, by name, with their constants."""

from itertools import pairwise
from random import Random

import pytest
from msgspec import structs

from tests.bench.serving.baselines import NAMES, compared
from tests.support.served import Served
from weft.serving.loads import Goal, ReplicaLoad, ServiceLoad
from weft.serving.policies import autoscaler

GOAL = Goal(least=0, most=50, concurrency=10, latency=1.0, percentile=95.0, rate=20.0)


def load(at: float, *, at_once: int, ready: int = 1, wanted: int | None = None, queued: int = 0) -> ServiceLoad:
    replicas = tuple(ReplicaLoad(rank=rank, ready=True) for rank in range(ready))
    wanted = ready if wanted is None else wanted
    return ServiceLoad(at=at, replicas=replicas, wanted=wanted, in_flight=at_once, queued=queued)


def sizes(name: str, at_once: int, *, seconds: int, ready: int = 1, goal: Goal = GOAL) -> list[int]:
    rule = compared(name, goal, at=0.0)
    return [rule.decide(load(float(at), at_once=at_once, ready=ready)).replicas for at in range(seconds)]


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_decides_where_no_router_has_reported_yet(name: str) -> None:
    """`ray` ended the reallocator there."""
    rule = compared(name, GOAL, at=0.0)
    for at in range(60):
        silent = structs.replace(load(float(at), at_once=0, ready=2), silent=True)
        assert rule.decide(silent).replicas == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_stays_between_least_and_most_whatever_the_load_is(name: str) -> None:
    goal = Goal(least=2, most=6, concurrency=4, latency=0.5, percentile=99.0)
    served = Served(
        compared(name, goal, at=1_000_000.0),
        goal,
        rate=lambda at: 30.0 if at < 300 else 0.0,
        service=lambda random: random.expovariate(2.0),
        wanted=2,
    )
    for _ in range(90):
        served.run(10)
        assert 2 <= served.wanted <= 6


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("fixed", "dynamo", "hpa")])
def test_every_rule_wakes_a_service_at_zero_at_once(name: str) -> None:
    rule = compared(name, GOAL, at=0.0)
    assert rule.decide(load(0.0, at_once=0, ready=0)).replicas == 0
    assert rule.decide(load(0.3, at_once=0, ready=0, queued=1)).replicas >= 1


def test_a_name_that_no_rule_has_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="there is no autoscaler kpa, there are weft, "):
        autoscaler("kpa", GOAL, at=0.0)


def test_knative_wants_as_many_as_hold_the_requests_at_seventy_percent() -> None:
    assert sizes("knative", 35, seconds=120, ready=5)[-1] == 5
    assert sizes("knative", 36, seconds=120, ready=5)[-1] == 6


def test_the_horizontal_autoscaler_follows_its_target_and_shrinks_five_minutes_late() -> None:
    rule = compared("hpa", GOAL, at=0.0)
    assert rule.decide(load(0.0, at_once=30, ready=2, wanted=2)).replicas == 6, "at most four more at once"
    after = [rule.decide(load(15.0 * number, at_once=3, ready=6)).replicas for number in range(1, 30)]
    assert after[18] == 6
    assert after[-1] == 1, "3 at once, 3 each"


def test_knative_panics_at_twice_its_size_and_does_not_shrink_until_a_minute_after() -> None:
    rule = compared("knative", GOAL, at=0.0)
    for at in range(60):
        rule.decide(load(float(at), at_once=7, ready=1))
    assert rule.decide(load(60.0, at_once=140, ready=1)).replicas == 5, "(5 x 7 + 140) / 6 at once, 7 each"
    found = [rule.decide(load(60.0 + at, at_once=0, ready=4)).replicas for at in range(1, 100)]
    assert min(found[:55]) >= 5
    assert min(found) < 5


def test_knative_goes_to_zero_after_a_minute_without_requests() -> None:
    found = sizes("knative", 0, seconds=70)
    assert found[30] == 1
    assert found[-1] == 0


def test_ray_waits_half_a_minute_before_it_grows_and_ten_minutes_before_it_shrinks() -> None:
    grows = sizes("ray", 20, seconds=60)
    assert set(grows[:30]) == {1}
    assert grows[30] == 5
    shrinks = sizes("ray", 4, seconds=700, ready=5)
    assert set(shrinks[:600]) == {5}
    assert shrinks[600] == 1


def test_dynamo_adds_one_engine_each_five_seconds_while_all_are_over_and_keeps_one() -> None:
    rule = compared("dynamo", GOAL, at=0.0)
    busy = ReplicaLoad(rank=0, ready=True, in_flight=10)
    wanted = 1
    found = []
    for at in range(30):
        replicas = tuple(busy for _ in range(wanted))
        services = {39: 10 * (at + 1)}  # of about 0.8 s
        state = ServiceLoad(at=float(at), replicas=replicas, wanted=wanted, services=services, queued=10 * wanted)
        wanted = rule.decide(state).replicas
        found.append(wanted)
    assert found[0] == 2
    assert found[5] == 3
    assert found[-1] == 7
    assert sizes("dynamo", 0, seconds=100, goal=GOAL)[-1] == 1


def test_dstack_sizes_by_the_rate_of_a_minute_and_changes_after_five_and_ten() -> None:
    goal = Goal(least=1, most=50, concurrency=1, latency=1.0)
    served = Served(
        compared("dstack", goal, at=1_000_000.0),
        goal,
        rate=lambda at: 10.0 if at < 1000 else 1.0,
        service=lambda random: 0.35,
        start=5.0,
        wanted=1,
    )
    served.run(1900)
    times = [round(when - served.began) for when, _, _ in served.sizes]
    assert all(late - early >= 299 for early, late in pairwise(times))
    ups = [to for _, before, to in served.sizes if to > before]
    assert ups[-1] in (5, 6), "about 10 a second at 0.35 s each, 70 % busy"


def test_fixed_stays_as_it_was() -> None:
    assert set(sizes("fixed", 500, seconds=100, ready=4)) == {4}


def test_a_day_of_one_rule_is_the_same_for_the_same_seed() -> None:
    def run() -> tuple[int, list[tuple[float, int, int]]]:
        served = Served(
            compared("weft", GOAL, at=1_000_000.0),
            GOAL,
            rate=lambda at: 10.0 + 9.0 * (at % 600 > 300),
            service=lambda random: Random.expovariate(random, 5.0),
            seed=7,
        )
        served.run(1800)
        return served.arrived, served.sizes

    assert run() == run()
