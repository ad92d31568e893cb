"""Sick GPUs and nodes: no new run, and what ran there goes elsewhere and is charged no try."""

import pytest
from msgspec import structs

from tests.support.scheduler import World, world
from weft.domain.health import HealthRecord, HealthState
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason, GpuSigns, NodeSigns
from weft.service import SettingsError, load
from weftd.scheduler.counters import Counters
from weftd.scheduler.settings import SchedulerSettings

S, H = JobState, HealthState


def shows(w: World, node_id: str, gpu: int, **signs: object) -> None:
    w.nodes[node_id].signs = NodeSigns(boot="t1", gpus=(structs.replace(GpuSigns(index=gpu), **signs),))
    w.sync(node_id)


def health(w: World, node_id: str, gpu: int) -> HealthRecord:
    found = w.core.cluster_state.pool.nodes[node_id].health_of(gpu)
    assert found is not None
    return found


def place_of(w: World, job_id: str) -> tuple[str, tuple[int, ...]]:
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return placement.allocations[0].node_id, placement.allocations[0].gpus


def test_a_job_on_a_gpu_that_fell_off_the_bus_runs_elsewhere_and_is_charged_no_try() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=1)
    w.round()
    home, (gpu,) = place_of(w, "j-1")
    shows(w, home, gpu, xids={"79": 1})
    w.round()
    w.round()
    w.round()
    job = w.stored["j-1"]
    assert (job.state, job.attempts) == (S.RUNNING, 0)
    assert place_of(w, "j-1") != (home, (gpu,))
    stopped = next(step for step in w.steps if step.event is JobEvent.STOPPING)
    assert (stopped.cause.code, stopped.cause.by) == (CauseCode.GPU_FAILED, home)
    assert stopped.cause.sentence == f"GPU {gpu} of node {home} failed: Xid 79: it fell off the bus"
    assert stopped.cause.numbers["gpu"] == gpu


def test_a_program_that_dies_with_its_gpu_is_charged_no_try() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=1)
    w.round()
    home, (gpu,) = place_of(w, "j-1")
    w.nodes[home].end(("j-1", 0, 0), 134, reason=EndReason.EXIT)
    shows(w, home, gpu, xids={"79": 1})
    assert (w.stored["j-1"].epoch, w.stored["j-1"].attempts) == (1, 0)


def test_no_job_starts_on_a_quarantined_gpu_and_the_reason_names_it() -> None:
    w = world(gpus=2)
    shows(w, "node-1", 0, levels={"ecc-uncorrected": 2.0})
    w.submit("j-1", gpus=1)
    w.submit("j-2", gpus=1)
    w.round()
    assert place_of(w, "j-1") == ("node-1", (1,))
    assert w.state("j-2") is S.QUEUED
    cause = w.core.cluster_state.jobs["j-2"].waiting_for
    assert cause is not None
    assert cause.code is CauseCode.NO_ROOM
    assert "GPU 0 of node-1 is quarantined" in cause.sentence
    assert cause.numbers["gpus_out_of_use"] == 1


def test_a_job_that_was_placed_and_has_not_begun_does_not_begin_on_a_quarantined_gpu() -> None:
    w = world(nodes=2, gpus=2)
    w.submit("j-1", gpus=1)
    w.tick()
    home, (gpu,) = place_of(w, "j-1")
    shows(w, home, gpu, levels={"row-remap-pending": 1.0})
    assert ("j-1", 0, 0) not in w.nodes[home].live
    w.round()
    w.round()
    assert w.state("j-1") is S.RUNNING
    assert place_of(w, "j-1") != (home, (gpu,))


def test_a_run_goes_on_where_only_a_reset_is_pending() -> None:
    w = world(gpus=2)
    w.submit("j-1", gpus=1)
    w.round()
    _, (gpu,) = place_of(w, "j-1")
    shows(w, "node-1", gpu, levels={"row-remap-pending": 1.0})
    w.round()
    assert (w.state("j-1"), health(w, "node-1", gpu).state) == (S.RUNNING, H.QUARANTINED)


