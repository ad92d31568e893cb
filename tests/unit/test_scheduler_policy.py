"""The scheduler plans by an order, a placement and a backfill, each by its name."""

from typing import Any

import pytest
from msgspec import structs

from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, JobState
from weft.messages.asks import AskKind
from weft.messages.signals import GpuScore
from weft.planning.order import LAS_PATIENCE_SECONDS
from weft.planning.policy import ORDERS, PLACEMENTS, Policy
from weft.planning.reasons.explain import explain
from weft.planning.reserving import LONGEST_SECONDS
from weft.service.config import SettingsError, load
from weftd.scheduler.settings import SchedulerSettings
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.keeping import pickled, unpickled

S = JobState
ONE = {"time_limit": "1h"}


def led(order: str = "priority", placement: str = "weft-best", backfill: str = "easy", **more: Any) -> World:
    policy = Policy(order, placement, backfill)
    return world(settings=Settings(policy=policy, lease_seconds=1e6, start_seconds=1e6, **more))


def end(w: World, job_id: str) -> None:
    job = w.core.cluster_state.jobs[job_id]
    assert job.placement is not None
    for allocation in job.placement.allocations:
        w.nodes[allocation.node_id].end((job_id, job.epoch, allocation.rank), 0)
    w.round()


def waiting_for(w: World, job_id: str) -> Any:
    cause = w.core.cluster_state.jobs[job_id].waiting_for
    assert cause is not None
    return cause


# settings


def test_names_come_from_the_settings_and_an_unknown_one_is_one_error_that_names_it() -> None:
    assert load(SchedulerSettings, prefix="SCHEDULER_", environ={}).policy == Policy("priority", "weft-best", "easy")
    environ = {"SCHEDULER_ORDER": "las", "SCHEDULER_PLACEMENT": "pal", "SCHEDULER_BACKFILL": "none"}
    assert load(SchedulerSettings, prefix="SCHEDULER_", environ=environ).policy == Policy("las", "pal", "none")
    for setting, told in (
        ("ORDER", "no such order as 'fastest'; there are fifo, srtf, las, drf, fair, priority"),
        ("PLACEMENT", "no such placement as 'fastest'; there are packed, "),
        ("BACKFILL", "no such backfill as 'fastest'; there are none, easy, conservative"),
    ):
        with pytest.raises(SettingsError) as caught:
            load(SchedulerSettings, prefix="SCHEDULER_", environ={f"SCHEDULER_{setting}": "fastest"})
        assert str(caught.value).startswith(f"SCHEDULER_{setting}: {told}")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_core_is_kept_with_its_policy(order: str, placement: str) -> None:
    w = led(order, placement)
    w.submit("j-1", gpus=3)
    w.submit("j-2", gpus=2)
    w.tick()
    again = unpickled(pickled(w.core), w.core.cluster_state.jobs.values())
    assert again.cluster_state.waitlist.queue.order is w.core.cluster_state.waitlist.queue.order
    assert again.cluster_state.pool.free_capacity.placer is w.core.cluster_state.pool.free_capacity.placer
    assert again.decide(w.now + 1) == w.core.decide(w.now + 1)


# backfill


def test_without_backfill_nobody_overtakes_a_job_that_does_not_fit() -> None:
    w = led("fifo", backfill="none")
    w.submit("j-0", gpus=3)
    w.round()
    w.submit("j-big", gpus=2)
    w.submit("j-small", gpus=1)
    w.round()
    assert (w.state("j-big"), w.state("j-small")) == (S.QUEUED, S.QUEUED)
    cause = waiting_for(w, "j-small")
    assert (cause.code, cause.by) == (CauseCode.HELD_BACK, "j-big")
    assert cause.sentence == "j-big is ahead of it and does not fit; with backfill none no job overtakes it"
    end(w, "j-0")
    assert (w.state("j-big"), w.state("j-small")) == (S.RUNNING, S.RUNNING)


