"""Locality penalties of workloads: learnt from the steps of gangs, stored, believed, and used for their place."""

from math import inf, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.doubles.store import MemoryStore
from tests.support.fleet import STEP_SECONDS, Fleet, Rank
from tests.support.lives import Life
from tests.support.scheduler import world
from tests.support.topologies import topology
from tests.unit.test_scheduler_loop import World as DeskWorld
from tests.unit.test_scorer_service import World as ScorerWorld
from tests.unit.test_scorer_service import lived
from weft.domain.classes import WORKLOAD_LABEL
from weft.messages.signals import GangPoint, GpuScore, WorkloadPenalty
from weft.planning.policy import Policy
from weft.simulator.engine import Simulation
from weft.simulator.model import Cluster, World
from weft.simulator.workload import TraceJob, Workload
from weft.variability.penalties import POINTS_MAX, USUAL, believed, joined, measured, penalty_of
from weftd.scheduler.refreshing import SCORES_SECONDS
from weftd.scheduler.thinking.record import entries as recorded
from weftd.scheduler.thinking.record.keeping import pickled, unpickled
from weftd.scorer.thinking.gangs import spread_of

DAY = 86400.0


def point(spread: float, seconds: float, *, alike: str = "4", windows: int = 20, at: float = 0.0) -> GangPoint:
    return GangPoint(alike=alike, spread=spread, seconds=seconds, windows=windows, at=at)


# the learner


def test_two_times_of_equal_gangs_are_a_penalty() -> None:
    penalty, confidence = penalty_of([point(0.0, 10.0), point(1.0, 24.0)], 0.0)
    assert penalty == pytest.approx(2.4)
    assert 0.75 < confidence < 0.9
    assert USUAL < believed(penalty, confidence) < 2.4


def test_nothing_is_learnt_from_gangs_that_differ_or_ran_at_one_distance_only() -> None:
    apart = [point(0.0, 10.0, alike="4"), point(1.0, 24.0, alike="8")]
    near = [point(0.0, 10.0), point(0.3, 11.0)]
    for points in ([], [point(0.0, 10.0)], apart, near):
        assert penalty_of(points, 0.0) == (USUAL, 0.0)
    assert believed(USUAL, 0.0, usual=1.4) == 1.4


def test_slow_links_inside_the_node_hide_a_part_of_the_penalty() -> None:
    """A third of the penalty is paid on one node already: 1 + 1.5 × 1/3 against 1 + 1.5."""
    times = [point(0.35, 10.0 * (1 + 1.5 * 0.35)), point(1.0, 10.0 * 2.5)]
    assert penalty_of(times, 0.0)[0] == pytest.approx(2.5)


@given(st.floats(1.0, 5.0), st.floats(0.0, 0.55), st.floats(1e-6, 1e6))
def test_a_penalty_that_the_times_were_made_with_is_found(penalty: float, spread: float, unit: float) -> None:
    times = [point(near, unit * (1 + (penalty - 1) * near)) for near in (round(round(spread / 0.05) * 0.05, 6), 1.0)]
    assert penalty_of(times, 0.0)[0] == pytest.approx(penalty)


def test_more_sizes_and_more_windows_are_surer_and_old_times_less() -> None:
    pair = [point(0.0, 10.0), point(1.0, 20.0)]
    other = [point(0.0, 6.0, alike="8"), point(1.0, 12.0, alike="8")]
    sure = penalty_of(pair, 0.0)[1]
    assert penalty_of([*pair, *other], 0.0)[1] > sure
    assert penalty_of([point(0.0, 10.0), point(1.0, 20.0, windows=1)], 0.0)[1] < sure
    assert penalty_of(pair, 90 * DAY)[1] < sure


def test_two_sizes_that_disagree_give_a_penalty_between_them() -> None:
    points = [point(0.0, 10.0), point(1.0, 10.0), point(0.0, 10.0, alike="8"), point(1.0, 40.0, alike="8")]
    assert penalty_of(points, 0.0)[0] == pytest.approx(sqrt(1.0 * 4.0))


