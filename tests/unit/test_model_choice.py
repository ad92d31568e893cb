"""The model of GPUs on which the scheduler starts a job of one size that names none: where it ends soonest."""

from collections.abc import Sequence
from random import Random
from statistics import mean
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import capacity, node, spec
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from tests.unit.test_scheduler_loop import World as DeskWorld
from weft.domain.classes import WORKLOAD_LABEL
from weft.messages.signals import Curve, CurvePoint, GpuScore, WorkloadClass
from weft.planning import awaiting
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.jobs import asked_by
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.reasons.explain import explain
from weft.planning.resource_request import PlacementRequest, resource_request_of
from weft.planning.scores import Scores
from weft.simulator.engine import Simulation
from weft.simulator.model import Cluster, NodeGroup
from weft.simulator.model import World as Rules
from weft.simulator.workload import TraceJob, Workload
from weft.variability.models import ModelRatio, ModelSpeeds, WorkloadRatios
from weftd.scheduler.refreshing import SCORES_SECONDS
from weftd.scheduler.thinking.record.keeping import pickled, unpickled
from weftd.scheduler.thinking.state.score_cache import ScoreCache

MODELS = frozenset({"T4", "A100"})


def shown(workload: str, times: float) -> WorkloadRatios:
    """A workload that ran `times` as fast on a T4 as on an A100."""
    return WorkloadRatios(workload=workload, ratios=(ModelRatio("", "T4", "A100", times),))


BETTER_ON_T4 = shown("w-old", 2.0)


# how fast a job is on each model


def test_a_workload_that_ran_on_two_models_counts_by_its_own_ratio_and_others_by_the_usual_one_of_their_class() -> None:
    speeds = ModelSpeeds([BETTER_ON_T4, shown("w-new", 0.1)])
    assert speeds.of(MODELS, "compute", "w-old") == {"T4": 1.0, "A100": pytest.approx(0.5, rel=0.05)}
    assert speeds.of(MODELS, "compute", "w-new") == {"A100": 1.0, "T4": pytest.approx(0.1, rel=0.05)}
    unknown = speeds.of(MODELS, "compute", "w-unknown")
    assert unknown["A100"] == 1.0
    assert 0.15 < unknown["T4"] < 0.5


def test_models_between_which_nothing_is_known_are_no_choice() -> None:
    assert ModelSpeeds().of(frozenset({"B200", "MI300"}), "compute", "w") == {}
    assert ModelSpeeds().of(frozenset({"T4"}), "compute", "w") == {}
    assert ModelSpeeds().of(frozenset(), "compute", "w") == {}


def test_only_a_ratio_that_is_new_or_differs_by_more_than_noise_is_learnt() -> None:
    cache = ScoreCache(ratios=[BETTER_ON_T4])
    before = cache.model_speeds
    assert not cache.learn_ratios([shown("w-old", 2.05)])
    assert cache.model_speeds is before
    assert cache.learn_ratios([shown("w-old", 0.5)])
    assert cache.model_speeds.of(MODELS, "compute", "w-old")["A100"] == 1.0


# its place


def room(placement: str = "weft-best", *, slow_a100: float = 1.0) -> FreeCapacity:
    """Two T4 and two A100."""
    scores = Scores({"compute": {("new", gpu): slow_a100 for gpu in range(2)}})
    made = FreeCapacity(scores, placer=Policy(placement=placement).placing.placer)
    made.model_speeds = ModelSpeeds([BETTER_ON_T4])
    for name, model in (("old", "T4"), ("new", "A100")):
        made.add(node(name, gpus=2, model=model))
    return made


def nodes_for(free_capacity: FreeCapacity, workload: str = "w", **fields: Any) -> set[str]:
    asked = PlacementRequest("compute", "j-1", workload=workload)
    return {one.node_id for one in find(free_capacity, resource_request_of(spec(**fields)), asked) or ()}


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_of_one_size_starts_on_the_model_that_is_fastest_for_its_workload(placement: str, gpus: int) -> None:
    assert nodes_for(room(placement), gpus=gpus) == {"new"}
    assert nodes_for(room(placement), "w-old", gpus=gpus) == {"old"}
    assert nodes_for(room(placement), replicas=gpus) == {"new"}


def test_it_takes_another_model_where_the_fastest_is_full_or_its_free_gpus_are_slower() -> None:
    full = room()
    full.take_all(find(full, resource_request_of(spec(gpus=1)), PlacementRequest("compute", workload="w")) or ())
    assert nodes_for(full, gpus=2) == {"old"}
    assert nodes_for(full, replicas=3) == {"old", "new"}, "no model has as many"
    assert nodes_for(room(slow_a100=6.0), gpus=2) == {"old"}
    assert nodes_for(room(slow_a100=1.5), gpus=2) == {"new"}


