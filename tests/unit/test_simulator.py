"""What must hold of every simulation, whatever the cluster, the jobs, the policy and the troubles are."""

from collections import defaultdict
from itertools import pairwise, product
from math import inf
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.tier import examples, of_tier
from weft.domain.job import Allocation
from weft.domain.quotas import Quota
from weft.planning.order import LAS_FIRST_GPU_SECONDS, LAS_PATIENCE, LAS_PATIENCE_SECONDS
from weft.planning.policy import BACKFILLS, ORDERS, PLACEMENTS, Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.reasons.refusals import why_not
from weft.planning.resource_request import PlacementRequest
from weft.simulator.metrics import metrics
from weft.simulator.model import Cluster, World
from weft.simulator.outcome import Gpu, JobOutcome, Outcome, Spell
from weft.simulator.pool import node_id, room_of, shape_of
from weft.simulator.run import simulate
from weft.simulator.truth import BELIEFS
from weft.simulator.workload import TraceJob, Workload

AT_ONCE = MinimumRun()  # jobs may be evicted at any time

ALL = [Policy(*names) for names in product(ORDERS, PLACEMENTS, BACKFILLS)]
PEACEFUL = ("fifo", "drf")  # orders that preempt nobody
NEAR = 1e-6  # of sums of seconds

every_policy = pytest.mark.parametrize("policy", ALL, ids=str)


# drawing


def clusters(classes: int = 3) -> st.SearchStrategy[Cluster]:
    def scored(nodes: int, gpus: int, racks: int, dice: int) -> Cluster:
        drawn = Random(dice)
        names = "ABC"[: drawn.randint(0, classes)]
        scores = {
            name: tuple(drawn.choice((0.9, 1.0, 1.0, 1.05, 1.3, 2.8)) for _ in range(nodes * gpus)) for name in names
        }
        return Cluster(nodes=nodes, gpus_per_node=gpus, scores=scores, nodes_per_rack=racks)

    return st.builds(scored, st.integers(1, 6), st.integers(1, 8), st.integers(0, 3), st.integers(0, 999))


