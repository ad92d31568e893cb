"""Metrics of elastic jobs, Dorm's workload, and the picture of what each job holds."""

from pathlib import Path
from random import Random

import pytest

from tests.bench.partition.workload import CLUSTER, dorm_workload
from weft.domain.cluster import Request
from weft.planning.finding import find
from weft.planning.placement.unscored import packed
from weft.planning.policy import Policy
from weft.planning.resource_request import RoleRequest
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import JobOutcome, Outcome, PartitionPlan, Spell
from weft.simulator.pool import node_number, room_of
from weft.simulator.run import simulate
from weft.simulator.sized import (
    mean_between,
    size_metrics,
    sizes_over_time,
    speed_ups,
    unfairness_steps,
    utilisation_steps,
)
from weft.simulator.workload import Elastic

GIB = 1 << 30


def job(job_id: str, arrival_s: float, completed_s: float, **fields: float) -> JobOutcome:
    elastic = Elastic(asked=2, least=1, most=8, each=(0.0, 2.0, 0.0))
    times = {"started_s": arrival_s, "work_s": 1.0, "held_s": completed_s - arrival_s, **fields}
    return JobOutcome(
        id=job_id,
        job_class="A",
        tenant="t",
        gpus=0,
        arrival_s=arrival_s,
        completed_s=completed_s,
        elastic=elastic,
        **times,
    )


def outcome(*jobs: JobOutcome, spells: tuple[Spell, ...]) -> Outcome:
    """On 16 cores."""
    return Outcome(
        workload="w",
        policy="p",
        nodes=2,
        gpus_per_node=1,
        gpu_nodes=0,
        amounts=(0.0, 16.0, 0.0),
        jobs=jobs,
        spells=spells,
        partitions=(
            PartitionPlan(at_s=0.0, running=0, changed=0),
            PartitionPlan(at_s=100.0, running=1, changed=1, kept="so"),
        ),
    )


TWO = outcome(
    job("a", 0.0, 200.0, lost_s=20.0),
    job("b", 100.0, 200.0),
    spells=(
        Spell(0, 0.0, 100.0, (), 1.0, 0.0, 8),
        Spell(0, 100.0, 200.0, (), 1.0, 20.0, 6),
        Spell(1, 100.0, 200.0, (), 1.0, 0.0, 2),
    ),
)


def test_utilisation_and_unfairness_follow_the_sizes() -> None:
    assert [dict(sizes) for _, sizes in sizes_over_time(TWO)] == [{0: 8}, {0: 6, 1: 2}, {}]
    assert utilisation_steps(TWO) == [(0.0, 1.0), (100.0, 1.0), (200.0, 0.0)]
    unfair = [round(value, 3) for _, value in unfairness_steps(TWO)]
    assert unfair == [0.0, 0.5, 0.0]  # the fair share of both is a half; they have three quarters and a quarter


def test_a_job_that_waits_is_treated_unfairly_too() -> None:
    waits = outcome(job("a", 0.0, 100.0), job("b", 50.0, 200.0), spells=(Spell(0, 0.0, 100.0, (), 1.0, 0.0, 8),))
    assert [(at, round(value, 3)) for at, value in unfairness_steps(waits)] == [(0.0, 0.0), (50.0, 1.0), (100.0, 1.0)]


def test_adjustments_and_overheads_are_counted() -> None:
    found = size_metrics(TWO)
    assert (found.plans, found.plans_kept) == (2, 1)
    assert found.adjusted_per_event == pytest.approx(1 / 4)
    assert found.overhead_max == pytest.approx(20 / 180)
    assert found.overhead_mean == pytest.approx(10 / 180)
    assert found.utilisation_first == pytest.approx(200 / (5 * 3600))
    with pytest.raises(ValueError, match="kept no spells"):
        size_metrics(outcome(job("a", 0.0, 1.0), spells=()))


def test_a_mean_counts_the_time_before_and_after_as_nothing() -> None:
    assert mean_between([(10.0, 2.0), (20.0, 0.0)], 0.0, 40.0) == pytest.approx(0.5)
    assert mean_between([(10.0, 2.0), (20.0, 0.0)], 15.0, 25.0) == pytest.approx(1.0)


def test_speed_ups_are_by_job() -> None:
    slow, fast = outcome(job("a", 0.0, 200.0), spells=()), outcome(job("a", 0.0, 50.0), spells=())
    assert speed_ups(slow, fast) == {"a": 4.0}


def test_dorms_workload_is_the_same_from_the_same_dice_and_fits_its_cluster() -> None:
    one, other = (dorm_workload(Random(3), exponent=exponent) for exponent in (1.0, 0.7))
    assert [(job.id, job.arrival_s, job.work_s) for job in one.jobs] == [
        (job.id, job.arrival_s, job.work_s) for job in other.jobs
    ]
    assert dorm_workload(Random(3)) == one != dorm_workload(Random(4))
    assert CLUSTER.amounts == (5.0, 240.0, 20 * 128.0 * GIB)
    assert {job.elastic.asked for job in one.jobs if job.elastic and not job.gpus} == {8}
    found = simulate(one, CLUSTER, Policy("fifo", "packed-sticky", "none"), World(penalty=1.0))
    assert {spell.replicas for spell in found.spells} <= {2, 8}
    with pytest.raises(ValueError, match="jobs must be at least 1"):
        dorm_workload(Random(3), jobs=0)


def test_containers_without_gpus_leave_nodes_with_gpus_for_the_last() -> None:
    """13 containers of one core do not fit on one node of 12: the two nodes have no GPUs."""
    free_capacity = room_of(CLUSTER, World(), placer=packed)
    want = RoleRequest("worker", 13, 13, Request(gpus=0, cpus=1.0, memory=1))
    place = find(free_capacity, (want,))
    assert place is not None
    assert all(node_number(one.node_id) >= 5 for one in place)


def test_the_amounts_of_a_cluster_without_bounds_are_its_gpus_alone() -> None:
    assert Cluster(nodes=2, gpus_per_node=4).amounts == (8.0, 0.0, 0.0)


def test_the_report_shows_what_each_job_holds(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="comes with the extra `report`")
    from weft.simulator.report import write_report
    from weft.simulator.report.stacked import amounts, fullest

    times, held = amounts(TWO, fullest(TWO))
    assert fullest(TWO) == 1
    assert times.tolist() == [0.0, 100.0, 200.0]
    assert held.tolist() == [[16.0, 12.0, 0.0], [0.0, 4.0, 0.0]]
    write_report([TWO], tmp_path / "page.html")
    assert 'aria-label="p: 0 changes of size"' in (tmp_path / "page.html").read_text()
