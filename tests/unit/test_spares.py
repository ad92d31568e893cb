"""Spares: nodes that are kept for gangs whose hardware failed, and that small pre-emptible jobs use meanwhile."""

from itertools import pairwise

import pytest
from msgspec import structs

from tests.support.builders import job, node
from tests.support.scheduler import World, world
from weft.domain.cluster import Drain
from weft.domain.failure import Failure, FailureClass
from weft.domain.health import HealthRecord, HealthState
from weft.domain.job import CauseCode, Job, JobEvent, JobState
from weft.health.spares import SpareUse, chosen, spare_use
from weft.messages.nodes import GpuSigns, NodeSigns
from weft.planning.eta.starts import PoolToCome
from weft.planning.policy import Policy
from weft.planning.reasons.explain import explain
from weft.service import SettingsError, load
from weft.simulator.engine import Simulation
from weft.simulator.model import Cluster
from weft.simulator.model import World as SimulatedWorld
from weft.simulator.workload import TraceJob, Workload
from weftd.scheduler.settings import SchedulerSettings
from weftd.scheduler.thinking.core_settings import Settings

S = JobState
FIRM = {"preemptible": False}


def with_spares(nodes: int, *, spares: int = 1, gpus: int = 2, backfill: str = "easy") -> World:
    policy = structs.replace(Policy(), backfill=backfill)
    return world(nodes=nodes, gpus=gpus, settings=Settings(spares=spares, preemption_after_seconds=60.0, policy=policy))


def nodes_of(w: World, job_id: str) -> set[str]:
    placement = w.core.cluster_state.jobs[job_id].placement
    return set() if placement is None else {each.node_id for each in placement.allocations}


def breaks(w: World, node_id: str) -> None:
    signs = GpuSigns(index=0, xids={"79": 1})
    w.nodes[node_id].signs = NodeSigns(boot="t1", gpus=(signs,))
    w.sync(node_id)


@pytest.mark.parametrize("backfill", ["easy", "none"])
def test_a_gang_that_loses_a_gpu_restarts_on_a_spare_whose_job_gives_way(backfill: str) -> None:
    w = with_spares(4, backfill=backfill)
    w.submit("j-gang", gpus=2, replicas=3, spec=FIRM)
    w.round()
    w.submit("j-guest", gpus=2, spec={"priority": 10})
    w.round()
    (spare,) = nodes_of(w, "j-guest")
    assert spare not in nodes_of(w, "j-gang")
    broken = min(nodes_of(w, "j-gang"))
    breaks(w, broken)
    for _ in range(3):
        w.round()
    assert (w.state("j-gang"), w.stored["j-gang"].attempts, w.state("j-guest")) == (S.RUNNING, 0, S.QUEUED)
    assert spare in nodes_of(w, "j-gang")
    assert broken not in nodes_of(w, "j-gang")
    (left,) = [step for step in w.steps if step.job_id == "j-guest" and step.event is JobEvent.STOPPING]
    assert left.cause.code is CauseCode.PREEMPTED
    assert left.cause.sentence == "its node is a spare, and j-gang restarts since its hardware failed"


def test_a_gang_without_spares_waits_for_a_job_that_it_may_not_preempt() -> None:
    w = with_spares(4, spares=0)
    w.submit("j-gang", gpus=2, replicas=3, spec=FIRM)
    w.submit("j-guest", gpus=2, spec={"priority": 10})
    w.round()
    breaks(w, min(nodes_of(w, "j-gang")))
    for _ in range(3):
        w.round()
    assert (w.state("j-gang"), w.state("j-guest")) == (S.QUEUED, S.RUNNING)


def test_other_jobs_start_on_no_spare_and_are_told_which_nodes_are_kept() -> None:
    w = with_spares(2)
    w.submit("j-1", gpus=2, spec=FIRM)
    w.submit("j-2", gpus=2, spec=FIRM)
    w.round()
    assert [w.state(one) for one in ("j-1", "j-2")] == [S.RUNNING, S.QUEUED]
    waits = w.core.cluster_state.jobs["j-2"]
    assert waits.waiting_for is not None
    assert (waits.waiting_for.code, waits.waiting_for.numbers["spares"]) == (CauseCode.HELD_BACK, 1)
    (spare,) = {"node-1", "node-2"} - nodes_of(w, "j-1")
    assert waits.waiting_for.sentence.startswith(f"{spare} is kept for gangs whose hardware failed; besides: ")
    state = w.core.cluster_state
    told = explain(waits, nodes=list(state.pool.nodes.values()), holding=[state.jobs["j-1"]], queued=[waits], now=w.now)
    assert told.sentence.startswith(f"{spare} is kept for gangs")
    w.submit("j-3", gpus=2)
    w.round()
    assert nodes_of(w, "j-3") == {spare}


def to_come(w: World, *queued: Job, spares: int) -> PoolToCome:
    state = w.core.cluster_state
    waiting = {each.id for each in queued}
    holding = [each for _, each in sorted(state.jobs.items()) if each.state is S.RUNNING and each.id not in waiting]
    return PoolToCome(list(state.pool.nodes.values()), holding, queued, now=w.now, spares=spares)