def test_a_job_that_no_empty_pool_would_hold_is_in_nobodys_way() -> None:
    w = led("fifo", backfill="none")
    w.submit("j-never", gpus=5)
    w.submit("j-small", gpus=1)
    w.round()
    assert (w.state("j-never"), w.state("j-small")) == (S.QUEUED, S.RUNNING)


def test_easy_lets_those_overtake_who_end_before_the_first_can_start() -> None:
    w = led("fifo", backfill="easy")
    w.submit("j-0", gpus=3, spec=ONE)
    w.round()
    w.submit("j-big", gpus=4)
    w.submit("j-long", gpus=1, spec={"time_limit": "2h"})
    w.submit("j-unknown", gpus=1)
    w.round()
    assert w.state("j-long") is S.QUEUED
    assert w.state("j-unknown") is S.QUEUED
    cause = waiting_for(w, "j-long")
    assert (cause.code, cause.by) == (CauseCode.HELD_BACK, "j-big")
    assert cause.sentence == "j-big is ahead of it and might start later if this job started now"
    w.submit("j-short", gpus=1, spec={"time_limit": "10m"})
    w.round()
    assert w.state("j-short") is S.RUNNING
    end(w, "j-short")
    end(w, "j-0")
    assert w.state("j-big") is S.RUNNING


def test_easy_lets_those_overtake_who_need_only_what_the_first_leaves() -> None:
    w = led("fifo", backfill="easy")
    w.submit("j-0", gpus=2, spec=ONE)
    w.round()
    w.submit("j-big", gpus=3)
    w.submit("j-small", gpus=1)
    w.submit("j-more", gpus=1)
    w.round()
    assert [w.state(job_id) for job_id in ("j-big", "j-small", "j-more")] == [S.QUEUED, S.RUNNING, S.QUEUED]


def test_where_nobody_knows_how_long_jobs_take_easy_holds_nobody_back_until_one_waited_long() -> None:
    w = led("fifo", backfill="easy", patience_seconds=100.0)
    w.submit("j-0", gpus=3)
    w.round()
    w.submit("j-big", gpus=4)
    w.submit("j-small", gpus=1)
    w.round()
    assert w.state("j-small") is S.RUNNING
    end(w, "j-small")
    w.tick(101)
    w.submit("j-1", gpus=1)
    w.round()
    assert w.state("j-1") is S.RUNNING, "three GPUs would be idle for as long again as j-0 has run"
    end(w, "j-1")
    w.tick(LONGEST_SECONDS)
    w.submit("j-late", gpus=1)
    w.round()
    cause = waiting_for(w, "j-late")
    assert (cause.code, cause.by) == (CauseCode.HELD_BACK, "j-big")
    assert cause.sentence.startswith("free GPUs are reserved for j-big, which is ahead of it; besides: ")


def test_conservative_delays_nobody_who_waits() -> None:
    w = led("fifo", backfill="conservative")
    w.submit("j-0", gpus=3, spec=ONE)
    w.round()
    w.submit("j-1", gpus=4, spec=ONE)
    w.submit("j-2", gpus=1, spec={"time_limit": "90m"})
    w.submit("j-3", gpus=1, spec={"time_limit": "30m"})
    w.round()
    assert [w.state(f"j-{n}") for n in (1, 2, 3)] == [S.QUEUED, S.QUEUED, S.RUNNING]


# orders


def test_srtf_serves_first_who_has_least_left_and_preempts_who_needs_much_more() -> None:
    w = led("srtf")
    w.submit("j-long", gpus=4, spec={"time_limit": "10h"})
    w.round()
    w.submit("j-some", gpus=4, spec={"time_limit": "9h30m"})
    w.round()
    assert w.state("j-long") is S.RUNNING  # that is not clearly less than 10 h
    w.submit("j-short", gpus=4, spec={"time_limit": "1h"})
    w.round()
    assert w.state("j-short") is S.RUNNING
    assert w.state("j-long") is S.QUEUED
    (stopped,) = [step for step in w.steps if step.to is S.STOPPING]
    assert stopped.cause.code is CauseCode.PREEMPTED
    assert "that one needs 1h0m more, this one 9h59m" in stopped.cause.sentence
    end(w, "j-short")
    assert w.state("j-some") is S.RUNNING