def test_a_user_who_names_models_or_a_planner_that_chose_one_wins() -> None:
    assert nodes_for(room(), gpu_model=["T4", "A100"]) == {"old"}
    assert nodes_for(room(), gpu_model="!A100") == {"old"}
    planned = tuple(replace(want, request=replace(want.request, prefers="T4")) for want in resource_request_of(spec()))
    assert {one.node_id for one in find(room(), planned, PlacementRequest("compute")) or ()} == {"old"}


def test_all_jobs_with_whole_gpus_have_a_workload_to_be_placed_by() -> None:
    w = pool_of_two_models()
    w.submit("j-1", spec={"labels": {WORKLOAD_LABEL: "w-old"}})
    assert asked_by(w.stored["j-1"]).workload == "w-old"


# the scheduler


def pool_of_two_models(*, gpus: int = 2) -> World:
    made = World(
        ScriptedNode("node-1", capacity(gpus=gpus, model="T4")),
        ScriptedNode("node-2", capacity(gpus=gpus, model="A100")),
    )
    for node_id in made.nodes:
        made.sync(node_id)
    return made


def why(w: World, job_id: str) -> tuple[set[str], str, float]:
    """The nodes of a job, the reason for its place, and the speed of the model there."""
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return {one.node_id for one in placement.allocations}, placement.why, placement.numbers["model_speed"]


def test_the_scheduler_says_which_models_it_considered_and_why_it_took_this_one() -> None:
    w = pool_of_two_models()
    w.core.cluster_state.learn_ratios([shown("w", 0.25), BETTER_ON_T4])
    w.submit("j-1", gpus=2, spec={"labels": {WORKLOAD_LABEL: "w"}})
    w.round()
    nodes, sentence, speed = why(w, "j-1")
    assert (nodes, speed) == ({"node-2"}, 1.0)
    assert "on A100, the fastest model for it; the others, relative to it: T4 (0.25)" in sentence
    w.submit("j-2", gpus=2, spec={"labels": {WORKLOAD_LABEL: "w"}})
    w.round()
    nodes, sentence, speed = why(w, "j-2")
    assert (nodes, speed) == ({"node-1"}, pytest.approx(0.25, abs=0.01))
    assert "on T4, because no faster place is free: A100 is 4.0 times as fast for it" in sentence
    assert "locality" not in sentence


def test_a_job_that_named_its_model_is_told_of_no_other() -> None:
    w = pool_of_two_models()
    w.submit("j-1", spec={"gpu_model": "T4"})
    w.round()
    nodes, sentence, _ = why(w, "j-1")
    assert nodes == {"node-1"}
    assert "fastest" not in sentence
    assert "faster" not in sentence


def test_a_pool_of_one_model_says_nothing_of_models() -> None:
    w = World(ScriptedNode("node-1", capacity(gpus=2, model="T4")))
    w.sync("node-1")
    w.submit("j-1")
    w.round()
    placement = w.core.cluster_state.jobs["j-1"].placement
    assert placement is not None
    assert "T4" not in placement.why
    assert "model_speed" not in placement.numbers


def test_a_job_that_checkpoints_moves_to_a_faster_model_that_comes_free() -> None:
    w = pool_of_two_models()
    w.submit("j-1", gpus=2)
    w.round()
    w.submit("j-2", gpus=2, spec={"kind": "training", "checkpoints": {"on_stop": True}})
    for _ in range(3):
        w.round()
    assert {one.node_id for one in w.stored["j-2"].held} == {"node-1"}
    w.nodes["node-2"].end(("j-1", 0, 0), 0)
    for _ in range(60):
        w.now += 60.0
        w.round()
    assert {one.node_id for one in w.stored["j-2"].held} == {"node-2"}


# waiting for a faster model


def waiting_for_a100(limit: str = "1h", busy: str = "10m", slow: float = 1.0, **fields: Any) -> World:
    """Both A100 are busy for ten minutes at most; they are four times as fast for a job of an hour as the free T4, and
    `slow` times as slow as the typical A100."""
    w = pool_of_two_models()
    w.core.cluster_state.learn_ratios([shown("w", 0.25)])
    scores = [GpuScore(node_id="node-2", gpu_index=gpu, job_class="compute", score=slow) for gpu in range(2)]
    w.core.cluster_state.rescore(scores)
    labels = {"labels": {WORKLOAD_LABEL: "w"}}
    w.submit("j-1", gpus=2, spec={**labels, "time_limit": busy})
    w.round()
    w.submit("j-2", gpus=2, spec={**labels, "time_limit": limit, **fields})
    w.round()
    return w


