"""A running job stays where it is, unless it gains more by a move than the move costs; then it moves once and whole."""

from typing import Any

import pytest
from msgspec import structs

from tests.support.scheduler import World, world
from weft.domain.checkpoints import CHECKPOINTS_LABEL
from weft.domain.classes import CLASS_LABEL
from weft.domain.job import Allocation, CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason
from weft.messages.signals import GpuScore
from weft.planning.moves import KEEP_SECONDS, Move, MoveRules, together
from weft.planning.policy import Policy
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.keeping import pickled, unpickled

S, E = JobState, JobEvent
GRACE = 30.0
COST = 60.0 + GRACE


def submit(w: World, job_id: str, *, labels: dict[str, str] | None = None, **fields: Any) -> None:
    """A job that writes a checkpoint when it is told to stop."""
    said = {CHECKPOINTS_LABEL: "0s"} if labels is None else labels
    w.submit(job_id, **{**fields, "spec": {"labels": said, **fields.get("spec", {})}})


def migration(*, nodes: int = 1, gpus: int = 2, policy: Policy | None = None, **rules: Any) -> World:
    settings = Settings(lease_seconds=1e6, stop_seconds=1e7, moves=MoveRules(**rules))
    settings = structs.replace(settings, policy=policy or settings.policy)
    return world(nodes=nodes, gpus=gpus, settings=settings)


def rescore(w: World, *scores: tuple[str, int, float]) -> None:
    w.core.cluster_state.rescore(
        [GpuScore(node_id=node_id, gpu_index=gpu, job_class="compute", score=score) for node_id, gpu, score in scores]
    )


def gpus_of(w: World, job_id: str) -> list[tuple[str, int]]:
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return [(one.node_id, gpu) for one in placement.allocations for gpu in one.gpus]


def long_run(w: World, seconds: float = 3600.0) -> None:
    """So long that it counts as going on for as long again."""
    w.tick(seconds)


def moved(w: World) -> list[str]:
    return [step.job_id for step in w.steps if step.event is E.STOPPING and step.cause.code is CauseCode.MOVED]


def test_a_job_moves_to_a_gpu_that_saves_more_than_the_move_costs_and_says_so() -> None:
    w = migration()
    submit(w, "j-1", gpus=1)
    w.round()
    assert gpus_of(w, "j-1") == [("node-1", 0)]
    rescore(w, ("node-1", 0, 1.5), ("node-1", 1, 1.0))
    long_run(w)
    job = w.core.cluster_state.jobs["j-1"]
    assert job.state is S.STOPPING
    assert job.stopping_for is not None
    assert job.stopping_for.code is CauseCode.MOVED
    assert job.stopping_for.sentence == "moved to node-1: slowdown 1.50 → 1.00 saves about 20m0s for 1m30s"
    assert job.stopping_for.numbers["slowdown_after"] == 1.0
    w.round()
    job = w.core.cluster_state.jobs["j-1"]
    assert (job.state, job.epoch, job.attempts) == (S.RUNNING, 1, 0)
    assert gpus_of(w, "j-1") == [("node-1", 1)]
    assert job.placement is not None
    assert job.placement.why.endswith("; moved to node-1: slowdown 1.50 → 1.00 saves about 20m0s for 1m30s")
    assert w.core.cluster_state.pool.kept == {}


def test_a_job_that_writes_no_checkpoints_stays_and_one_that_seldom_does_has_more_to_gain() -> None:
    for said, goes in (("", False), ("soon", False), ("10m", True), ("40m", False)):
        w = migration()
        submit(w, "j-1", gpus=1, labels={CHECKPOINTS_LABEL: said} if said else {})
        w.round()
        rescore(w, ("node-1", 0, 1.5), ("node-1", 1, 1.0))
        long_run(w)  # saves 1,200 s, and a move costs 90 s and half of what lies between two checkpoints, twice
        assert bool(moved(w)) is goes, said


def test_a_job_stays_where_the_gain_is_less_than_the_margin_asks_for() -> None:
    for margin, gain in ((2.0, False), (1.0, True)):
        w = migration(margin=margin)
        submit(w, "j-1", gpus=1)
        w.round()
        rescore(w, ("node-1", 0, 1.05))
        long_run(w, 1.5 * COST / 0.05 * 1.05)  # saves one and a half times what it costs
        assert bool(moved(w)) is gain


