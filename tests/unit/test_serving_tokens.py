"""An objective in tokens: the size follows how fast each token comes, and what the engines say of their caches."""

from random import Random

import pytest

from tests.support.emulated_engine import STEP_S, Ask, EmulatedEngine
from tests.support.served import bucket
from weft.serving.autoscaler import PredictiveAutoscaler
from weft.serving.loads import Goal, ReplicaLoad, ServiceLoad
from weft.serving.tokens import TokenPace, is_full

AT = 1_000_000.0
TPOT = 0.02


def replica(rank: int, **fields: float) -> ReplicaLoad:
    return ReplicaLoad(rank=rank, ready=True, started_at=AT - 900.0, ready_at=AT - 800.0, **fields)  # type: ignore[arg-type]


def test_an_emulated_engine_makes_each_token_slower_the_more_it_makes() -> None:
    engine = EmulatedEngine()
    ended = engine.take(Ask(number=0, at=0.0, tokens_in=1000, tokens_out=101), 0.0) + engine.run(60.0)
    assert ended[0].each == pytest.approx(STEP_S, rel=0.02)
    many = EmulatedEngine()
    for number in range(64):
        many.take(Ask(number=number, at=0.0, tokens_in=1000, tokens_out=101), 0.0)
    assert all(one.each > 1.3 * STEP_S for one in many.run(60.0))


def run(goal: Goal, *, replicas: int, seconds: int = 1500) -> tuple[PredictiveAutoscaler, list[int], float]:
    """A wave of requests over emulated engines that are given in turns; the part that was late in the last half."""
    rule, random = PredictiveAutoscaler(goal, at=AT, start=20.0), Random(1)
    engines = [EmulatedEngine() for _ in range(replicas)]
    sizes, late, answered, tokens, arrived = [], 0, 0, 0, 0
    leaving: list[EmulatedEngine] = []
    services, totals, pace = {}, {}, {}  # type: ignore[var-annotated]
    bad = whole = 0
    due = random.expovariate(1.0)
    for second in range(seconds):
        rate = 18.0 if second % 300 < 150 else 9.0
        while due < second + 1.0:
            engine = engines[arrived % len(engines)]
            ask = Ask(number=arrived, at=due, tokens_in=random.randint(200, 1800), tokens_out=random.randint(50, 350))
            ended = engine.take(ask, due)
            arrived += 1
            due += random.expovariate(rate)
            for engine in leaving:
                ended += engine.run(due)
            for one in ended:
                answered, tokens = answered + 1, tokens + one.tokens_out
                for counts, took in (
                    (services, one.ended - one.at),
                    (totals, one.first - one.at),
                    (pace, one.each),
                ):
                    counts[bucket(took)] = counts.get(bucket(took), 0) + 1
                is_late = one.each > TPOT or one.first - one.at > 0.5
                late += is_late
                if second > seconds // 2:
                    bad, whole = bad + is_late, whole + 1
        load = ServiceLoad(
            at=AT + second,
            replicas=tuple(replica(rank, kv_used=engine.kv_used) for rank, engine in enumerate(engines)),
            wanted=len(engines),
            arrived=arrived,
            answered=answered,
            late=late,
            services=dict(services),
            totals=dict(totals),
            tokens_out=tokens,
            token_times=dict(pace),
        )
        wanted = rule.decide(load).replicas
        leaving += engines[wanted:]
        del engines[wanted:]
        while len(engines) < wanted:
            engines.append(EmulatedEngine())
            engines[-1].run(second + 1.0)
        sizes.append(wanted)
    return rule, sizes, bad / max(1, whole)


def test_a_service_grows_before_its_tokens_come_too_slowly() -> None:
    goal = Goal(least=1, most=32, concurrency=64, latency=0.5, tpot=TPOT, percentile=99.0)
    _, sizes, late = run(goal, replicas=1)
    assert late <= 0.01
    assert 2 <= sizes[-1] <= 5, "three are enough at the higher of the two rates"


def test_a_pace_that_nobody_told_of_makes_nothing_late() -> None:
    pace = TokenPace(99.0)
    for second in range(50):
        pace.take(ServiceLoad(at=AT + second, replicas=(), wanted=1, answered=10 * second, tokens_out=0), speed=1.0)
    assert not pace.known
    assert pace.keeps(1e6, within=0.001)


def test_full_caches_ask_for_another_replica_and_keep_the_size() -> None:
    goal = Goal(least=1, most=8, concurrency=64, latency=0.5, tpot=TPOT, percentile=99.0)
    for used, waiting, more in ((0.95, 4, True), (0.95, 0, False), (0.2, 4, False)):
        rule = PredictiveAutoscaler(goal, at=AT - 10_000.0, start=20.0)
        there = tuple(replica(rank, kv_used=used, engine_waiting=waiting) for rank in range(2))
        assert is_full(there) is more
        wanted = [
            rule.decide(
                ServiceLoad(
                    at=AT + second,
                    replicas=there,
                    wanted=2,
                    arrived=2 * second,
                    answered=2 * second,
                    services={bucket(0.5): 2 * second},
                    totals={bucket(0.1): 2 * second},
                )
            )
            for second in range(1, 120)
        ]
        assert (max(one.replicas for one in wanted) > 2) is more
        assert more is any("KV caches" in one.cause.sentence for one in wanted)