@pytest.mark.parametrize(("seconds", "penalty"), [(5.0, 1.0), (1e6, 5.0)])
def test_a_penalty_that_cannot_be_is_cut_off(seconds: float, penalty: float) -> None:
    found = penalty_of([point(0.0, 10.0), point(1.0, seconds)], 0.0)
    assert found[0] == pytest.approx(penalty)
    assert believed(1e9, 2.0) == 5.0


def test_times_that_make_no_sense_are_left_out() -> None:
    assert measured("4", 0.0, [0.0, inf, -1.0, float("nan")], at=0.0) is None
    assert measured("4", 1.5, [1.0], at=0.0) is None
    assert measured("4", 1.0, [1.0, 3.0, 2.0, inf], at=5.0) == point(1.0, 2.0, windows=3, at=5.0)
    assert joined([point(0.0, inf)], [point(0.0, -1.0), point(0.0, 1.0, windows=0)]) == ()


def test_points_of_one_gang_and_spread_are_merged_and_the_oldest_dropped() -> None:
    (one,) = joined([point(0.0, 1.0, windows=4)], [point(0.0, 4.0, windows=4, at=9.0)])
    assert (one.seconds, one.windows, one.at) == (pytest.approx(2.0), 8, 9.0)
    many = joined([], [point(0.0, 1.0, alike=f"{number}", at=float(number)) for number in range(2 * POINTS_MAX)])
    assert {one.at for one in many} == {float(number) for number in range(POINTS_MAX, 2 * POINTS_MAX)}


# the scorer

ACROSS = [("node-1", (0,)), ("node-1", (1,)), ("node-2", (0,)), ("node-2", (1,))]
WITHIN = [("node-3", (gpu,)) for gpu in range(4)]


def slower_across(rank: Rank, times: float) -> float:
    assert rank.job.placement is not None
    nodes = {one.node_id for one in rank.job.placement.allocations}
    return STEP_SECONDS * (times if len(nodes) > 1 else 1.0)


@pytest.mark.parametrize(("times", "names"), [(2.6, "a"), (1.0, "a"), (2.6, "ab")])
def test_scorers_learn_from_gangs_on_one_node_and_across_nodes_however_slow_their_gpus(
    times: float, names: str
) -> None:
    fleet = Fleet(nodes=3, gpus=4)
    fleet.step_of = lambda rank: slower_across(rank, times)
    fleet.run("j-across", ACROSS)
    fleet.run("j-within", WITHIN)
    stores: list[MemoryStore] = []

    async def program(made: ScorerWorld) -> None:
        await made.begin(*names)
        await made.pass_seconds(240)
        stores.append(made.store)
        (found,) = await made.store.penalties(pool="default")
        (shown,) = await made.store.penalties_of(pool="default", workloads=["resnet", "other"])
        assert (found.workload, found.points) == ("resnet", ())
        assert found.penalty == pytest.approx(times, rel=0.05)
        assert {one.spread for one in shown.points} == {0.0, 1.0}
        await made.kill(names[0])
        await made.begin("c")
        fleet.end("j-within")
        await made.pass_seconds(120)
        (later,) = await made.store.penalties(pool="default")
        assert later.penalty == pytest.approx(times, rel=0.05), "what another scorer saw still counts"
        assert later.at > found.at

    lived(program, fleet)


def test_a_gang_across_racks_or_on_an_unknown_node_shows_no_penalty() -> None:
    fleet = Fleet(nodes=2, gpus=4)
    nodes = {one.id: one for one in fleet.nodes}
    places = [("node-1", 0), ("node-2", 0)]
    assert spread_of(places, nodes) == 1.0
    assert spread_of([("node-1", 0), ("node-1", 1)], nodes) == 0.0
    assert spread_of([*places, ("node-9", 0)], nodes) is None
    assert spread_of(places, {**nodes, "node-2": replace(nodes["node-2"], rack="r-2")}) is None
    known = replace(nodes["node-1"].capacity, topology=topology("pcie-4"))
    linked = spread_of([("node-1", 0), ("node-1", 3)], {"node-1": replace(nodes["node-1"], capacity=known)})
    assert linked is not None
    assert 0.0 < linked < 1.0


# the scheduler