@pytest.mark.parametrize(
    "spec", [{"kind": "notebook"}, {"kind": "inference"}, {"preemptible": False}, {"time_limit": "2h"}]
)
def test_some_jobs_never_move(spec: dict[str, Any]) -> None:
    """Those that people wait for, those that may not be stopped, and those that end soon anyway."""
    w = migration()
    submit(w, "j-1", gpus=1, spec=spec)
    w.round()
    rescore(w, ("node-1", 0, 1.5))
    long_run(w, 7000.0)
    w.round()
    assert moved(w) == []


@pytest.mark.parametrize("placement", ["packed-sticky", "packed", "pal"])
def test_under_other_placements_a_running_job_never_moves(placement: str) -> None:
    w = migration(policy=Policy("priority", placement, "easy"))
    submit(w, "j-1", gpus=1)
    w.round()
    (home,) = gpus_of(w, "j-1")
    rescore(w, (*home, 3.0))
    long_run(w)
    assert moved(w) == []


def test_moves_can_be_turned_off() -> None:
    w = migration(on=False)
    submit(w, "j-1", gpus=1)
    w.round()
    rescore(w, ("node-1", 0, 3.0))
    long_run(w)
    assert moved(w) == []


def test_a_gang_across_nodes_comes_together_once_there_is_room() -> None:
    w = migration(nodes=2, gpus=2)
    for job_id, elsewhere in (("j-a", "node-2"), ("j-b", "node-1")):
        w.ask(AskKind.DRAIN, elsewhere)
        submit(w, job_id, gpus=1, spec={"preemptible": False})
        w.round()
        w.ask(AskKind.RESUME, elsewhere)
    submit(w, "j-gang", gpus=1, replicas=2)
    w.round()
    assert {node_id for node_id, _ in gpus_of(w, "j-gang")} == {"node-1", "node-2"}
    w.ask(AskKind.CANCEL, "j-b")
    w.round()
    long_run(w)
    w.round()
    assert gpus_of(w, "j-gang") == [("node-2", 0), ("node-2", 1)]
    assert "moved to node-2: slowdown 1.70 → 1.00 saves about" in str(w.core.cluster_state.jobs["j-gang"].placement)


def test_no_more_than_so_many_move_at_once() -> None:
    w = migration(gpus=8, at_once_max=2)
    for number in range(4):
        submit(w, f"j-{number}", gpus=1)
    w.round()
    rescore(w, *(("node-1", gpu, 1.5) for gpu in range(4)))
    long_run(w)
    assert len(moved(w)) == 2
    w.tick(20)
    assert len(moved(w)) == 2  # while those are on their way
    w.round()
    w.tick(20)
    assert len(moved(w)) == 4


def test_what_is_kept_for_a_move_is_nobody_elses() -> None:
    w = migration()
    submit(w, "j-1", gpus=1)
    w.round()
    rescore(w, ("node-1", 0, 1.5))
    long_run(w)
    submit(w, "j-more-important", gpus=1, spec={"priority": 10})
    w.round()
    assert gpus_of(w, "j-1") == [("node-1", 1)]
    assert gpus_of(w, "j-more-important") == [("node-1", 0)]


def test_what_was_kept_is_let_go_when_the_job_does_not_come_in_time() -> None:
    w = migration()
    submit(w, "j-1", gpus=1)
    w.round()
    w.nodes["node-1"].unkillable.add(("j-1", 0, 0))
    rescore(w, ("node-1", 0, 1.5))
    long_run(w)
    submit(w, "j-2", gpus=1)
    w.tick(GRACE + KEEP_SECONDS - 1)
    assert w.state("j-2") is S.QUEUED
    w.tick(1)
    assert w.state("j-2") is S.PLACED


def test_a_job_that_is_cancelled_while_it_moves_ends_and_leaves_nothing_kept() -> None:
    w = migration()
    submit(w, "j-1", gpus=1)
    w.round()
    rescore(w, ("node-1", 0, 1.5))
    long_run(w)
    w.ask(AskKind.CANCEL, "j-1")
    w.round()
    assert w.state("j-1") is S.CANCELLED
    assert w.core.cluster_state.pool.kept == {}


