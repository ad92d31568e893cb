"""The partition planner: whatever jobs and servers there are, its partition is possible and keeps the rules."""

from collections.abc import Sequence
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.partitions import elastic_job, instance, server
from tests.support.tier import examples
from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.partition.choosing import EXACT_MOST
from weft.planning.partition.fair import resources, whole_of
from weft.planning.partition.levels import Levels
from weft.planning.partition.packing import Packer
from weft.planning.partition.weft import weft

CPU = (0.0, 1.0, 1.0)


def check(found: Partition, jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> None:
    amounts = {it.id: it.amounts for it in servers}
    by_id = {job.job_id: job for job in jobs}
    assert found.sizes.keys() == by_id.keys()
    for job_id, size in found.sizes.items():
        job = by_id[job_id]
        assert size in (0, job.now) or job.least <= size <= job.most
        assert size or not job.now, "a job that runs was stopped"
        assert sum(found.on.get(job_id, {}).values()) == size
        if job.fixed:
            assert size == job.now
            assert found.on.get(job_id, {}) == job.on
    for server_id, there in amounts.items():
        for k in range(3):
            held = sum(on.get(server_id, 0) * by_id[job_id].each[k] for job_id, on in found.on.items())
            assert held <= there[k] + 1e-6, (server_id, k)
    running = [job for job in jobs if job.now]
    if not found.kept and "theta2" not in found.relaxed:
        assert sum(1 for job in running if found.on[job.job_id] != job.on) <= ceil(rules.theta2 * len(running) - 1e-9)
    assert {it.job_id: (it.was, it.becomes) for it in found.changes if it.was != it.becomes} == {
        job.job_id: (job.now, found.sizes[job.job_id]) for job in jobs if job.now != found.sizes[job.job_id]
    }


@given(seed=st.integers(0, 10**9))
@settings(max_examples=examples(150), deadline=None)
def test_every_partition_is_possible_and_keeps_the_rules(seed: int) -> None:
    jobs, servers, rules = instance(Random(seed), servers=(1, 6), jobs=(1, 10))
    check(weft(jobs, servers, rules), jobs, servers, rules)


@pytest.mark.parametrize("seed", range(4))
def test_a_partition_of_many_jobs_whose_sizes_are_rounded_keeps_the_rules(seed: int) -> None:
    jobs, servers, rules = instance(Random(seed), servers=(16, 24), jobs=(60, 80))
    assert sum(job.most - job.least + 1 for job in jobs) > EXACT_MOST
    check(weft(jobs, servers, rules), jobs, servers, rules)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=examples(100), deadline=None)
def test_it_is_as_fair_as_theta1_says_unless_it_says_that_it_is_not(seed: int) -> None:
    jobs, servers, rules = instance(Random(seed), servers=(1, 6), jobs=(1, 10))
    found = weft(jobs, servers, rules)
    bound = rules.theta1 * 2 * resources(jobs, whole_of(servers))
    assert found.kept or "theta1" in found.relaxed or found.unfairness <= bound + 1e-6


@given(seed=st.integers(0, 10**9))
@settings(max_examples=examples(60), deadline=None)
def test_what_grows_stays_where_it_is_and_grows_beside_it(seed: int) -> None:
    jobs, servers, rules = instance(Random(seed), servers=(1, 6), jobs=(1, 10))
    found = weft(jobs, servers, rules)
    for job in jobs:
        if not job.restart_s and found.sizes[job.job_id] >= job.now:
            assert all(found.on[job.job_id].get(server_id, 0) >= there for server_id, there in job.on.items())