def test_estimates_start_other_jobs_on_no_spare() -> None:
    w = with_spares(2)
    w.submit("j-1", gpus=2, spec={"time_limit": "10m", **FIRM})
    w.round()
    small, large = (job(f"j-waits-{count}", gpus=2, replicas=count, spec=FIRM) for count in (1, 2))
    kept, free = (to_come(w, small, spares=spares).start_of(small).estimate.latest for spares in (1, 0))
    assert (kept, free) == (pytest.approx(w.now + 600, abs=30), pytest.approx(w.now, abs=2))
    whole = to_come(w, large, spares=1).start_of(large).estimate.latest
    assert whole == pytest.approx(w.now + 600, abs=30), "it is too large for the other node, and uses the spare"


def test_estimates_let_a_guest_give_way_to_a_gang_whose_hardware_failed() -> None:
    w = with_spares(4)
    w.submit("j-gang", gpus=2, replicas=3, spec=FIRM)
    w.round()
    w.submit("j-guest", gpus=2, spec={"priority": 10, "time_limit": "10h"})
    w.round()
    breaks(w, min(nodes_of(w, "j-gang")))
    gang = job("j-gang", gpus=2, replicas=3, failures=(Failure(kind=FailureClass.GPU),), spec=FIRM)
    soon, late = (to_come(w, gang, spares=spares).start_of(gang).estimate.latest for spares in (1, 0))
    assert (soon is not None and soon < w.now + 300, late is None or late > w.now + 3600) == (True, True)


def test_a_job_too_large_for_the_other_nodes_uses_the_spares() -> None:
    w = with_spares(3)
    w.submit("j-1", gpus=2, replicas=3, spec=FIRM)
    w.round()
    assert w.state("j-1") is S.RUNNING


def test_an_elastic_job_grows_onto_no_spare() -> None:
    w = with_spares(3)
    role = {"gpus": 2, "replicas": {"min": 1, "want": 3, "max": 3}}
    w.submit("j-1", spec={"role": role, "resize": {"how": "live"}, **FIRM})
    for _ in range(5):
        w.round()
    assert len(nodes_of(w, "j-1")) == 2


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, SpareUse.MEANWHILE),
        ({"spec": FIRM}, SpareUse.NEVER),
        ({"replicas": 2}, SpareUse.NEVER),
        ({"replicas": 2, "failures": (Failure(kind=FailureClass.GPU),)}, SpareUse.RESTARTS),
        ({"replicas": 2, "failures": (Failure(kind=FailureClass.NODE),)}, SpareUse.RESTARTS),
        ({"replicas": 2, "failures": (Failure(kind=FailureClass.PROGRAM),)}, SpareUse.NEVER),
        ({"failures": (Failure(kind=FailureClass.GPU),)}, SpareUse.MEANWHILE),
    ],
)
def test_which_jobs_may_use_spares(fields: dict[str, object], use: SpareUse) -> None:
    assert spare_use(job("j-1", **fields)) is use


def test_spares_are_sound_nodes_of_each_kind_those_in_nobodys_way_first() -> None:
    nodes = [node(f"a-{n}") for n in range(4)] + [node(f"b-{n}", model="other") for n in range(2)]
    assert chosen(nodes, {}, (), 1) == ("a-3", "b-1")
    assert chosen(nodes, {"a-1": 2.0, "a-2": 1.0}, ("b-0", "b-1"), 1) == ("a-1",)
    assert chosen(nodes, {}, (), 64) == ("a-2", "a-3", "b-1")  # at most half
    sick = HealthRecord(gpu=0, state=HealthState.SUSPECT)
    nodes[3] = structs.replace(nodes[3], health=(sick,))
    nodes[5] = structs.replace(nodes[5], drain=Drain())
    assert chosen(nodes, {}, (), 1) == ("a-2", "b-0")


def test_absurd_numbers_of_spares_are_refused_by_name() -> None:
    for value in ("-1", "65", "many"):
        with pytest.raises(SettingsError, match="SCHEDULER_SPARES"):
            load(SchedulerSettings, prefix="SCHEDULER_", environ={"SCHEDULER_SPARES": value})


def test_a_simulated_gang_restarts_on_a_spare_and_without_spares_only_after_the_repair() -> None:
    def gaps(spares: int) -> float:
        jobs = [TraceJob(id="gang", arrival_s=0.0, gpus=24, work_s=6 * 86400.0, checkpoint_s=600.0)]
        jobs += [
            TraceJob(id=f"small-{n}", arrival_s=1.0 + n, gpus=8, work_s=20 * 86400.0, checkpoint_s=600.0)
            for n in range(2)
        ]
        lived = SimulatedWorld(failures_per_node_day=0.05, repair_s=86400.0, spares=spares)
        outcome = Simulation(
            Workload(name="spares", jobs=tuple(jobs)), Cluster(nodes=5, gpus_per_node=8), Policy(), lived, seed=3
        ).run()
        spells = [spell for spell in outcome.spells if spell.job == 0]
        assert len(spells) > 1, "no node of the gang failed"
        return sum(after.begin_s - before.end_s for before, after in pairwise(spells))

    assert gaps(2) < 60.0 < 3600.0 < gaps(0)