def test_a_job_whose_new_node_is_lost_while_it_moves_waits_as_others_do() -> None:
    w = migration(nodes=2, gpus=1)
    submit(w, "j-1", gpus=1)
    w.round()
    rescore(w, ("node-1", 0, 1.5), ("node-2", 0, 1.0))
    long_run(w)
    assert moved(w) == ["j-1"]
    w.ask(AskKind.DRAIN, "node-2")
    w.round()
    assert w.state("j-1") is S.RUNNING
    assert gpus_of(w, "j-1") == [("node-1", 0)]
    assert w.core.cluster_state.pool.kept == {}


def test_a_job_that_moved_rests_for_ten_times_what_it_cost() -> None:
    w = migration(gpus=3)
    submit(w, "j-1", gpus=1)
    w.round()
    rescore(w, ("node-1", 0, 2.0), ("node-1", 2, 1.5))
    long_run(w)
    w.round()
    assert gpus_of(w, "j-1") == [("node-1", 1)]
    rescore(w, ("node-1", 1, 3.0))
    w.tick(10 * COST - 30)
    assert moved(w) == ["j-1"]
    w.tick(60)
    assert moved(w) == ["j-1", "j-1"]


def test_a_core_is_kept_in_the_middle_of_a_move() -> None:
    w = migration()
    submit(w, "j-1", gpus=1)
    w.round()
    rescore(w, ("node-1", 0, 1.5))
    long_run(w)
    again = unpickled(pickled(w.core), w.core.cluster_state.jobs.values())
    report = w.nodes["node-1"].report()
    for core in (w.core, again):
        assert not core.report(report, w.now)
    assert again.follow(report, w.now) == w.core.follow(report, w.now)
    assert again.decide(w.now) == w.core.decide(w.now)


# which moves go together


def at(gpu: int) -> tuple[Allocation, ...]:
    return (Allocation(rank=0, role="worker", node_id="node-1", gpus=(gpu,), cpus=1.0, memory=1),)


def test_who_moves_onto_anothers_gpus_moves_with_him_or_not_at_all() -> None:
    held = {"a": at(0), "b": at(1), "c": at(2)}
    onto_b, b_away, alone = Move("a", at(1), 100.0), Move("b", at(5), -10.0), Move("c", at(6), 20.0)
    moves = [onto_b, b_away, alone]
    assert together(moves, held, most=3) == [[onto_b, b_away], [alone]]
    assert together(moves, held, most=2) == [[onto_b, b_away]]
    assert together(moves, held, most=1) == [[alone]]
    assert together([b_away], held, most=3) == []


def test_jobs_that_change_places_move_together() -> None:
    held = {"a": at(0), "b": at(1)}
    swap = [Move("a", at(1), 30.0), Move("b", at(0), -10.0)]
    assert together(swap, held, most=2) == [swap]
    assert together(swap, held, most=1) == []


def test_a_job_that_moves_onto_the_gpu_of_another_waits_until_that_one_has_left() -> None:
    w = migration(gpus=2)
    submit(w, "j-1", gpus=1, labels={CHECKPOINTS_LABEL: "0s", CLASS_LABEL: "compute"})
    submit(w, "j-2", gpus=1, labels={CHECKPOINTS_LABEL: "0s", CLASS_LABEL: "memory"})
    w.round()
    first, second = gpus_of(w, "j-1"), gpus_of(w, "j-2")
    w.nodes["node-1"].unkillable.add(("j-2", 0, 0))
    slowdowns = {"compute": {first[0]: 2.0, second[0]: 1.0}, "memory": {first[0]: 1.0, second[0]: 2.0}}
    w.core.cluster_state.rescore(
        [
            GpuScore(node_id=node_id, gpu_index=gpu, job_class=job_class, score=score)
            for job_class, scores in slowdowns.items()
            for (node_id, gpu), score in scores.items()
        ]
    )
    long_run(w)
    assert sorted(moved(w)) == ["j-1", "j-2"]
    w.round()
    assert (w.state("j-1"), w.core.cluster_state.jobs["j-1"].epoch) == (S.QUEUED, 1), "its new place is not free yet"
    w.nodes["node-1"].end(("j-2", 0, 0), 143, reason=EndReason.STOPPED)
    w.round()
    assert (gpus_of(w, "j-1"), gpus_of(w, "j-2")) == (second, first)
    assert "; moved to node-1: slowdown 2.00 → 1.00" in str(w.core.cluster_state.jobs["j-1"].placement)
