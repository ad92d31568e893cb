"""The processor's time of each tenant: who had more than its part waits, while others are there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftd.gateway.thinking.budgets import Budgets, ProcessorBudget

HALF = ProcessorBudget(part=0.5, burst_seconds=0.1, others_seconds=5.0, debt_seconds_max=1.0)


def both_came(budget: ProcessorBudget = HALF) -> Budgets:
    budgets = Budgets(budget)
    budgets.came("quiet", 0.0)
    budgets.came("busy", 0.0)
    return budgets


def test_a_tenant_within_its_burst_does_not_wait() -> None:
    budgets = both_came()
    budgets.charge("busy", 0.1, 0.0)
    assert budgets.wait("busy", 0.0) == 0.0


def test_a_tenant_beyond_its_burst_waits_until_its_part_has_paid_for_it() -> None:
    budgets = both_came()
    budgets.charge("busy", 0.3, 0.0)
    assert budgets.wait("busy", 0.0) == pytest.approx(0.4)
    assert budgets.wait("busy", 0.3) == pytest.approx(0.1)
    assert budgets.wait("busy", 0.41) == 0.0
    assert budgets.wait("quiet", 0.0) == 0.0


def test_nobody_waits_who_is_alone() -> None:
    budgets = Budgets(HALF)
    budgets.came("busy", 0.0)
    budgets.charge("busy", 30.0, 0.0)
    assert budgets.wait("busy", 0.0) == 0.0
    budgets.came("quiet", 0.0)
    assert budgets.wait("busy", 0.0) == pytest.approx(2.0)  # it owes a second at most
    budgets.came("busy", 5.1)
    budgets.charge("busy", 30.0, 5.1)
    assert budgets.wait("busy", 5.1) == 0.0, "the other has gone"


def test_those_that_owe_share_one_part() -> None:
    budgets = both_came()
    budgets.came("busier", 0.0)
    budgets.charge("busy", 0.3, 0.0)
    budgets.charge("busier", 0.3, 0.0)
    assert budgets.wait("busy", 0.0) == pytest.approx(0.8)
    assert budgets.wait("busier", 0.0) == pytest.approx(0.8)


def test_a_debtor_that_comes_no_more_takes_no_part_from_the_others() -> None:
    budgets = both_came()
    budgets.charge("quiet", 1.0, 0.0)
    budgets.came("busy", 10.0)
    budgets.came("other", 10.0)
    budgets.charge("busy", 0.3, 10.0)
    assert budgets.wait("busy", 10.0) == pytest.approx(0.4)


def test_without_a_part_nobody_waits() -> None:
    budgets = both_came(ProcessorBudget())
    budgets.charge("busy", 30.0, 0.0)
    assert budgets.wait("busy", 0.0) == 0.0


def test_only_the_tenants_that_came_last_are_kept() -> None:
    budgets = Budgets(HALF, kept_max=3)
    for number in range(10):
        budgets.came(f"t-{number}", float(number) / 10)
        budgets.charge(f"t-{number}", 9.0, float(number) / 10)
    assert len(budgets) == 3
    assert budgets.wait("t-0", 1.0) == 0.0
    assert budgets.wait("t-9", 1.0) > 0.0
    budgets.charge("t-0", 9.0, 1.0)  # of a tenant that is not kept nothing is
    assert budgets.wait("t-0", 1.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.001, 0.2), st.floats(0.0, 0.05)), max_size=60))
def test_a_tenant_has_its_part_and_burst_and_one_request_more_at_most(requests: list[tuple[float, float]]) -> None:
    """Each request is made when the one before has been paid for, or later, and another tenant is always there."""
    budgets, now, had = both_came(), 0.0, 0.0
    largest = max((cost for cost, _ in requests), default=0.0)
    for cost, pause in requests:
        budgets.came("busy", now)
        budgets.came("quiet", now)
        now += budgets.wait("busy", now) + 1e-9
        had += cost
        budgets.charge("busy", cost, now)
        assert had <= 0.1 + 0.5 * now + largest + 1e-6
        now += pause