def learnt(penalty: float, *, workload: str = "resnet", confidence: float = 1.0, at: float = 0.0) -> WorkloadPenalty:
    return WorkloadPenalty(workload=workload, penalty=penalty, confidence=confidence, at=at)


@pytest.mark.parametrize(("penalty", "nodes"), [(1.0, 2), (1.2, 2), (3.0, 1)])
def test_a_gang_goes_to_fast_gpus_of_two_nodes_only_if_its_workload_loses_little_there(
    penalty: float, nodes: int
) -> None:
    """Each node has two GPUs that are half as slow again as the other two."""
    w = world(nodes=2, gpus=4)
    slow = [
        GpuScore(node_id=f"node-{node}", gpu_index=gpu, job_class="compute", score=1.5)
        for node in (1, 2)
        for gpu in (0, 1)
    ]
    w.core.cluster_state.rescore(slow)
    w.core.cluster_state.learn_penalties([learnt(penalty), learnt(9.0, workload="other")])
    w.submit("j-1", gpus=1, replicas=4, spec={"labels": {WORKLOAD_LABEL: "resnet"}})
    w.round()
    placement = w.core.cluster_state.jobs["j-1"].placement
    assert placement is not None
    assert len({one.node_id for one in placement.allocations}) == nodes
    if nodes > 1 and penalty > 1.0:
        assert placement.numbers["penalty_learnt"] == penalty
        assert f"locality {penalty:.2f} (its workload was measured: {penalty:.2f} across nodes)" in placement.why
    again = unpickled(pickled(w.core), w.core.cluster_state.jobs.values())
    assert again.cluster_state.pool.free_capacity.locality.across("resnet") == penalty
    assert again.cluster_state.pool.free_capacity.locality.across("unknown") == USUAL


async def test_a_scheduler_reads_what_scorers_store_at_its_start_and_when_it_changed() -> None:
    w = DeskWorld()
    await w.store.save_penalties([learnt(2.0, at=w.now), learnt(3.0, workload="none", confidence=0.0)], pool="default")
    await w.store.save_penalties([learnt(4.0, at=w.now)], pool="elsewhere")
    await w.cycles()
    cache = w.scheduler_loop.core.cluster_state.score_cache
    assert cache.penalties == {"resnet": 2.0}
    before = cache.changes
    await w.store.save_penalties([learnt(2.01, at=w.now + 1)], pool="default")
    w.now += SCORES_SECONDS
    await w.cycles(2)
    assert cache.changes == before, "that is noise"
    await w.store.save_penalties([learnt(1.2, at=w.now + 2)], pool="default")
    w.now += SCORES_SECONDS
    await w.cycles(2)
    assert w.scheduler_loop.core.cluster_state.pool.free_capacity.locality.across("resnet") == 1.2


async def test_random_lives_have_penalties_and_ratios_so_that_their_replays_do() -> None:
    """The histories that test_history replays have these in them."""
    life = Life(1)
    await life.live(200)
    await life.settle()
    records = await life.store.history(pool="default", limit=10_000)
    found = [entry for record in records for entry in recorded.entries_of(record)]
    assert any(isinstance(entry, recorded.PenaltiesLearnt) for entry in found)
    assert any(isinstance(entry, recorded.RatiosLearnt) for entry in found)


# the simulation


def test_a_simulated_scheduler_learns_penalties_that_it_is_not_told() -> None:
    """The pair lies across two nodes until a job of three GPUs has ended, and then moves."""
    jobs = tuple(
        TraceJob(id=f"j-{number}", arrival_s=float(number), gpus=size, work_s=work_s, model="resnet")
        for number, (size, work_s) in enumerate([(3, 3600.0), (3, 7200.0), (2, 18_000.0)])
    )
    cluster, policy = Cluster(nodes=2, gpus_per_node=4), Policy("fifo", "weft-best", "none")
    world = World(penalty=1.7, penalties={"resnet": 3.0}, penalties_known=False, move_s=30.0)
    simulation = Simulation(Workload(name="w", jobs=jobs), cluster, policy, world)
    assert simulation.locality.across("resnet") == 1.7
    simulation.run()
    assert simulation.locality.across("resnet") == pytest.approx(3.0, rel=0.15)
