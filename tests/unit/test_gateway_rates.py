"""How fast who asks may ask."""

from hypothesis import given
from hypothesis import strategies as st

from weftd.gateway.thinking.rates import Bucket, Rate, RateLimit, taken

RATE = Rate(per_second=10, burst=5)


def test_a_burst_is_taken_and_then_the_rate() -> None:
    rates = RateLimit(RATE)
    assert [rates.take("alice", 0.0) for _ in range(5)] == [0.0] * 5
    assert rates.take("alice", 0.0) == 0.1
    assert rates.take("alice", 0.1) == 0.0
    assert rates.take("alice", 0.1) > 0


def test_one_who_asks_too_fast_is_no_one_elses_trouble() -> None:
    rates = RateLimit(RATE)
    for _ in range(100):
        rates.take("alice", 0.0)
    assert rates.take("bob", 0.0) == 0.0


def test_what_was_refused_costs_nothing() -> None:
    """Who asks again and again is let in as soon as who waited."""
    rates = RateLimit(RATE)
    for _ in range(1000):
        rates.take("alice", 0.0)
    assert rates.take("alice", 0.1) == 0.0


def test_what_is_owed_is_paid_off_first_and_is_never_more_than_a_burst() -> None:
    rates = RateLimit(RATE)
    for _ in range(1000):
        rates.owe("here", 0.0)
    assert rates.wait("here", 0.0) == 0.6
    assert rates.wait("here", 0.6) == 0.0


def test_no_rate_is_no_bound() -> None:
    rates = RateLimit(Rate(0))
    assert not any(rates.take("alice", 0.0) for _ in range(1000))
    rates.owe("alice", 0.0)
    assert (rates.wait("alice", 0.0), len(rates)) == (0.0, 0)


def test_it_remembers_so_many_and_no_more() -> None:
    rates = RateLimit(RATE, kept_max=100)
    for number in range(1000):
        rates.take(f"{number}", float(number))
    assert len(rates) == 100


@given(
    per_second=st.floats(0.1, 1e4),
    burst=st.floats(1, 1e4),
    pauses=st.lists(st.one_of(st.just(0.0), st.floats(0, 10)), max_size=300),
)
def test_nobody_gets_more_than_the_burst_and_the_rate_and_who_waits_as_told_is_let_in(
    per_second: float, burst: float, pauses: list[float]
) -> None:
    rate, now, at_most, got = Rate(per_second, burst), 0.0, burst, 0
    bucket = Bucket(burst, now)
    for pause in pauses:
        now += pause
        at_most += max(0.0, pause) * per_second
        bucket, wait = taken(bucket, rate, now)
        got += wait == 0
        assert got <= at_most * (1 + 1e-9) + 1e-6
        assert 0 <= wait <= 1 / per_second * (1 + 1e-9)
        if wait:
            assert taken(bucket, rate, now + wait * (1 + 1e-9) + 1e-6)[1] == 0
