"""What a scheduler keeps in mind has a bound, whatever its tenants, nodes and jobs make up."""

import pytest
from msgspec import structs

from tests.support.builders import capacity, job, node
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from tests.support.steps import placement
from weft.domain.cluster import Request
from weft.domain.job import Allocation, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import RunSeen, RunState
from weft.messages.signals import WorkloadClass
from weft.planning.capacity import CHANGES_MAX, OFFERS_MAX, FreeCapacity, NodeCapacity
from weft.planning.capacity.node_index import STALE_MAX, NodeIndex
from weft.planning.cycle import CACHED_LEAST
from weft.planning.finding import find
from weft.planning.policy import PLACEMENTS, Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.history import Journal
from weftd.scheduler.thinking.state import score_cache
from weftd.scheduler.thinking.state.holders import Holders
from weftd.scorer.thinking.references import Paces

MIB = 1 << 20


def want(number: int, *, gpus: int = 1, model: str | None = None) -> RoleRequest:
    return RoleRequest(
        "worker", 1, 1, Request(gpus=gpus, cpus=1.0, memory=(number + 1) * MIB, models=(model,) if model else ())
    )


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_offers_are_kept_for_a_bounded_number_of_needs(placement: str) -> None:
    """400 jobs, each with another memory size, on 300 nodes."""
    free_capacity = FreeCapacity(placer=Policy(placement=placement).placing.placer)
    for number in range(300):
        free_capacity.add(node(f"node-{number}"))
    for number in range(400):
        assert find(free_capacity, (want(number),), PlacementRequest(key=str(number)))
    assert len(free_capacity.offers) <= OFFERS_MAX
    assert find(free_capacity, (want(0),))


def test_a_need_that_was_asked_for_lately_keeps_its_offers() -> None:
    free_capacity = FreeCapacity(placer=Policy(placement="weft-best").placing.placer)
    free_capacity.add(node("node-1"))
    find(free_capacity, (want(0),))
    (kept,) = free_capacity.offers.values()
    for number in range(1, 2 * OFFERS_MAX):
        find(free_capacity, (want(number),))
        find(free_capacity, (want(0),))
    assert kept in free_capacity.offers.values()


def test_changes_of_nodes_are_written_down_up_to_a_bound_also_where_no_offer_reads_them() -> None:
    free_capacity = FreeCapacity()
    free_capacity.add(node("node-1"))
    held = Allocation(rank=0, role="worker", node_id="node-1", cpus=1.0, memory=MIB)
    for _ in range(CHANGES_MAX // 2 + 10):
        free_capacity.take(held)
        free_capacity.give_back(held)
    assert len(free_capacity.changed) <= CHANGES_MAX


def test_offers_forget_what_nodes_cost_earlier() -> None:
    free_capacity = FreeCapacity()
    for number in range(4):
        free_capacity.add(node(f"node-{number}"))
    costs = {f"node-{number}": 1.0 for number in range(4)}
    offers = NodeIndex[NodeCapacity](lambda there: (costs[there.node.id],))
    held = Allocation(rank=0, role="worker", node_id="node-3", cpus=1.0, memory=MIB)
    for number in range(1000):
        costs["node-3"] = 2.0 + number
        free_capacity.take(held)
        free_capacity.give_back(held)
        assert offers.best(free_capacity.nodes, free_capacity.changed) == ((1.0,), "node-0")
    assert len(offers._heap) <= 2 * 4 + STALE_MAX + 1


def test_a_node_keeps_the_groups_of_its_gpus_for_a_bounded_number_of_models() -> None:
    free_capacity = FreeCapacity(placer=Policy(placement="weft-best").placing.placer)
    free_capacity.add(node("node-1"))
    for number in range(500):
        find(free_capacity, (want(0, model=f"model-{number}"),))
    assert len(free_capacity.nodes["node-1"].chunked) <= 32


def test_shapes_of_jobs_that_wait_no_more_are_forgotten() -> None:
    """A tenant submits jobs that fit nowhere, each of another size, and cancels them."""
    w = World(ScriptedNode("node-1", capacity(gpus=1)))
    w.sync("node-1")
    w.tick(20.0)
    w.sync("node-1")
    w.submit("first", gpus=1)
    w.tick()
    for number in range(3 * CACHED_LEAST):
        job_id = f"j-{number}"
        w.submit(job_id, spec={"role": {"memory": f"{number + 100}MiB"}})
        w.tick()
        assert w.stored[job_id].state is JobState.QUEUED
        w.ask(AskKind.CANCEL, job_id)
    assert len(w.core._waiting.cycle._unfit) <= CACHED_LEAST + 4
    assert len(w.core._waiting._cluster._fits_empty) <= CACHED_LEAST + 4


def test_runs_that_a_node_makes_up_for_a_job_are_not_kept() -> None:
    w = World(ScriptedNode("node-1", capacity(gpus=1)))
    w.sync("node-1")
    w.tick(20.0)
    w.sync("node-1")
    w.submit("j-1", gpus=1)
    w.tick()
    w.sync("node-1")
    for number in range(50):
        made_up = tuple(
            RunSeen(job_id="j-1", epoch=100 * number + epoch, rank=7, state=RunState.RUNNING) for epoch in range(20)
        )
        report = structs.replace(w.nodes["node-1"].report(), leader=None)
        w.core.report(structs.replace(report, runs=(*report.runs, *made_up)), w.now)
    assert w.core.cluster_state.pool.runs._ever_seen <= {("j-1", 0, 0)}


def test_a_journal_keeps_the_last_report_of_each_node_alone() -> None:
    """A node that has other GPUs in every report is told whole each time."""
    journal = Journal(Scheduler(pool="default", settings=Settings()))
    journal.load(jobs=[], nodes=[], scores=[], now=0.0, epoch=1)
    scripted = ScriptedNode("node-1", capacity(gpus=1))
    journal.begin(1.0)
    for number in range(100):
        scripted.capacity = capacity(gpus=1 + number % 2)
        journal.report(scripted.report(), 1.0)
    assert len(journal._reports) == 1


def test_the_classes_of_a_bounded_number_of_workloads_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_cache, "LEARNT_MAX", 10)
    core = Scheduler(pool="default", settings=Settings())
    for number in range(25):
        one = WorkloadClass(workload=f"w-{number}", job_class="memory", compute=0.5, memory=0.5, at=0.0)
        core.cluster_state.learn([one], 0.0)
    assert list(core.cluster_state.score_cache.learnt) == [f"w-{number}" for number in range(15, 25)]


def test_holders_forget_when_the_tier_of_a_job_was_to_change() -> None:
    """Under LAS; each new priority of a running job says anew when its level changes."""
    holders = Holders(Policy(order="las").ordering, MinimumRun())
    for number in range(1000):
        running = job(state=JobState.RUNNING, placement=placement(("node-1", 0)), started_at=0.0, placed_at=0.0)
        holders.put(running, 1.0 + number / 1000)
    assert len(holders._changes) <= 2 + 64 + 1


def test_a_scorer_asked_for_unknown_workloads_remembers_none_of_them() -> None:
    references = Paces()
    for number in range(100):
        assert references.typical((f"w-{number}", "alike")) is None
    assert not references._typical