@given(seed=st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_the_same_input_gives_the_same_partition(seed: int) -> None:
    jobs, servers, rules = instance(Random(seed), servers=(1, 8), jobs=(1, 15))
    assert weft(jobs, servers, rules) == weft(jobs, servers, rules)


@given(seed=st.integers(0, 10**9), size=st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_a_starving_job_that_fits_beside_the_others_starts(seed: int, size: int) -> None:
    """Its server is new and empty, and no other job may take it: each needs a GPU there."""
    jobs, servers, rules = instance(Random(seed), servers=(1, 5), jobs=(1, 8), gpus=False, starving=False)
    late = elastic_job("late", (1.0, 1.0, 1.0), size, size + 2, waited_s=rules.starved_s + 1)
    servers = [*servers, server("new", gpus=size, cpus=size, memory=size)]
    found = weft([*jobs, late], servers, rules)
    assert found.sizes["late"] == size, found
    check(found, [*jobs, late], servers, rules)


def test_a_starving_job_starts_on_what_others_have_beyond_their_least() -> None:
    greedy = elastic_job("greedy", CPU, 1, 8, on={"s1": 8}, weight=100.0)
    late = elastic_job("late", CPU, 2, 8, waited_s=31.0)
    servers = [server("s1", cpus=8, memory=8)]
    found = weft([greedy, late], servers, Rules(theta1=10.0, theta2=1.0))
    assert found.sizes["late"] >= 2
    waits = weft([greedy, elastic_job("late", CPU, 2, 8, waited_s=29.0)], servers, Rules(theta1=10.0, theta2=1.0))
    assert waits.sizes["greedy"] == 8
    assert waits.sizes["late"] == 0


def test_of_two_starving_jobs_the_older_starts() -> None:
    jobs = [elastic_job("new", CPU, 5, 8, waited_s=40.0), elastic_job("old", CPU, 5, 8, waited_s=50.0)]
    found = weft(jobs, [server("s1", cpus=8, memory=8)], Rules())
    assert found.sizes["new"] == 0
    assert found.sizes["old"] >= 5
    assert "starved:new" in found.relaxed


def test_a_free_pool_is_given_away() -> None:
    jobs = [elastic_job("a", CPU, 1, 30, on={"s1": 2}), elastic_job("b", CPU, 1, 30, on={"s2": 2})]
    servers = [server(name, cpus=16, memory=16) for name in ("s1", "s2")]
    found = weft(jobs, servers, Rules(theta2=1.0))
    assert sum(found.sizes.values()) == 32
    assert found.unfairness < 0.05


def test_replicas_that_need_half_a_server_and_more_are_not_promised_twice() -> None:
    """By the sum of all CPUs there would be room for four."""
    jobs = [elastic_job("a", (0.0, 6.0, 1.0), 1, 8)]
    found = weft(jobs, [server(name, cpus=10, memory=10) for name in ("s1", "s2")], Rules())
    assert found.sizes == {"a": 2}
    assert found.on == {"a": {"s1": 1, "s2": 1}}


def test_the_rest_of_the_servers_is_packed_again_with_fewer_replicas() -> None:
    """Free CPUs lie on two servers, 3 each: together there is room for a replica of 6, on none of them."""
    jobs = [
        elastic_job("a", (0.0, 3.0, 1.0), 1, 1, on={"s1": 1}),
        elastic_job("b", (0.0, 3.0, 1.0), 1, 1, on={"s2": 1}),
        elastic_job("c", (0.0, 6.0, 1.0), 1, 1, waited_s=100.0),
        elastic_job("d", (0.0, 3.0, 1.0), 1, 1),
    ]
    found = weft(jobs, [server(name, cpus=6, memory=10) for name in ("s1", "s2")], Rules(theta1=1.0))
    assert found.sizes == {"a": 1, "b": 1, "c": 0, "d": 1}


def test_a_restart_that_does_not_pay_within_the_horizon_is_left() -> None:
    servers = [server("s1", cpus=10, memory=10)]
    for restart_s, size in ((0.0, 10), (30.0, 10), (500.0, 9)):
        jobs = [elastic_job("a", CPU, 1, 10, on={"s1": 9}, restart_s=restart_s)]
        assert weft(jobs, servers, Rules(theta1=1.0, theta2=1.0)).sizes == {"a": size}, restart_s


def test_the_job_that_scales_gets_more_than_the_job_that_does_not() -> None:
    jobs = [elastic_job("flat", CPU, 1, 16, exponent=0.1), elastic_job("steep", CPU, 1, 16, exponent=1.0)]
    found = weft(jobs, [server("s1", cpus=16, memory=16)], Rules(theta1=10.0))
    assert found.sizes["steep"] > found.sizes["flat"]


def test_slow_gpus_count_for_less() -> None:
    servers = [
        server("fast", gpus=4, cpus=16, memory=16, bins=((1.0, 4),)),
        server("slow", gpus=4, cpus=16, memory=16, bins=((3.0, 4),)),
    ]
    job = elastic_job("a", (1.0, 1.0, 1.0), 1, 5)
    assert weft([job], servers, Rules(theta1=1.0)).on == {"a": {"fast": 4}}


def test_a_job_without_gpus_makes_room_beside_the_gpus_for_one_that_needs_them() -> None:
    jobs = [
        elastic_job("cpu", (0.0, 2.0, 1.0), 4, 4, on={"gpus": 4}, restart_s=10.0),
        elastic_job("gpu", (1.0, 4.0, 1.0), 1, 2, waited_s=60.0),
    ]
    servers = [server("gpus", gpus=2, cpus=8, memory=64), server("plain", cpus=8, memory=64)]
    found = weft(jobs, servers, Rules(theta1=1.0, theta2=1.0))
    assert found.on == {"cpu": {"plain": 4}, "gpu": {"gpus": 2}}
    assert {change.job_id: change.cost_s for change in found.changes} == {"cpu": 10.0, "gpu": 0.0}
    jobs[0] = replace(jobs[0], restart_s=0.0)
    assert weft(jobs, servers, Rules(theta1=1.0, theta2=1.0)).on == {"cpu": {"gpus": 4}}


def test_a_job_gets_gpus_of_one_model_and_of_no_model_that_it_may_not_have() -> None:
    servers = [server("old", gpus=4, model="T4"), server("new", gpus=2, model="A100")]
    both = replace(elastic_job("a", (1.0, 0.0, 0.0), 1, 4), speeds={"T4": (1, 2, 3, 4), "A100": (9, 18, 18, 18)})
    old = replace(elastic_job("b", (1.0, 0.0, 0.0), 1, 4), speeds={"T4": (1, 2, 3, 4)})
    found = weft([both, old], servers, Rules())
    assert found.on == {"a": {"new": 2}, "b": {"old": 4}}
    assert found.models == {"a": "A100", "b": "T4"}


def test_only_a_job_that_restarts_changes_its_model() -> None:
    servers = [server("old", gpus=4, model="T4"), server("new", gpus=2, model="A100")]
    speeds = {"T4": (1.0, 2.0), "A100": (9.0, 18.0)}
    live = replace(elastic_job("a", (1.0, 0.0, 0.0), 1, 2, on={"old": 2}), model="T4", speeds=speeds)
    assert weft([live], servers, Rules(theta2=1.0)).on == {"a": {"old": 2}}
    assert weft([replace(live, restart_s=60.0)], servers, Rules(theta2=1.0)).on == {"a": {"new": 2}}


def test_a_server_that_is_gone_is_left_and_the_job_goes_on() -> None:
    jobs = [elastic_job("a", CPU, 1, 4, on={"s1": 1, "gone": 2})]
    found = weft(jobs, [server("s1", cpus=2, memory=2)], Rules())
    assert found.on == {"a": {"s1": 2}}


def test_where_the_running_jobs_do_not_fit_all_stays_as_it_is() -> None:
    jobs = [elastic_job("a", CPU, 2, 4, on={"gone": 2})]
    found = weft(jobs, [server("s1", cpus=1, memory=1)], Rules())
    assert found.kept
    assert found.sizes == {"a": 2}


def test_replicas_leave_the_server_where_most_is_free_so_that_free_gpus_lie_together() -> None:
    servers = [server("full", gpus=4, cpus=9, memory=9), server("free", gpus=4, cpus=9, memory=9)]
    job = elastic_job("j", (1.0, 1.0, 1.0), 1, 6, on={"full": 4, "free": 1})
    packer = Packer([job], servers, Levels(servers, 0.05))
    packer.shrink(job, 3)
    assert packer.where() == {"j": {"full": 3}}


def test_no_jobs_and_no_servers_are_no_error() -> None:
    assert weft([], [server("s1", cpus=1)], Rules()).sizes == {}
    assert weft([elastic_job("a", CPU, 1, 2)], [], Rules()).sizes == {"a": 0}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"least": 3, "most": 2}, "least"),
        ({"least": 0, "most": 2}, "least"),
        ({"speeds": {"": (1.0,)}}, "speeds"),
        ({"speeds": {"": (1.0, 0.0)}}, "speeds"),
        ({"weight": 0.0}, "weight"),
        ({"now": 1}, "on"),
    ],
)
def test_a_job_that_cannot_be_names_the_field(wrong: dict[str, object], field: str) -> None:
    right: dict[str, object] = {"job_id": "a", "each": CPU, "least": 1, "most": 2, "speeds": {"": (1.0, 2.0)}}
    with pytest.raises(ValueError, match=field):
        ElasticJob(**(right | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"theta1": -1.0}, {"theta2": float("nan")}, {"iterations": 0}])
def test_rules_that_cannot_be_name_the_field(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Rules(**wrong)
