"""The order `fair`: exact decay, the Fair Tree, and shares over time."""

from math import log

import pytest

from tests.support.scheduler import world
from weft.domain.job import JobState
from weft.domain.quotas import ALL, Quota
from weft.planning.policy import Policy
from weft.planning.quota.decay import DecayedUse, decayed, fair_ranks
from weft.planning.quota.tree import QuotaTree
from weftd.scheduler.thinking.core_settings import Settings

HALF = 1000.0


def test_what_was_used_counts_half_after_a_half_life_and_what_is_held_counts_to_a_bound() -> None:
    assert decayed(80.0, 0.0, HALF, HALF) == pytest.approx(40.0)
    assert decayed(0.0, 2.0, 1e9, HALF) == pytest.approx(2.0 * HALF / log(2))
    assert decayed(0.0, 3.0, 1.0, 1e12) == pytest.approx(3.0)


def test_a_stretch_in_many_parts_is_the_same_stretch() -> None:
    in_parts = 0.0
    for _ in range(100):
        in_parts = decayed(in_parts, 4.0, 25.0, HALF)
    assert in_parts == pytest.approx(decayed(0.0, 4.0, 2500.0, HALF))


def test_use_is_kept_by_tenant_and_counts_ahead_at_what_is_held_now() -> None:
    use = DecayedUse(HALF)
    use.change("a", 2000, 0.0)
    use.change("a", -2000, HALF)
    use.change("b", 1000, HALF)
    assert use.at("a", 2 * HALF) == pytest.approx(decayed(0.0, 2.0, HALF, HALF) / 2)
    assert use.at("b", 2 * HALF) == pytest.approx(decayed(0.0, 1.0, HALF, HALF))
    assert use.at("nobody", 5.0) == 0.0


def test_siblings_are_ranked_by_what_is_due_to_them_over_what_they_used() -> None:
    tree = QuotaTree([Quota(name="a", weight=3), Quota(name="b", weight=1), Quota(name="none", weight=0)])
    ranks = fair_ranks(tree, {"a": 30.0, "b": 20.0, "new": 0.0, "none": 0.0})
    assert sorted(ranks, key=ranks.__getitem__) == ["new", "a", "b", "none"]


def test_equal_tenants_share_a_rank() -> None:
    ranks = fair_ranks(QuotaTree(), {"a": 10.0, "b": 10.0, "c": 20.0})
    assert ranks == {"a": 0.0, "b": 0.0, "c": 2.0}


def test_a_group_is_compared_with_its_siblings_before_its_members_are_with_each_other() -> None:
    tree = QuotaTree([Quota(name="lab", is_group=True), *(Quota(name=one, group="lab") for one in ("a", "b"))])
    ranks = fair_ranks(tree, {"a": 1.0, "b": 50.0, "alone": 10.0})
    assert sorted(ranks, key=ranks.__getitem__) == ["alone", "a", "b"]


def test_members_of_equal_groups_are_compared_as_siblings() -> None:
    groups = [Quota(name=one, is_group=True) for one in ("x", "y")]
    tree = QuotaTree([*groups, *(Quota(name=one, group=one[0]) for one in ("x1", "x2", "y1", "y2"))])
    ranks = fair_ranks(tree, {"x1": 1.0, "x2": 9.0, "y1": 4.0, "y2": 6.0})
    assert sorted(ranks, key=ranks.__getitem__) == ["x1", "y1", "y2", "x2"]


def test_a_tenant_that_used_much_waits_behind_one_that_used_nothing() -> None:
    w = world(gpus=1, settings=Settings(policy=Policy("fair", "packed-sticky", "none")))
    w.submit("j-1", tenant="greedy", gpus=1)
    w.round()
    w.tick(3600.0)
    w.submit("j-2", tenant="greedy", gpus=1)
    w.submit("j-3", tenant="modest", gpus=1)
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    for _ in range(3):
        w.round()
    assert (w.state("j-3"), w.state("j-2")) == (JobState.RUNNING, JobState.QUEUED)


def test_a_weight_shifts_what_is_due() -> None:
    tree = QuotaTree([Quota(name="a", weight=2, guaranteed={ALL: 0})])
    assert fair_ranks(tree, {"a": 15.0, "b": 10.0}) == {"a": 0.0, "b": 1.0}