def test_a_job_waits_for_a_full_faster_model_that_saves_twice_the_wait_and_says_so() -> None:
    w = waiting_for_a100()
    waits = w.stored["j-2"].waiting_for
    assert waits is not None
    began = w.stored["j-1"].started_at
    assert began is not None
    assert waits.numbers == {"awaits_at": began + 600.0, "saves_seconds": pytest.approx(2700.0)}
    assert waits.sentence == "it could start now, but ends sooner on A100: free within 9m59s, it saves 45m0s"
    cluster_state = w.core.cluster_state
    nodes, holding = list(cluster_state.pool.nodes.values()), [w.stored["j-1"]]
    told = explain(w.stored["j-2"], nodes=nodes, holding=holding, queued=[w.stored["j-2"]], now=w.now)
    assert (told.code, told.sentence.startswith(waits.sentence)) == ("held-back", True)
    w.nodes["node-2"].end(("j-1", 0, 0), 0)
    w.round()
    w.round()
    assert {one.node_id for one in w.stored["j-2"].held} == {"node-2"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"busy": "30m"}, "30 minutes are more than half of the 45 that it saves"),
        ({"limit": "20m"}, "10 minutes are more than half of the 15 that it saves"),
        ({"slow": 3.0}, "10 minutes are more than half of the 15 that these slow A100 save"),
        ({"checkpoints": {"on_stop": True}}, "it moves later"),
        ({"gpu_model": ["T4", "A100"]}, "its user prefers T4"),
        ({"gpu_model": "!A100"}, "it may not have the faster one"),
    ],
)
def test_a_job_does_not_wait_for_a_model_where_that_saves_too_little(fields: dict[str, Any], why: str) -> None:
    w = waiting_for_a100(**fields)
    assert {one.node_id for one in w.stored["j-2"].held} == {"node-1"}, why


def test_a_job_without_a_known_duration_waits_for_no_model() -> None:
    w = pool_of_two_models()
    w.submit("j-1", gpus=2, spec={"time_limit": "10m"})
    w.round()
    w.submit("j-2", gpus=2)
    w.round()
    assert {one.node_id for one in w.stored["j-2"].held} == {"node-1"}


def test_a_job_counts_those_that_wait_for_the_same_model_before_it() -> None:
    w = waiting_for_a100()
    labels = {"labels": {WORKLOAD_LABEL: "w"}}
    w.submit("j-3", gpus=2, spec={**labels, "time_limit": "1h"})
    w.round()
    assert not w.stored["j-2"].held
    assert {one.node_id for one in w.stored["j-3"].held} == {"node-1"}, "the A100 come free for j-2"


def measured(workload: str, *, at: float, **speeds: float) -> Curve:
    points = tuple(
        CurvePoint(replicas=1, cpus=1.0, speed=speed, windows=50, at=at, model=model) for model, speed in speeds.items()
    )
    return Curve(subject=f"workload:{workload}", pool="default", points=points, at=at)


async def test_a_scheduler_reads_the_curves_of_workloads_at_its_start_and_when_they_changed() -> None:
    w = DeskWorld()
    one_model = measured("w-one", at=w.now, T4=1.0)
    await w.store.save_curves([measured("w", at=w.now, T4=1.0, A100=10.0), one_model])
    await w.cycles()
    cache = w.scheduler_loop.core.cluster_state.score_cache
    assert cache.model_speeds.of(MODELS, "compute", "w")["T4"] == pytest.approx(0.1, abs=0.01)
    before = cache.changes
    await w.store.save_curves([measured("w", at=w.now + 1, T4=1.0, A100=10.1)])
    w.now += SCORES_SECONDS
    await w.cycles(2)
    assert cache.changes == before, "that is noise"
    await w.store.save_curves([measured("w", at=w.now + 2, T4=2.0, A100=1.0)])
    w.now += SCORES_SECONDS
    await w.cycles(2)
    core = w.scheduler_loop.core
    again = unpickled(pickled(core), core.cluster_state.jobs.values())
    for state in (core.cluster_state, again.cluster_state):
        speeds = state.pool.free_capacity.model_speeds
        assert speeds is not None
        assert speeds.of(MODELS, "compute", "w")["A100"] == pytest.approx(0.5, abs=0.02)


