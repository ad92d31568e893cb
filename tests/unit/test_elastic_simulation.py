"""Jobs that grow and shrink in a simulated cluster: what must hold whatever the planner says, and what it costs."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.bench.partition.dorm import as_published
from weft.planning.partition import ElasticJob, Partition, Rules, Server
from weft.planning.policy import Policy
from weft.planning.surplus import STARVED_SECONDS
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Outcome, Spell
from weft.simulator.run import simulate
from weft.simulator.sizing import Partitioning, partitioning_of
from weft.simulator.workload import Elastic, TraceJob, Workload
from weftd.cli.study.simulation.inputs import made_elastic

FIFO = Policy("fifo", "packed-sticky", "none")
BEST = Policy("las", "weft-best", "easy")
NEAR = 1e-6
GIB = 1 << 30


def test_idle_gpus_are_offered_as_soon_as_they_may_be_whatever_the_rounding_error() -> None:
    """A job alone in its cluster is looked at once, when its cool-down is over. Some never grew."""
    for number in range(200):
        elastic = Elastic(asked=1, least=1, most=4, each=(1.0, 1.0, 1.0), live=True, resize_s=0.0)
        arrival_s = round(1000 + number * 0.1234567, 6)
        job = TraceJob(id="j-1", arrival_s=arrival_s, gpus=1, work_s=1000.0, elastic=elastic)
        cluster = Cluster(nodes=1, gpus_per_node=4)
        outcome = simulate(Workload(name="alone", jobs=(job,)), cluster, Policy(), World(start_s=0.0))
        assert outcome.jobs[0].completed_s == pytest.approx(arrival_s + 120 + 880 / 4), arrival_s


def test_a_job_that_starves_gets_ranks_when_it_does_whatever_the_rounding_error() -> None:
    elastic = Elastic(asked=2, least=1, most=2, each=(1.0, 1.0, 1.0), live=True, resize_s=0.0)
    for number in range(200):
        arrival_s = round(1000 + number * 0.1234567, 6)
        first = TraceJob(id="j-1", arrival_s=1000.0, gpus=2, work_s=9000.0, elastic=elastic)
        second = TraceJob(id="j-2", arrival_s=arrival_s, gpus=1, work_s=100.0)
        cluster, policy = Cluster(nodes=1, gpus_per_node=2), Policy("fifo", "packed-sticky", "none")
        outcome = simulate(Workload(name="two", jobs=(first, second)), cluster, policy, World(start_s=0.0))
        assert outcome.jobs[1].started_s == pytest.approx(arrival_s + STARVED_SECONDS), arrival_s


def equal_split(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Partition:
    """All GPUs or cores in equal parts; jobs of fixed size and those whose size may not change keep theirs."""
    del rules
    k = 0 if any(job.each[0] for job in jobs) else 1
    free = sum(server.amounts[k] for server in servers)
    free -= sum(job.now * job.each[k] for job in jobs if job.keeps_size)
    open_jobs = [job for job in jobs if not job.keeps_size]
    sizes = {job.job_id: job.now for job in jobs if job.keeps_size}
    for left, job in zip(range(len(open_jobs), 0, -1), open_jobs, strict=True):
        size = min(job.most, max(job.least, int(free / left // job.each[k])))
        sizes[job.job_id] = size if size * job.each[k] <= free else 0
        free -= sizes[job.job_id] * job.each[k]
    return Partition(sizes=sizes)


def at_its_whim(dice: Random) -> Any:
    """A planner that gives any sizes, also such as do not fit, and takes jobs off their nodes."""

    def planner(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Partition:
        del servers, rules
        sizes = {
            job.job_id: job.now
            if job.keeps_size
            else dice.choice((0, job.least, job.most, dice.randint(job.least, job.most)))
            for job in jobs
        }
        if jobs and not any(sizes.values()):
            sizes[jobs[0].job_id] = jobs[0].least
        return Partition(sizes=sizes)

    return planner


def split(**settings: Any) -> Partitioning:
    return Partitioning(name="split", planner=equal_split, **settings)


def elastic(job_id: str, *, at: float = 0.0, work_s: float = 1000.0, asked: int = 2, **sizes: Any) -> TraceJob:
    made = Elastic(asked=asked, each=sizes.pop("each", (1.0, 0.0, 0.0)), **{"least": 1, "most": 4, **sizes})
    return TraceJob(id=job_id, arrival_s=at, gpus=asked * int(made.each[0]), work_s=work_s, elastic=made)


def ran(*jobs: TraceJob, cluster: Cluster, how: Partitioning | None = None, **world: Any) -> Outcome:
    return simulate(Workload(name="w", jobs=jobs), cluster, FIFO, World(**world), partitioning=how)


def sizes_of(outcome: Outcome, number: int) -> list[tuple[float, float, int]]:
    return [(spell.begin_s, spell.end_s, spell.replicas) for spell in outcome.spells if spell.job == number]


ONE_NODE = Cluster(nodes=1, gpus_per_node=4)


def test_a_job_alone_grows_to_its_most_and_is_faster_by_its_exponent() -> None:
    job = elastic("a", work_s=1000.0, exponent=0.5, resize_s=10.0)
    outcome = ran(job, cluster=ONE_NODE, how=split())
    assert outcome.jobs[0].completed_s == pytest.approx(1000.0 / 2**0.5)
    assert outcome.policy == "fifo+packed-sticky+none+split"


def test_measured_speeds_come_before_the_exponent() -> None:
    job = elastic("a", work_s=1000.0, speeds=(1.0, 4.0, 5.0, 8.0))
    assert ran(job, cluster=ONE_NODE, how=split()).jobs[0].completed_s == pytest.approx(500.0)


def test_a_restart_costs_its_time_and_is_counted() -> None:
    """The first job has 4 GPUs, 2 from when the second comes, and 4 again when that has ended."""
    first, second = elastic("a", work_s=4000.0, resize_s=30.0), elastic("b", at=500.0, work_s=100.0, resize_s=30.0)
    outcome = ran(first, second, cluster=ONE_NODE, how=split(at_most_s=300.0, cooldown_s=0.0))
    assert sizes_of(outcome, 0) == [(0.0, 500.0, 4), (500.0, 600.0, 2), (600.0, outcome.jobs[0].completed_s, 4)]
    done = 2 * 500.0 + (100.0 - 30.0)
    assert outcome.jobs[0].completed_s == pytest.approx(600.0 + 30.0 + (4000.0 - done) / 2)
    assert (outcome.jobs[0].resizes, outcome.jobs[0].lost_s) == (2, pytest.approx(60.0))
    assert outcome.jobs[0].held_s == pytest.approx(outcome.jobs[0].completed_s)


def test_a_live_change_leaves_the_other_replicas_where_they_are() -> None:
    cluster = Cluster(nodes=2, gpus_per_node=2)
    first = elastic("a", work_s=4000.0, live=True, resize_s=1.0)
    outcome = ran(first, elastic("b", at=500.0, work_s=100.0, live=True, resize_s=1.0), cluster=cluster, how=split())
    before, during = (spell for spell in outcome.spells[:3] if spell.job == 0)
    assert set(during.gpus) < set(before.gpus)
    assert during.gpus == ((0, 0), (0, 1))  # it leaves the second node altogether
    assert outcome.jobs[0].lost_s == pytest.approx(2.0)


def test_a_job_that_resizes_live_keeps_its_size_for_its_cooldown() -> None:
    jobs = [elastic("a", work_s=9000.0, live=True), *(elastic(f"b{n}", at=500.0 + 200 * n) for n in range(2))]
    outcome = ran(*jobs, cluster=ONE_NODE, how=split(at_most_s=300.0, cooldown_s=300.0))
    changes = [begin for begin, _, _ in sizes_of(outcome, 0)][1:]
    assert changes[0] == 500.0
    assert all(later - earlier >= 300.0 for earlier, later in pairwise(changes))


def test_plans_are_apart_but_a_job_that_comes_does_not_wait_for_ever() -> None:
    jobs = [elastic(f"j{n}", at=10.0 * n, work_s=2000.0, most=2) for n in range(3)]
    outcome = ran(*jobs, cluster=Cluster(nodes=2, gpus_per_node=4), how=split(every_s=60.0, at_most_s=300.0))
    times = [planned.at_s for planned in outcome.partitions]
    assert times[:3] == [0.0, 60.0, 360.0]
    assert [job.started_s for job in outcome.jobs] == [0.0, 60.0, 60.0]


def test_jobs_of_fixed_size_are_demand_that_stays() -> None:
    rigid = TraceJob(id="r", arrival_s=0.0, gpus=3, work_s=1000.0)
    outcome = ran(rigid, elastic("e", work_s=1000.0), cluster=ONE_NODE, how=split())
    assert sizes_of(outcome, 0) == [(0.0, 1000.0, 3)]
    assert sizes_of(outcome, 1)[0][2] == 1


def test_without_a_planner_each_job_has_what_it_asks_for() -> None:
    outcome = ran(elastic("a", work_s=1000.0), cluster=ONE_NODE)
    assert sizes_of(outcome, 0) == [(0.0, 1000.0, 2)]
    assert not outcome.partitions


def test_cores_and_memory_bound_what_fits() -> None:
    cluster = Cluster(nodes=2, gpus_per_node=1, gpu_nodes=1, cpus_per_node=4.0, memory_per_node=8 * GIB)
    wide = elastic("w", each=(0.0, 2.0, float(GIB)), most=9, asked=2)
    deep = elastic("d", each=(0.0, 1.0, 8.0 * GIB), most=9, asked=2, at=5000.0)
    outcome = ran(wide, deep, cluster=cluster, how=split())
    assert sizes_of(outcome, 0)[0][2] == 4
    assert sizes_of(outcome, 1)[0][2] == 2
    assert outcome.amounts == (1.0, 8.0, 16.0 * GIB)


def test_what_cannot_run_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="job a does not fit in the cluster with 5 replicas"):
        ran(elastic("a", asked=5, least=5, most=6), cluster=ONE_NODE)
    with pytest.raises(ValueError, match="asked must be between least and most: 3 to 4, not 2"):
        elastic("a", least=3)
    with pytest.raises(ValueError, match="speeds must have a value for each size, 1 to 4"):
        elastic("a", speeds=(1.0,))
    with pytest.raises(ValueError, match="placement: packed moves running jobs"):
        simulate(Workload(name="w", jobs=()), ONE_NODE, Policy(placement="packed"), World(), partitioning=split())
    with pytest.raises(ValueError, match=r"no such planner as 'best'; there are weft"):
        partitioning_of("best")


def test_a_planner_that_starts_nobody_is_found_out() -> None:
    idle = Partitioning(name="idle", planner=lambda jobs, servers, rules: Partition(sizes={}, kept="it is lazy"))
    with pytest.raises(RuntimeError, match="idle gives no job a size, and no job runs: it is lazy"):
        ran(elastic("a"), cluster=ONE_NODE, how=idle)


# laws


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Cluster, World]:
    drawn = Random(draw(st.integers(0, 9999)))
    cluster = Cluster(nodes=drawn.randint(1, 4), gpus_per_node=drawn.randint(1, 4))
    jobs: list[TraceJob] = []
    at = 0.0
    for number in range(draw(st.integers(1, 8))):
        at += drawn.choice((0.0, 20.0, 400.0))
        asked = drawn.randint(1, cluster.gpus)
        job = TraceJob(id=f"j{number:02d}", arrival_s=at, gpus=asked, work_s=drawn.uniform(1.0, 900.0))
        size = Elastic(
            asked=asked,
            least=drawn.randint(1, asked),
            most=drawn.randint(asked, cluster.gpus),
            each=(1.0, 0.0, 0.0),
            exponent=drawn.choice((1.0, 0.7)),
            live=drawn.choice((True, False)),
            resize_s=drawn.choice((0.0, 10.0, 90.0)),
        )
        jobs.append(job if drawn.random() < 0.2 else replace(job, elastic=size))
    world = World(decide_every_s=drawn.choice((0.0, 0.0, 45.0)), failures_per_node_day=drawn.choice((0.0, 0.0, 5.0)))
    return Workload(name="drawn", jobs=tuple(jobs)), cluster, world


def check(outcome: Outcome, workload: Workload, world: World) -> None:
    """No GPU is held twice; every job ends, has a lawful size at all times, and does all of its work and no more."""
    held: defaultdict[tuple[int, int], list[Spell]] = defaultdict(list)
    by_job: defaultdict[int, list[Spell]] = defaultdict(list)
    for spell in outcome.spells:
        by_job[spell.job].append(spell)
        for gpu in spell.gpus:
            held[gpu].append(spell)
    for spells in held.values():
        assert all(before.end_s <= after.begin_s for before, after in pairwise(spells))
    for number, asked in enumerate(workload.jobs):
        spells, told = by_job[number], outcome.jobs[number]
        least, most = (asked.elastic.least, asked.elastic.most) if asked.elastic else (asked.gpus, asked.gpus)
        assert all(least <= spell.replicas == len(set(spell.gpus)) <= most for spell in spells)
        assert told.completed_s == pytest.approx(spells[-1].end_s)
        worked = sum((spell.end_s - spell.begin_s - spell.paused_s) / spell.slowdown for spell in spells)
        slack = NEAR * (1 + asked.work_s + told.lost_s)
        assert worked >= asked.work_s - slack
        if not world.failures_per_node_day:
            assert worked <= asked.work_s + slack
            assert told.lost_s == pytest.approx(sum(spell.paused_s for spell in spells), abs=slack)
        assert told.held_s == pytest.approx(sum(spell.end_s - spell.begin_s for spell in spells), abs=slack)


@pytest.mark.parametrize("policy", [FIFO, BEST], ids=str)
@settings(max_examples=30, deadline=None)
@given(case=cases(), dice=st.integers(0, 99))
def test_the_laws_hold_whatever_the_planner_says(policy: Policy, case: Any, dice: int) -> None:
    workload, cluster, world = case
    how = Partitioning(name="whim", planner=at_its_whim(Random(dice)), cooldown_s=0.0, cooldown_restarts=0.0)
    check(simulate(workload, cluster, policy, world, partitioning=how), workload, world)


def test_the_published_planner_plans_when_a_job_comes_or_ends_and_puts_replicas_where_it_says() -> None:
    cluster = Cluster(nodes=2, gpus_per_node=4)
    jobs = tuple(elastic(f"j{n}", at=500.0 * n, work_s=900.0, resize_s=10.0) for n in range(4))
    workload = Workload(name="w", jobs=jobs)
    outcome = simulate(workload, cluster, FIFO, World(), partitioning=as_published(Rules(theta2=1.0)))
    check(outcome, workload, World())
    moments = {job.arrival_s for job in outcome.jobs} | {job.completed_s for job in outcome.jobs}
    assert {planned.at_s for planned in outcome.partitions} <= moments
    assert [job.started_s for job in outcome.jobs] == [0.0, 500.0, 1000.0, 1500.0]


@settings(max_examples=10, deadline=None)
@given(case=cases())
def test_the_laws_hold_with_our_planner_and_the_same_inputs_give_the_same_bytes(case: Any) -> None:
    workload, cluster, world = case
    once, again = (simulate(workload, cluster, BEST, world, partitioning=partitioning_of("weft")) for _ in range(2))
    check(once, workload, world)
    assert msgspec.json.encode(once) == msgspec.json.encode(again)


def test_a_trace_made_elastic_asks_for_what_it_asked_for() -> None:
    rigid = Workload(name="w", jobs=(TraceJob(id="a", arrival_s=0.0, gpus=3, work_s=10.0),))
    made = made_elastic(rigid, times=2.0, exponent=0.85, resize_s=30.0, gpus_most=4)
    found = made.jobs[0].elastic
    assert found is not None
    assert (found.least, found.asked, found.most) == (1, 3, 4)
    assert made_elastic(made, times=3.0, exponent=1.0, resize_s=0.0, gpus_most=4).jobs == made.jobs
    with pytest.raises(ValueError, match="times must be at least 1"):
        made_elastic(rigid, times=0.5, exponent=1.0, resize_s=0.0, gpus_most=4)