def jobs_for(cluster: Cluster, count: int, dice: int, *, longest_s: int = 8000) -> tuple[TraceJob, ...]:
    """They come in bunches, of all sizes; some are alike, and of some their user says how long they take."""
    drawn = Random(dice)
    made: list[TraceJob] = []
    at = 0
    for number in range(count):
        at += drawn.choice((0, 0, 60, 500, 3000))
        work = drawn.choice((1, 30, 600, longest_s // 4, drawn.randint(1, longest_s)))
        made.append(
            TraceJob(
                id=f"j-{number:02d}",
                arrival_s=float(at),
                gpus=min(cluster.gpus, drawn.choice((1, 1, 2, 4, drawn.randint(1, cluster.gpus)))),
                work_s=float(work),
                job_class=drawn.choice("AABC?"),
                tenant=drawn.choice(("alice", "bob", "carol")),
                priority=drawn.choice((0, 0, 1)),
                estimate_s=drawn.choice((None, None, float(work), work * 0.3, work * 4.0)),
            )
        )
    return tuple(made)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Workload, Cluster, World, int, str]:
    """Jobs, a cluster, what things cost and what goes wrong there, dice, and what is known of the GPUs."""
    cluster = draw(clusters())
    jobs = jobs_for(cluster, draw(st.integers(1, 25)), draw(st.integers(0, 9999)))
    drawn = Random(draw(st.integers(0, 9999)))
    world = World(
        penalty=drawn.choice((1.0, 1.7)),
        penalties=drawn.choice(({}, {"B": 1.1})),
        rack_penalty=drawn.choice((1.0, 1.3)),
        start_s=drawn.choice((0.0, 15.0)),
        move_s=drawn.choice((0.0, 30.0, 120.0)),
        decide_every_s=drawn.choice((0.0, 0.0, 60.0, 360.0)),
        failures_per_node_day=drawn.choice((0.0, 0.0, 2.0)),
        drift_s=drawn.choice((0.0, 0.0, 1800.0)),
        sample_s=900.0,  # each measurement is thought over: that takes its time
        durations_known=drawn.choice((True, False)),
    )
    return Workload(name="drawn", jobs=jobs), cluster, world, draw(st.integers(0, 99)), drawn.choice(BELIEFS)


def ran(
    jobs: tuple[TraceJob, ...], cluster: Cluster, policy: Policy, world: World, *, seed: int = 1, scores: str = "oracle"
) -> Outcome:
    return simulate(Workload(name="w", jobs=jobs), cluster, policy, world, seed=seed, scores=scores)


# auditing


def spells_by_job(outcome: Outcome) -> dict[int, list[Spell]]:
    found: dict[int, list[Spell]] = {number: [] for number in range(len(outcome.jobs))}
    for spell in outcome.spells:
        found[spell.job].append(spell)
    return found


def check_that_no_gpu_is_held_twice(outcome: Outcome) -> None:
    held: defaultdict[Gpu, list[tuple[float, float]]] = defaultdict(list)
    for spell in outcome.spells:
        for node, index in spell.gpus:
            assert 0 <= node < outcome.nodes
            assert 0 <= index < outcome.gpus_per_node
            held[node, index].append((spell.begin_s, spell.end_s))
    for spans in held.values():
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            assert begin >= end


def check_a_job(told: JobOutcome, asked: TraceJob, spells: list[Spell], world: World) -> None:
    """It is whole, in its time, and does all of its work."""
    assert (told.id, told.gpus, told.arrival_s, told.work_s) == (asked.id, asked.gpus, asked.arrival_s, asked.work_s)
    assert asked.arrival_s <= told.started_s <= told.completed_s < inf
    assert told.completed_s == pytest.approx(spells[-1].end_s)
    for spell in spells:
        assert len(set(spell.gpus)) == len(spell.gpus) == asked.gpus
        assert told.started_s <= spell.begin_s < spell.end_s <= told.completed_s
        assert 0.0 <= spell.paused_s <= spell.end_s - spell.begin_s + NEAR
    for before, after in pairwise(spells):
        assert before.end_s <= after.begin_s
        whole = min(world.move_s, after.end_s - after.begin_s)
        if after.begin_s > before.end_s or after.gpus != before.gpus:
            assert after.paused_s == pytest.approx(whole)  # it starts again, or moved: that has its cost each time
    worked = [(spell.end_s - spell.begin_s - spell.paused_s) / spell.slowdown for spell in spells]
    paused = sum(spell.paused_s for spell in spells)
    lost_work = sum(worked) - asked.work_s
    lost_s = told.lost_s - paused
    slack = NEAR * (1 + asked.work_s + paused)
    assert lost_work >= -slack
    if not world.failures_per_node_day:
        assert lost_work <= slack
        assert abs(lost_s) <= slack
    slowdowns = [spell.slowdown for spell in spells]
    assert min(slowdowns) * lost_work - slack <= lost_s <= max(slowdowns) * lost_work + slack
    assert told.evictions + told.moves >= len({spell.gpus for spell in spells}) - 1


def check_that_somebody_runs(outcome: Outcome, world: World) -> None:
    """While jobs are there, at least one of them holds GPUs, but for the time until it is decided."""
    changes = [(job.arrival_s, 1, 0) for job in outcome.jobs] + [(job.completed_s, -1, 0) for job in outcome.jobs]
    changes += [(spell.begin_s, 0, 1) for spell in outcome.spells] + [(spell.end_s, 0, -1) for spell in outcome.spells]
    changes.sort(key=lambda change: change[0])
    there = running = 0
    for (at, came, began), (until, _, _) in pairwise(changes):
        there, running = there + came, running + began
        if there and not running:
            assert until - at <= world.decide_every_s + NEAR


def check(outcome: Outcome, workload: Workload, policy: Policy, world: World) -> None:
    assert [job.id for job in outcome.jobs] == [job.id for job in workload.jobs]  # every one of them ended
    check_that_no_gpu_is_held_twice(outcome)
    by_job = spells_by_job(outcome)
    for number, (told, asked) in enumerate(zip(outcome.jobs, workload.jobs, strict=True)):
        check_a_job(told, asked, by_job[number], world)
    if not world.failures_per_node_day:
        check_that_somebody_runs(outcome, world)
        assert policy.order not in PEACEFUL or not any(job.evictions for job in outcome.jobs)
    if policy.order == "fifo" and policy.backfill == "none":
        starts = [job.started_s for job in outcome.jobs]
        assert starts == sorted(starts)  # nobody overtakes


@every_policy
@settings(max_examples=of_tier(4, 20), deadline=None)
@given(case=cases())
def test_a_simulation_keeps_the_laws_of_its_world(policy: Policy, case: Any) -> None:
    """No GPU is held twice, gangs are whole, nobody runs before it came, work adds up, and every job ends."""
    workload, cluster, world, seed, scores = case
    outcome = simulate(workload, cluster, policy, world, seed=seed, scores=scores)
    check(outcome, workload, policy, world)


@every_policy
@settings(max_examples=2, deadline=None)
@given(case=cases())
def test_the_same_inputs_give_the_same_bytes(policy: Policy, case: Any) -> None:
    workload, cluster, world, seed, scores = case
    once, again = (
        msgspec.json.encode(simulate(workload, cluster, policy, world, seed=seed, scores=scores)) for _ in range(2)
    )
    assert once == again


@pytest.mark.parametrize("policy", [one for one in ALL if one.placement != "random"], ids=str)
@settings(max_examples=3, deadline=None)
@given(
    cluster=clusters(), count=st.integers(2, 8), dice=st.integers(0, 9999), shuffle=st.randoms(use_true_random=False)
)
def test_changing_equal_jobs_round_changes_no_metric(
    policy: Policy, cluster: Cluster, count: int, dice: int, shuffle: Random
) -> None:
    """Up to four jobs each that differ in their ids alone. Random placement throws its dice by id: it is left out."""
    kinds = jobs_for(cluster, count, dice)
    groups = [[replace(job, id=f"{job.id}-{copy}") for copy in range(1 + dice % 4)] for job in kinds]
    world = World(durations_known=bool(dice % 2))
    usual = ran(tuple(job for group in groups for job in group), cluster, policy, world)
    for group in groups:
        shuffle.shuffle(group)
    permuted = ran(tuple(job for group in groups for job in group), cluster, policy, world)
    assert metrics(permuted) == metrics(usual)


@pytest.mark.parametrize("backfill", BACKFILLS)
@pytest.mark.parametrize("order", PEACEFUL)
@settings(max_examples=of_tier(8, 30), deadline=None)
@given(cluster=clusters(classes=0), count=st.integers(1, 25), dice=st.integers(0, 9999), known=st.booleans())
def test_without_variability_placing_by_score_gains_nothing(
    order: str, backfill: str, cluster: Cluster, count: int, dice: int, known: bool
) -> None:
    """All GPUs are alike, spanning nodes costs nothing and neither do moves: whoever places, every job ends as soon."""
    jobs = jobs_for(cluster, count, dice)
    world = World(penalty=1.0, move_s=0.0, durations_known=known, patience_s=inf)
    ends = {
        placement: [job.completed_s for job in ran(jobs, cluster, Policy(order, placement, backfill), world).jobs]
        for placement in PLACEMENTS
    }
    for placement in PLACEMENTS:
        assert ends[placement] == pytest.approx(ends["packed-sticky"], rel=1e-9), placement


@settings(max_examples=examples(40), deadline=None)
@given(
    cluster=clusters(),
    count=st.integers(3, 25),
    dice=st.integers(0, 9999),
    policy=st.sampled_from(ALL),
    part=st.floats(0.0, 1.0),
)
def test_every_waiting_job_has_a_reason(cluster: Cluster, count: int, dice: int, policy: Policy, part: float) -> None:
    """At any moment: what does not fit is told with a sentence and numbers, and what is told to be free is."""
    jobs = jobs_for(cluster, count, dice)
    world = World()
    outcome = ran(jobs, cluster, policy, world)
    at = outcome.spells[int(part * (len(outcome.spells) - 1))].begin_s
    free_capacity = room_of(cluster, world, placer=policy.placing.placer)
    running = [spell for spell in outcome.spells if spell.begin_s <= at < spell.end_s]
    for spell in running:
        for node, index in spell.gpus:
            held = Allocation(rank=0, role="worker", node_id=node_id(node), gpus=(index,), cpus=1.0, memory=1)
            free_capacity.take(held)
    free = cluster.gpus - sum(len(spell.gpus) for spell in running)
    assert free_capacity.gpus_free == free
    for number, job in enumerate(outcome.jobs):
        if job.arrival_s <= at < job.completed_s and number not in {spell.job for spell in running}:
            found = why_not(free_capacity, shape_of(job.gpus), PlacementRequest(job.job_class, job.id))
            assert (found is not None) == (job.gpus > free)
            if found is not None:
                assert f"{job.gpus} replicas" in found.sentence or job.gpus == 1 or not free
                assert found.numbers["gpus_free"] == free
                assert found.numbers["replicas_wanted"] == job.gpus


# nobody starves


def waits(job: JobOutcome, spells: list[Spell]) -> list[tuple[float, float, float]]:
    """Each stretch without GPUs: from when to when, and for how long it had held them before."""
    found: list[tuple[float, float, float]] = []
    since, held = job.arrival_s, 0.0
    for spell in spells:
        if spell.begin_s > since:
            found.append((since, spell.begin_s, held))
        held += spell.end_s - spell.begin_s
        since = spell.end_s
    return found


@pytest.mark.parametrize("backfill", BACKFILLS)
@pytest.mark.parametrize("placement", ["packed-sticky", "weft-best", "pal"])
@settings(max_examples=of_tier(8, 25), deadline=None)
@given(
    nodes=st.integers(1, 3),
    gpus=st.integers(1, 3),
    count=st.integers(3, 25),
    dice=st.integers(0, 9999),
    move_s=st.sampled_from([0.0, 30.0]),
    known=st.booleans(),
)
@example(nodes=1, gpus=3, count=25, dice=7, move_s=0.0, known=False)
def test_nobody_waits_longer_than_las_has_patience_and_the_new_ones_run(
    placement: str, backfill: str, nodes: int, gpus: int, count: int, dice: int, move_s: float, known: bool
) -> None:
    """The bound: patience, and then the first levels of all others.

    A job that waits is promoted after max(PATIENCE_SECONDS, PATIENCE × what it had). From then on it is in the first
    level, and so are all that are served before it. At any moment at which one of these does not fit, a job of the
    first level runs: they preempt all others, and each fits an empty cluster. A job runs in its first level for
    FIRST_GPU_SECONDS / its GPUs, once when it is new and once more for each promotion, of which there is at most one
    for every PATIENCE_SECONDS that it waits. So nobody waits in one stretch longer than its patience and the sum of
    these times over all other jobs. One that never left the first level has no patience to wait for.
    """
    cluster = Cluster(nodes=nodes, gpus_per_node=gpus)
    jobs = jobs_for(cluster, count, dice, longest_s=600_000)
    outcome = ran(jobs, cluster, Policy("las", placement, backfill), World(move_s=move_s, durations_known=known))
    by_job = spells_by_job(outcome)
    without = [sum(end - begin for begin, end, _ in waits(job, by_job[n])) for n, job in enumerate(outcome.jobs)]
    first_levels = [
        (2 + int(waited / LAS_PATIENCE_SECONDS)) * LAS_FIRST_GPU_SECONDS / job.gpus
        for job, waited in zip(outcome.jobs, without, strict=True)
    ]
    for number, job in enumerate(outcome.jobs):
        others = sum(first_levels) - first_levels[number]
        for begin, end, held in waits(job, by_job[number]):
            fell = held * job.gpus >= LAS_FIRST_GPU_SECONDS
            patience = max(LAS_PATIENCE_SECONDS, LAS_PATIENCE * held) if fell else 0.0
            assert end - begin <= patience + others + NEAR * end


def test_without_promotion_an_old_job_would_wait_for_all_newer_ones() -> None:
    """It is long, and newer ones keep the cluster busy for days: it comes back after its patience, not after them."""
    newer = int(4 * LAS_PATIENCE_SECONDS / LAS_FIRST_GPU_SECONDS)
    old = TraceJob(id="old", arrival_s=0.0, gpus=1, work_s=4 * LAS_FIRST_GPU_SECONDS)
    others = tuple(
        TraceJob(
            id=f"new-{n:03d}", arrival_s=LAS_FIRST_GPU_SECONDS + n * LAS_FIRST_GPU_SECONDS / 2, gpus=1, work_s=1700.0
        )
        for n in range(newer)
    )
    outcome = ran((old, *others), Cluster(nodes=1, gpus_per_node=1), Policy("las", "packed", "none"), World(move_s=0.0))
    stretches = waits(outcome.jobs[0], spells_by_job(outcome)[0])
    longest = max(end - begin for begin, end, _ in stretches)
    assert LAS_PATIENCE_SECONDS <= longest <= LAS_PATIENCE_SECONDS + 2 * LAS_FIRST_GPU_SECONDS
    assert outcome.jobs[0].completed_s < outcome.jobs[-1].completed_s


# single rules of the world


def test_a_job_on_slow_gpus_in_two_racks_takes_as_long_as_all_of_that_says() -> None:
    cluster = Cluster(nodes=2, gpus_per_node=1, scores={"A": (1.0, 1.2)}, nodes_per_rack=1)
    job = TraceJob(id="j", arrival_s=10.0, gpus=2, work_s=100.0)
    world = World(penalty=1.5, rack_penalty=2.0, start_s=7.0)
    (told,) = ran((job,), cluster, Policy(), world).jobs
    assert told.completed_s == pytest.approx(10 + 7 + 100 * 1.2 * 1.5 * 2.0)
    assert told.lost_s == pytest.approx(7.0)


def test_a_job_that_is_preempted_pays_for_its_restart_and_loses_no_work() -> None:
    low = TraceJob(id="low", arrival_s=0.0, gpus=1, work_s=100.0)
    high = TraceJob(id="high", arrival_s=40.0, gpus=1, work_s=10.0, priority=1)
    cluster = Cluster(nodes=1, gpus_per_node=1)
    first, second = ran(
        (low, high), cluster, Policy("priority", "packed", "none"), World(move_s=30.0, minimum_run=AT_ONCE)
    ).jobs
    assert second.completed_s == 50.0
    assert (first.completed_s, first.evictions, first.lost_s) == (140.0, 1, 30.0)


@pytest.mark.parametrize("backfill", BACKFILLS)
def test_a_job_at_the_head_preempts_others_under_any_backfill(backfill: str) -> None:
    low = TraceJob(id="low", arrival_s=0.0, gpus=2, work_s=100.0)
    high = TraceJob(id="high", arrival_s=40.0, gpus=1, work_s=10.0, priority=1)
    cluster = Cluster(nodes=1, gpus_per_node=2)
    _, second = ran((low, high), cluster, Policy("priority", "packed", backfill), World(minimum_run=AT_ONCE)).jobs
    assert second.started_s == 40.0


def test_those_who_were_preempted_give_back_their_gpus_before_a_reservation_is_made() -> None:
    """Three GPUs come free when the first ends, two of which are reserved: nobody may hold two beyond that."""
    jobs = (
        TraceJob(id="victim", arrival_s=0.0, gpus=2, work_s=1000.0),
        TraceJob(id="long", arrival_s=0.0, gpus=1, work_s=100.0, priority=2),
        TraceJob(id="high", arrival_s=10.0, gpus=1, work_s=90.0, priority=2),
        TraceJob(id="head", arrival_s=10.0, gpus=3, work_s=10.0, priority=2),
        TraceJob(id="small", arrival_s=10.0, gpus=1, work_s=500.0, priority=1),
    )
    cluster = Cluster(nodes=1, gpus_per_node=3)
    told = ran(
        jobs,
        cluster,
        Policy("priority", "packed-sticky", "easy"),
        World(move_s=0.0, durations_known=True, minimum_run=AT_ONCE),
    ).jobs
    assert {job.id: job.started_s for job in told} == {
        "victim": 0.0,
        "long": 0.0,
        "high": 10.0,
        "head": 100.0,
        "small": 110.0,
    }


@pytest.mark.parametrize(("checkpoint_s", "left"), [(0.0, 500.0), (200.0, 600.0), (None, 1000.0)])
def test_a_job_that_is_evicted_begins_again_at_its_last_checkpoint(checkpoint_s: float | None, left: float) -> None:
    low = TraceJob(id="low", arrival_s=0.0, gpus=1, work_s=1000.0, checkpoint_s=checkpoint_s)
    high = TraceJob(id="high", arrival_s=500.0, gpus=1, work_s=10.0, priority=1)
    world = World(move_s=0.0)
    first, second = ran(
        (low, high), Cluster(nodes=1, gpus_per_node=1), Policy("priority", "packed", "none"), world
    ).jobs
    assert (second.started_s, first.evictions) == (500.0, 1)
    assert first.completed_s == 510.0 + left


def test_a_job_runs_for_the_minimum_before_it_is_evicted_and_one_without_checkpoints_never_moves() -> None:
    low = TraceJob(id="low", arrival_s=0.0, gpus=1, work_s=1000.0, checkpoint_s=None)
    high = TraceJob(id="high", arrival_s=10.0, gpus=1, work_s=10.0, priority=1)
    policy, world = Policy("priority", "packed-sticky", "none"), World(move_s=0.0)
    _, second = ran((low, high), Cluster(nodes=1, gpus_per_node=1), policy, world).jobs
    assert second.started_s == 300.0
    slow = Cluster(nodes=2, gpus_per_node=1, scores={"A": (1.0, 3.0)})
    jobs = [
        TraceJob(id=name, arrival_s=at, gpus=1, work_s=work) for name, at, work in (("a", 0.0, 100.0), ("b", 1.0, 9e4))
    ]
    moved = ran(tuple(jobs), slow, Policy(), world).jobs
    stayed = ran(tuple(replace(job, checkpoint_s=None) for job in jobs), slow, Policy(), world).jobs
    assert [job.moves for job in moved] == [0, 1]
    assert [job.moves for job in stayed] == [0, 0]


@pytest.mark.parametrize(("group", "first"), [("", "a-2"), ("team", "b-2")])
def test_the_order_fair_minds_the_groups_of_tenants(group: str, first: str) -> None:
    """`a` had nothing yet, `c` of the same group twice as much as `b`."""
    workload = Workload(
        name="fair",
        jobs=(
            TraceJob(id="c-1", tenant="c", arrival_s=0.0, gpus=2, work_s=1000.0),
            TraceJob(id="b-1", tenant="b", arrival_s=0.0, gpus=1, work_s=1000.0),
            TraceJob(id="a-2", tenant="a", arrival_s=10.0, gpus=3, work_s=50.0),
            TraceJob(id="b-2", tenant="b", arrival_s=20.0, gpus=3, work_s=50.0),
        ),
    )
    quotas = (Quota(name="team", is_group=True), *(Quota(name=name, group=group) for name in ("a", "c")))
    world = World(start_s=0.0, quotas=quotas)
    outcome = simulate(workload, Cluster(nodes=1, gpus_per_node=3), Policy("fair", "packed-sticky", "none"), world)
    assert next(job.id for job in outcome.jobs if job.started_s == 1000.0) == first


def test_a_move_at_the_moment_of_a_drift_has_its_cost() -> None:
    """Scores that change wake everybody up; who then moves is not one that began just then."""
    cluster = Cluster(nodes=2, gpus_per_node=1, scores={"A": (1.0, 1.5)}, runs={"A": ((1.0, 3.0), (1.5, 1.2))})
    job = TraceJob(id="j", arrival_s=0.0, gpus=1, work_s=50_000.0)
    world = World(drift_s=3600.0, move_s=30.0)
    for placement in ("weft-best", "pal"):
        outcome = ran((job,), cluster, Policy("fifo", placement, "none"), world, seed=3)
        moved = [after for before, after in pairwise(outcome.spells) if before.gpus != after.gpus]
        assert moved
        assert {spell.paused_s for spell in moved} == {30.0}
        assert outcome.jobs[0].moves == len(moved)


@pytest.mark.parametrize("placement", ["weft-best", "pm-first", "pal"])
def test_a_job_goes_by_the_scores_of_the_moment_at_which_it_comes(placement: str) -> None:
    """One GPU is fast or slow as the dice have it, the other is in between: there is no excuse for the slow one."""
    runs = {"A": ((1.0, 2.0), (1.5, 1.5))}
    cluster = Cluster(nodes=2, gpus_per_node=1, scores={"A": (1.0, 1.5)}, runs=runs)
    jobs = tuple(TraceJob(id=f"j-{n:02d}", arrival_s=1050.0 * n, gpus=1, work_s=10.0) for n in range(30))
    outcome = ran(jobs, cluster, Policy("fifo", placement, "none"), World(drift_s=1000.0))
    found = [spell.slowdown for spell in outcome.spells]
    assert set(found) == {1.0, 1.5}
    assert 8 < found.count(1.0) < 22


def test_what_was_done_since_the_last_checkpoint_is_lost_with_a_node() -> None:
    cluster = Cluster(nodes=1, gpus_per_node=1)
    job = TraceJob(id="j", arrival_s=0.0, gpus=1, work_s=100_000.0)
    world = World(failures_per_node_day=8.0, repair_s=500.0, checkpoint_s=1000.0, move_s=20.0)
    outcome = ran((job,), cluster, Policy(), world)
    (told,) = outcome.jobs
    assert told.evictions > 0
    done = 0.0
    for spell in outcome.spells[:-1]:
        done += spell.end_s - spell.begin_s - spell.paused_s
        done -= done % 1000.0
    last = outcome.spells[-1]
    assert done + last.end_s - last.begin_s - last.paused_s == pytest.approx(100_000.0)
    for before, after in pairwise(outcome.spells):
        assert after.begin_s - before.end_s >= 500.0 - NEAR


def test_there_is_one_decision_in_each_stretch_of_time_at_most() -> None:
    jobs = tuple(TraceJob(id=f"j-{n}", arrival_s=n * 25.0, gpus=1, work_s=130.0) for n in range(12))
    outcome = ran(jobs, Cluster(nodes=1, gpus_per_node=8), Policy("fifo", "packed", "none"), World(decide_every_s=60.0))
    times = sorted({job.started_s for job in outcome.jobs})
    assert len({at // 60.0 for at in times}) == len(times)
    assert all(job.started_s - job.arrival_s <= 60.0 for job in outcome.jobs[:8])


def test_who_comes_between_two_decisions_is_not_forgotten_when_nothing_else_happens() -> None:
    jobs = (TraceJob(id="a", arrival_s=0.0, gpus=1, work_s=20.0), TraceJob(id="b", arrival_s=10.0, gpus=1, work_s=20.0))
    outcome = ran(jobs, Cluster(nodes=1, gpus_per_node=1), Policy("fifo", "packed", "none"), World(decide_every_s=60.0))
    assert [job.started_s for job in outcome.jobs] == [0.0, 60.0]


def test_a_job_larger_than_the_cluster_is_refused() -> None:
    job = TraceJob(id="j", arrival_s=0.0, gpus=3, work_s=1.0)
    with pytest.raises(ValueError, match="job j asks for 3 GPUs; the cluster has 2"):
        ran((job,), Cluster(nodes=1, gpus_per_node=2), Policy(), World())


def test_a_belief_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no such belief as 'faith'; there are oracle, offline, online"):
        ran((), Cluster(nodes=1, gpus_per_node=1), Policy(), World(), scores="faith")


def test_nothing_to_do_is_done_at_once() -> None:
    assert ran((), Cluster(nodes=1, gpus_per_node=1), Policy(), World()).jobs == ()


def test_spells_that_are_not_asked_for_are_not_kept_and_change_nothing() -> None:
    jobs = jobs_for(cluster := Cluster(nodes=2, gpus_per_node=4), 12, 5)
    workload = Workload(name="w", jobs=jobs)
    kept = simulate(workload, cluster, Policy("las", "weft-best", "easy"), World())
    bare = simulate(workload, cluster, Policy("las", "weft-best", "easy"), World(), keep_spells=False)
    assert bare == replace(kept, spells=())


def test_progress_counts_up_to_all() -> None:
    told: list[tuple[int, int]] = []
    jobs = jobs_for(cluster := Cluster(nodes=1, gpus_per_node=4), 5, 5)
    simulate(
        Workload(name="w", jobs=jobs), cluster, Policy(), World(), progress=lambda done, all_: told.append((done, all_))
    )
    assert told == [(count, 5) for count in range(1, 6)]