def test_the_class_of_a_workload_says_for_which_other_jobs_its_ratio_counts_most() -> None:
    learnt = [WorkloadClass(workload="w-old", job_class="memory", compute=0.1, memory=0.9, at=0.0)]
    cache = ScoreCache(classes=learnt, ratios=[BETTER_ON_T4])
    memory, compute = (cache.model_speeds.of(MODELS, name, "other") for name in ("memory", "compute"))
    assert memory["T4"] > compute["T4"]


# the simulator


def simulated(
    *, ratios: Sequence[WorkloadRatios] | None, a_s: float = 600.0, b_s: float = 600.0, estimates: bool = False
) -> dict[str, float]:
    """By job, its time. `w` is four times as fast on A100, of which there is one node; `b` comes a second after `a`.
    `estimates`: users say that `a` takes 600 s, and how long `b` takes."""
    groups = (NodeGroup(nodes=1, gpus_per_node=2, model="T4"), NodeGroup(nodes=1, gpus_per_node=2, model="A100"))
    jobs = tuple(
        TraceJob(
            id=name,
            arrival_s=at,
            gpus=2,
            work_s=work_s,
            model="w",
            checkpoint_s=None,
            estimate_s=said_s if estimates else None,
        )
        for name, at, work_s, said_s in (("a", 0.0, a_s, 600.0), ("b", 1.0, b_s, b_s))
    )
    rules = Rules(model_ratios=None if ratios is None else tuple(ratios), move_s=1e9)
    cluster = Cluster(nodes=2, gpus_per_node=2, groups=groups)
    simulation = Simulation(Workload(name="w", jobs=jobs), cluster, Policy("fifo", "weft-best", "none"), rules)
    return {one.id: one.completed_s - one.arrival_s for one in simulation.run().jobs}


def test_a_simulated_job_is_placed_by_the_same_rule_and_is_as_fast_as_its_model() -> None:
    assert simulated(ratios=[shown("w", 0.25)]) == {"a": pytest.approx(600.0), "b": pytest.approx(2400.0, rel=0.01)}
    assert set(simulated(ratios=None).values()) == {600.0}


def test_a_simulated_job_waits_for_the_faster_model_where_that_pays() -> None:
    """`b` waits 599 s for the A100 and needs an hour there, not four hours on the T4. A `b` of 600 s starts at once:
    the A100 saves it at least 450 s, which is less than twice the wait."""
    found = simulated(ratios=[shown("w", 0.25)], b_s=3600.0, estimates=True)
    assert found == {"a": pytest.approx(600.0), "b": pytest.approx(599.0 + 3600.0)}
    assert simulated(ratios=[shown("w", 0.25)], estimates=True)["b"] == pytest.approx(2400.0, rel=0.01)


def test_a_job_waits_for_no_model_on_which_a_job_runs_longer_than_it_was_said_to() -> None:
    found = simulated(ratios=[shown("w", 0.25)], a_s=9000.0, b_s=3600.0, estimates=True)
    assert found["b"] == pytest.approx(599.0 + 60.0 + 4 * 3600.0, rel=0.001)


def average_jct(seed: int) -> float:
    """The average of 60 jobs without checkpoints on 16 T4 and 8 A100; users give up to four times the true duration."""
    dice, at, jobs = Random(seed), 0.0, list[TraceJob]()
    for number in range(60):
        gpus, work_s = dice.choice((1, 1, 2, 4)), dice.lognormvariate(6.5, 1.2)
        at += dice.expovariate(1 / 380.0)
        said_s = work_s * dice.uniform(1, 4)
        jobs.append(
            TraceJob(
                id=f"j-{number:02d}",
                arrival_s=at,
                gpus=gpus,
                work_s=work_s,
                model="w",
                checkpoint_s=None,
                estimate_s=said_s,
            )
        )
    groups = (NodeGroup(nodes=4, gpus_per_node=4, model="T4"), NodeGroup(nodes=2, gpus_per_node=4, model="A100"))
    cluster, rules = Cluster(nodes=6, gpus_per_node=4, groups=groups), Rules(model_ratios=(shown("w", 0.25),))
    simulation = Simulation(Workload(name="w", jobs=tuple(jobs)), cluster, Policy(), rules, keep_spells=False)
    return mean(one.completed_s - one.arrival_s for one in simulation.run().jobs)


def test_jobs_that_wait_for_a_faster_model_end_sooner_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = mean(average_jct(seed) for seed in range(4))
    monkeypatch.setattr(awaiting, "JOBS_MAX", 0)
    assert waiting < 0.95 * mean(average_jct(seed) for seed in range(4))