def test_a_node_whose_driver_hangs_takes_no_job_and_its_runs_go_on() -> None:
    w = world(gpus=2)
    w.submit("j-1", gpus=1)
    w.round()
    w.nodes["node-1"].signs = NodeSigns(boot="t1", levels={"driver-hangs": 30.0})
    w.sync("node-1")
    w.submit("j-2", gpus=1)
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.QUEUED)
    cause = w.core.cluster_state.jobs["j-2"].waiting_for
    assert cause is not None
    assert "is quarantined: the GPU driver does not answer" in cause.sentence
    w.nodes["node-1"].signs = NodeSigns(boot="t1")
    w.sync("node-1")
    w.tick(60.0)
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_a_person_returns_a_gpu_and_it_is_used_again() -> None:
    w = world(gpus=1)
    shows(w, "node-1", 0, levels={"row-remap-failed": 1.0})
    w.submit("j-1", gpus=1)
    w.round()
    assert (w.state("j-1"), health(w, "node-1", 0).state) == (S.QUEUED, H.BROKEN)
    w.nodes["node-1"].signs = NodeSigns(boot="t1")
    w.ask(AskKind.RETURN, "node-1", gpu=0)
    w.round()
    assert (w.state("j-1"), health(w, "node-1", 0).state) == (S.RUNNING, H.PROBATION)


def test_a_new_leader_forgets_no_quarantine() -> None:
    w = world(gpus=1)
    shows(w, "node-1", 0, xids={"79": 1})
    w.submit("j-1", gpus=1)
    nodes = list(w.core.cluster_state.pool.nodes.values())
    w.lead_anew(w.open_jobs(), nodes)
    w.round()
    w.tick(60.0)
    w.round()
    assert (w.state("j-1"), health(w, "node-1", 0).state) == (S.QUEUED, H.QUARANTINED)


def test_a_node_that_reports_every_gpu_sick_keeps_all_but_the_bound() -> None:
    w = world(nodes=3, gpus=8)
    gpus = tuple(GpuSigns(index=index, xids={"79": 1}) for index in range(8))
    w.nodes["node-1"].signs = NodeSigns(boot="t1", gpus=gpus)
    w.sync("node-1")
    states = [health(w, "node-1", index) for index in range(8)]
    assert [each.state for each in states].count(H.QUARANTINED) == 2
    assert sum(each.due for each in states) == 6


def test_each_change_of_state_is_an_event_with_a_sentence() -> None:
    w = world(gpus=2)
    w.core.take_node_changes()
    shows(w, "node-1", 1, xids={"79": 1})
    (change,) = w.core.take_node_changes()
    assert change.event == "health"
    assert change.sentence.startswith(
        "GPU 1 is quarantined: Xid 79: it fell off the bus (until: probation once a reset"
    )


def test_the_metric_counts_what_is_out_of_use_by_state() -> None:
    w = world(nodes=3, gpus=8)
    counters = Counters()
    shows(w, "node-1", 0, xids={"79": 1})
    shows(w, "node-2", 1, levels={"row-remap-failed": 1.0})
    w.nodes["node-3"].signs = NodeSigns(boot="t1", levels={"driver-hangs": 30.0})
    w.sync("node-3")
    counters.show(w.core)

    def value(what: str, state: str) -> float | None:
        return counters.registry.get_sample_value("weft_scheduler_out_of_use", {"what": what, "state": state})

    assert [value("gpu", "quarantined"), value("gpu", "broken")] == [1, 1]
    assert [value("node", "quarantined"), value("node", "broken")] == [1, 0]


def test_the_times_of_health_are_settings_and_absurd_ones_are_refused() -> None:
    made = load(
        SchedulerSettings,
        prefix="SCHEDULER_",
        environ={"SCHEDULER_HEALTH_CLEAN_SECONDS": "5", "SCHEDULER_LEMON_THRESHOLD": "9"},
    )
    assert (made.core.health.clean_seconds, made.core.lemons.threshold) == (5.0, 9.0)
    for name, value in (("HEALTH_PROBATION_SECONDS", "-1"), ("LEMON_FACTOR", "0"), ("LEMON_RATE_LEAST", "nan")):
        with pytest.raises(SettingsError, match=name):
            load(SchedulerSettings, prefix="SCHEDULER_", environ={f"SCHEDULER_{name}": value})