def test_srtf_leaves_alone_who_may_not_be_pre_empted() -> None:
    w = led("srtf")
    w.submit("j-long", gpus=4, spec={"time_limit": "10h", "preemptible": False})
    w.round()
    w.submit("j-short", gpus=4, spec=ONE)
    w.round()
    assert w.state("j-long") is S.RUNNING


def test_las_preempts_who_has_had_much_and_counts_all_epochs() -> None:
    w = led("las")
    w.submit("j-old", gpus=4)
    w.round()
    w.submit("j-new", gpus=4)
    w.round()
    assert w.state("j-old") is S.RUNNING  # both are in the first level
    w.tick(1000)  # 4000 GPU-seconds
    w.round()
    assert w.state("j-new") is S.RUNNING
    old = w.core.cluster_state.jobs["j-old"]
    assert old.state is S.QUEUED
    assert old.attained_seconds > 1000
    (stopped,) = [step for step in w.steps if step.to is S.STOPPING]
    assert "that one has had 0.0s of GPU time, this one 1h6m" in stopped.cause.sentence
    w.submit("j-newer", gpus=4)
    end(w, "j-new")
    assert (w.state("j-newer"), w.state("j-old")) == (S.RUNNING, S.QUEUED)
    end(w, "j-newer")
    assert w.state("j-old") is S.RUNNING


def test_las_forgets_what_one_had_who_went_without_for_long_also_under_another_leader() -> None:
    w = led("las")
    w.submit("j-old", gpus=4)
    w.round()
    w.tick(1000)
    w.submit("j-new", gpus=4)
    w.round()
    assert w.state("j-old") is S.QUEUED
    w.tick(LAS_PATIENCE_SECONDS + 3600)
    w.submit("j-newer", gpus=4)
    w.round()  # j-new has had more than anybody: j-old, promoted, is the oldest of the first level
    assert (w.state("j-old"), w.state("j-newer"), w.state("j-new")) == (S.RUNNING, S.QUEUED, S.QUEUED)
    assert w.stored["j-old"].attained_seconds == 0.0
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    w.round()
    assert w.state("j-old") is S.RUNNING


def test_drf_serves_the_tenant_who_holds_least() -> None:
    w = led("drf")
    for number in range(6):
        w.submit(f"j-{number}")
    held = [
        structs.replace(job, tenant="bob" if job.id == "j-5" else "alice") for job in w.core.cluster_state.jobs.values()
    ]
    w.lead_anew(held, list(w.core.cluster_state.pool.nodes.values()))
    w.round()
    assert w.state("j-5") is S.RUNNING
    assert sum(w.state(f"j-{number}") is S.RUNNING for number in range(5)) == 3


# classes and scores


def scored(*scores: tuple[str, int, float], node_id: str = "node-1") -> list[GpuScore]:
    return [GpuScore(node_id=node_id, gpu_index=gpu, job_class=name, score=score) for name, gpu, score in scores]


def test_the_next_placement_goes_by_new_scores_of_the_jobs_class() -> None:
    w = led()
    w.core.cluster_state.rescore(scored(("compute", 0, 1.3), ("compute", 1, 0.9), ("memory", 1, 2.0)))
    w.submit("j-1", gpus=1, spec={"labels": {"weft/class": "compute"}})
    w.submit("j-2", gpus=1, spec={"labels": {"weft/class": "memory"}})
    w.tick()
    placed = {job_id: w.core.cluster_state.jobs[job_id].placement for job_id in ("j-1", "j-2")}
    assert placed["j-1"] is not None
    assert placed["j-1"].allocations[0].gpus == (1,)
    assert placed["j-1"].why == (
        "weft-best: 1 GPU of node-1, score 0.90; here it takes 31 % less time than at the place of the placement packed"
        " (1.30); left aside: gpu-0 of node-1 is 1.30× slower for compute-bound jobs"
    )
    assert placed["j-1"].numbers["slowdown_packed"] == 1.3
    assert placed["j-2"] is not None
    assert placed["j-2"].allocations[0].gpus == (0,)  # slow for others, and not for it


