"""Fair shares: examples that can be worked out by hand, and what holds of all."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.partitions import elastic_job, instance
from tests.support.tier import examples
from weft.planning.partition.fair import dominant_share, fair_shares, unfairness, whole_of

WHOLE = (0.0, 9.0, 18.0)


def test_the_example_of_dominant_resource_fairness() -> None:
    """9 CPUs and 18 GB: A's replicas need 1 and 4, B's 3 and 1. Both get two thirds of what dominates for them."""
    jobs = [elastic_job("a", (0.0, 1.0, 4.0), 1, 100), elastic_job("b", (0.0, 3.0, 1.0), 1, 100)]
    found = fair_shares(jobs, WHOLE)
    assert found["a"].replicas == pytest.approx(3.0)
    assert found["b"].replicas == pytest.approx(2.0)
    assert found["a"].share == pytest.approx(2 / 3)
    assert found["b"].share == pytest.approx(2 / 3)


def test_what_a_job_may_not_have_goes_to_the_others() -> None:
    jobs = [elastic_job("a", (0.0, 1.0, 0.0), 1, 2), elastic_job("b", (0.0, 1.0, 0.0), 1, 100)]
    assert [it.replicas for it in fair_shares(jobs, WHOLE).values()] == pytest.approx([2.0, 7.0])


def test_a_job_has_its_least_even_if_others_have_less() -> None:
    jobs = [elastic_job("a", (0.0, 1.0, 0.0), 7, 9), elastic_job("b", (0.0, 1.0, 0.0), 1, 9)]
    assert [it.replicas for it in fair_shares(jobs, WHOLE).values()] == pytest.approx([7.0, 2.0])


def test_where_not_all_can_have_their_least_all_are_equal() -> None:
    jobs = [elastic_job("a", (0.0, 1.0, 0.0), 7, 9), elastic_job("b", (0.0, 1.0, 0.0), 3, 9)]
    assert [it.replicas for it in fair_shares(jobs, WHOLE).values()] == pytest.approx([4.5, 4.5])


def test_twice_the_weight_is_twice_the_share() -> None:
    jobs = [elastic_job("a", (0.0, 1.0, 0.0), 1, 9, weight=2.0), elastic_job("b", (0.0, 1.0, 0.0), 1, 9)]
    assert [it.replicas for it in fair_shares(jobs, WHOLE).values()] == pytest.approx([6.0, 3.0])


def test_a_job_that_needs_none_of_what_is_used_up_goes_on_growing() -> None:
    jobs = [
        elastic_job("a", (0.0, 1.0, 0.0), 1, 9),
        elastic_job("b", (0.0, 1.0, 0.0), 1, 9),
        elastic_job("c", (0.0, 0.0, 1.0), 1, 100),
    ]
    assert [it.replicas for it in fair_shares(jobs, WHOLE).values()] == pytest.approx([4.5, 4.5, 18.0])


def test_what_other_roles_hold_counts() -> None:
    """A has a parameter server of 3 CPUs: 5 of the 10 CPUs are two workers and it."""
    jobs = [elastic_job("a", (0.0, 1.0, 0.0), 1, 9, beside=(0.0, 3.0, 0.0)), elastic_job("b", (0.0, 1.0, 0.0), 1, 9)]
    found = fair_shares(jobs, (0.0, 10.0, 0.0))
    assert [it.replicas for it in found.values()] == pytest.approx([2.0, 5.0])
    assert [it.share for it in found.values()] == pytest.approx([0.5, 0.5])


def test_a_job_that_needs_what_is_not_there_has_no_share() -> None:
    jobs = [elastic_job("a", (1.0, 1.0, 0.0), 1, 9), elastic_job("b", (0.0, 1.0, 0.0), 1, 9)]
    assert [it.replicas for it in fair_shares(jobs, WHOLE).values()] == pytest.approx([0.0, 9.0])


def test_unfairness_is_the_sum_of_the_distances() -> None:
    jobs = [elastic_job("a", (0.0, 1.0, 0.0), 1, 9), elastic_job("b", (0.0, 1.0, 0.0), 1, 9)]
    assert unfairness({"a": 6, "b": 3}, jobs, WHOLE) == pytest.approx(1.5 / 9 + 1.5 / 9)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=examples(100), deadline=None)
def test_fair_shares_fit_and_no_job_could_have_more(seed: int) -> None:
    jobs, servers, _ = instance(Random(seed), servers=(1, 6), jobs=(1, 12))
    whole = whole_of(servers)
    found = fair_shares(jobs, whole)
    used = [
        sum(
            found[job.job_id].replicas * job.each[k] + min(1.0, found[job.job_id].replicas / job.least) * job.beside[k]
            for job in jobs
        )
        for k in range(3)
    ]
    assert all(used[k] <= whole[k] * (1 + 1e-6) for k in range(3))
    for job in jobs:
        replicas = found[job.job_id].replicas
        assert replicas <= job.most + 1e-9
        needed = [k for k in range(3) if job.each[k] + job.beside[k] > 0]
        full = any(used[k] >= whole[k] * (1 - 1e-5) for k in needed)
        assert full or replicas >= job.most - 1e-6 or dominant_share(job, job.least, whole) > 1