@pytest.mark.parametrize("labels", [{}, {"weft/class": "fast"}])
def test_a_job_of_no_known_class_counts_as_most_sensitive(labels: dict[str, str]) -> None:
    w = led()
    w.core.cluster_state.rescore(scored(("compute", 2, 0.8), ("memory", 3, 0.5)))
    w.submit("j-1", gpus=1, spec={"labels": labels})
    w.tick()
    placement = w.core.cluster_state.jobs["j-1"].placement
    assert placement is not None
    assert placement.allocations[0].gpus == (2,)


def test_explain_says_that_a_class_is_none() -> None:
    w = led()
    w.submit("j-1", gpus=1, spec={"labels": {"weft/class": "fast"}})
    w.tick()
    told = explain(w.core.cluster_state.jobs["j-1"], nodes=(), holding=(), queued=(), now=w.now)
    assert told.sentence.endswith(
        "(its label weft/class says fast, which is none of compute, mixed, memory: it counts as compute)"
    )


def test_explain_says_by_what_the_queue_is_served_and_for_whom_it_is_held_back() -> None:
    w = led("fifo", backfill="easy")
    w.submit("j-0", gpus=3, spec=ONE)
    w.round()
    w.submit("j-big", gpus=4)
    w.submit("j-small", gpus=1)
    w.round()
    jobs = list(w.core.cluster_state.jobs.values())
    told = explain(
        w.core.cluster_state.jobs["j-small"],
        nodes=list(w.core.cluster_state.pool.nodes.values()),
        holding=[job for job in jobs if job.state.holding],
        queued=[job for job in jobs if job.state is S.QUEUED],
        now=w.now,
        policy=str(w.core.settings.policy),
    )
    assert (told.code, told.held_back_for, told.policy) == ("held-back", "j-big", "fifo+weft-best+easy")
    assert told.ahead == 1
    placed = explain(w.core.cluster_state.jobs["j-0"], nodes=(), holding=(), queued=(), now=w.now)
    assert (
        placed.sentence
        == "it is on node-1: weft-best: 3 GPUs of node-1 together, slowest 1.00; the placement packed would be as fast"
    )
    assert placed.numbers["slowdown"] == 1.0


def test_a_score_counts_as_much_as_it_is_sure() -> None:
    assert GpuScore(node_id="n", gpu_index=0, job_class="compute", score=1.5, confidence=0.5).believed == 1.25
    w = led("fifo")
    doubtful = GpuScore(node_id="node-1", gpu_index=0, job_class="compute", score=1.5, confidence=0.1)
    sure = GpuScore(node_id="node-1", gpu_index=1, job_class="compute", score=1.2, confidence=1.0)
    w.core.cluster_state.rescore([doubtful, sure])
    scores = w.core.cluster_state.pool.free_capacity.scores.of("compute")
    assert scores["node-1", 0] == pytest.approx(1.05)
    assert scores["node-1", 1] == 1.2


def test_a_job_starts_once_no_room_is_kept_any_more_for_the_one_ahead_though_no_job_has_ended() -> None:
    w = led("fifo", backfill="easy", patience_seconds=100.0)
    w.submit("j-0", gpus=3)
    w.round()
    w.submit("j-big", gpus=4)
    w.tick(LONGEST_SECONDS)
    w.submit("j-late", gpus=1)
    w.round()
    assert w.state("j-late") is S.QUEUED
    w.ask(AskKind.CANCEL, "j-big")
    w.round()
    assert w.state("j-late") is S.RUNNING
