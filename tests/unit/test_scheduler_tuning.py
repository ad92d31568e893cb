"""What a running job gets is changed while it runs: whole or not at all, and never more than its node has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import GIB, capacity
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind, RankTuning
from weft.planning import reserving
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.decide.tuning import MEMORY_BYTES_MIN
from weftd.scheduler.thinking.record.keeping import pickled, unpickled

S, E = JobState, JobEvent


def world(*cpus: float, gpus: int = 4, memory: int = 16 * GIB) -> World:
    """Nodes `node-1`, `node-2`, … with so many cores each."""
    nodes = (
        ScriptedNode(f"node-{number}", capacity(gpus=gpus, cpus=count, memory=memory))
        for number, count in enumerate(cpus, 1)
    )
    made = World(*nodes, settings=Settings())
    for node_id in made.nodes:
        made.sync(node_id)
    return made


def running(w: World, job_id: str = "j-1", *, cpus: float = 1.0, **fields: Any) -> None:
    role = {"cpus": cpus, "memory": "1GiB", **fields.pop("role", {})}
    w.submit(job_id, spec={"role": role, **fields.pop("spec", {})}, **fields)
    w.round()
    assert w.state(job_id) is S.RUNNING


def has(w: World, job_id: str = "j-1") -> list[tuple[float, int, int | None]]:
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return [(one.cpus, one.memory, one.egress) for one in placement.allocations]


def test_a_rank_gets_more_of_what_is_free_and_its_node_hears_it_at_once() -> None:
    w = world(8.0)
    running(w)
    w.core.take_hinted()
    (step,) = w.tune("j-1", RankTuning(rank=0, cpus=3.0, memory=2 * GIB, egress=2_500_000))
    assert (step.event, step.to, step.epoch) == (E.TUNED, S.RUNNING, 0)
    assert step.cause.code is CauseCode.UPSCALED
    assert step.ask == 1
    assert has(w) == [(3.0, 2 * GIB, 2_500_000)]
    assert w.core.take_hinted() == {"node-1"}
    free_capacity = w.core.cluster_state.pool.free_capacity.nodes["node-1"]
    assert (free_capacity.cpus, free_capacity.memory) == (5.0, 14 * GIB)
    (run,) = w.runs_of("node-1")
    assert (run.cpus, run.memory, run.egress, run.gpus) == (3.0, 2 * GIB, 2_500_000, (0,))


def test_what_is_not_named_stays_as_it_is() -> None:
    w = world(8.0)
    running(w, role={"egress": "100KB"})
    w.tune("j-1", RankTuning(rank=0, cpus=2.0))
    assert has(w) == [(2.0, GIB, 100_000)]


@pytest.mark.parametrize(
    "ranks",
    [
        (),
        (RankTuning(rank=0),),
        (RankTuning(rank=0, cpus=1.0),),
        (RankTuning(rank=1, cpus=2.0),),
        (RankTuning(rank=-1, cpus=2.0),),
        (RankTuning(rank=0, cpus=2.0), RankTuning(rank=0, cpus=3.0)),
        (RankTuning(rank=0, cpus=0.0),),
        (RankTuning(rank=0, cpus=-1.0),),
        (RankTuning(rank=0, cpus=float("nan")),),
        (RankTuning(rank=0, cpus=float("inf")),),
        (RankTuning(rank=0, cpus=8.1),),
        (RankTuning(rank=0, memory=0),),
        (RankTuning(rank=0, memory=MEMORY_BYTES_MIN - 1),),
        (RankTuning(rank=0, memory=17 * GIB),),
        (RankTuning(rank=0, egress=0),),
        (RankTuning(rank=0, cpus=2.0), RankTuning(rank=7, cpus=2.0)),
        (RankTuning(rank=0, cpus=2.0, memory=1),),
    ],
)
def test_what_makes_no_sense_or_does_not_fit_changes_nothing(ranks: tuple[RankTuning, ...]) -> None:
    w = world(8.0)
    running(w)
    before = w.core.cluster_state.jobs["j-1"]
    w.core.take_hinted()
    assert w.tune("j-1", *ranks) == []
    assert w.core.cluster_state.jobs["j-1"] is before
    assert w.core.cluster_state.pool.free_capacity.nodes["node-1"].cpus == 7.0
    assert w.core.take_hinted() == set()


def test_only_a_running_job_is_tuned_and_only_in_the_epoch_that_was_looked_at() -> None:
    w = world(8.0)
    w.submit("j-1", spec={"role": {"cpus": 1.0}})
    more = RankTuning(rank=0, cpus=2.0)
    assert w.tune("j-1", more) == []  # queued
    w.tick()
    assert w.tune("j-1", more) == []  # placed
    w.round()
    assert w.tune("j-1", more, epoch=1) == []
    w.ask(AskKind.REQUEUE, "j-1")
    assert w.tune("j-1", more) == []  # stopping
    w.round()
    w.round()
    assert w.stored["j-1"].epoch == 1
    assert w.tune("j-1", more, epoch=0) == []
    assert len(w.tune("j-1", more, epoch=1)) == 1


def test_what_a_kept_change_gained_is_told_and_changes_nothing() -> None:
    w = world(8.0)
    running(w)
    w.tune("j-1", RankTuning(rank=0, cpus=3.0))
    held, orders = has(w), w.core.answer("node-1")
    (step,) = w.tune("j-1", code=CauseCode.KEPT)
    assert (step.event, step.to, step.cause.code, step.ask) == (E.TUNED, S.RUNNING, CauseCode.KEPT, 1)
    assert (has(w), w.core.answer("node-1")) == (held, orders)
    assert w.tune("j-1", code=CauseCode.KEPT, epoch=1) == []
    assert w.tune("j-1") == [], "of another code an ask for nothing is refused"
    w.ask(AskKind.REQUEUE, "j-1")
    assert w.tune("j-1", code=CauseCode.KEPT) == []  # stopping


def test_ranks_of_one_node_give_to_each_other_where_nothing_is_free() -> None:
    w = world(4.0)
    running(w, replicas=2, cpus=2.0)
    assert w.core.cluster_state.pool.free_capacity.nodes["node-1"].cpus == 0.0
    assert w.tune("j-1", RankTuning(rank=0, cpus=3.0)) == []
    assert w.tune("j-1", RankTuning(rank=0, cpus=3.0), RankTuning(rank=1, cpus=1.5)) == []
    assert len(w.tune("j-1", RankTuning(rank=0, cpus=3.0), RankTuning(rank=1, cpus=1.0))) == 1
    assert [cpus for cpus, _, _ in has(w)] == [3.0, 1.0]


def test_what_is_given_back_on_one_node_is_not_taken_on_another_and_all_is_done_or_nothing() -> None:
    w = world(2.0, 2.0, gpus=1)
    running(w, replicas=2, cpus=2.0)
    assert w.tune("j-1", RankTuning(rank=0, cpus=3.0), RankTuning(rank=1, cpus=1.0)) == []
    assert [cpus for cpus, _, _ in has(w)] == [2.0, 2.0]


def test_what_a_rank_leaves_unused_lets_a_waiting_job_start() -> None:
    w = world(4.0)
    running(w, cpus=4.0)
    w.submit("j-2", spec={"role": {"cpus": 2.0}})
    w.round()
    assert w.state("j-2") is S.QUEUED
    w.tune("j-1", RankTuning(rank=0, cpus=2.0))
    w.tick()
    assert w.state("j-2") is S.PLACED
    assert w.tune("j-1", RankTuning(rank=0, cpus=2.5)) == []  # it is another's now


def test_memory_that_is_given_back_lets_a_waiting_job_start() -> None:
    w = world(4.0, memory=4 * GIB)
    running(w, role={"memory": "3GiB"})
    w.submit("j-2", spec={"role": {"memory": "2GiB"}})
    w.round()
    assert w.state("j-2") is S.QUEUED
    w.tune("j-1", RankTuning(rank=0, memory=2 * GIB))
    w.tick()
    assert w.state("j-2") is S.PLACED


def test_what_is_kept_for_somebody_who_waits_is_not_given_to_a_running_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "WORTH", 0.0)  # nodes are earned by the patience alone
    w = world(4.0, gpus=2)
    running(w)
    w.submit("j-2", gpus=2, spec={"role": {"cpus": 1.0}})
    w.tick(Settings().patience_seconds + 1)
    w.tick()
    assert w.tune("j-1", RankTuning(rank=0, cpus=2.0)) == []
    assert len(w.tune("j-1", RankTuning(rank=0, cpus=0.5))) == 1


def test_who_gave_something_back_may_have_it_again_before_somebody_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "WORTH", 0.0)  # nodes are earned by the patience alone
    w = world(4.0, gpus=2)
    running(w, cpus=2.0)
    w.tune("j-1", RankTuning(rank=0, cpus=1.0, memory=GIB // 2))
    w.submit("j-2", gpus=2, spec={"role": {"cpus": 1.0}})
    w.tick(Settings().patience_seconds + 1)
    w.tick()
    assert w.tune("j-1", RankTuning(rank=0, cpus=2.5)) == []
    assert w.tune("j-1", RankTuning(rank=0, memory=2 * GIB)) == []
    assert len(w.tune("j-1", RankTuning(rank=0, cpus=2.0, memory=GIB))) == 1
    assert has(w)[0][:2] == (2.0, GIB)


def test_after_a_requeue_it_starts_with_what_it_asked_for() -> None:
    w = world(8.0)
    running(w, cpus=2.0)
    w.tune("j-1", RankTuning(rank=0, cpus=4.0, memory=2 * GIB))
    w.ask(AskKind.REQUEUE, "j-1")
    w.round()
    w.round()
    job = w.core.cluster_state.jobs["j-1"]
    assert (job.state, job.epoch) == (S.RUNNING, 1)
    assert has(w) == [(2.0, GIB, None)]
    assert w.core.cluster_state.pool.free_capacity.nodes["node-1"].cpus == 6.0


def test_an_ended_job_gives_back_what_it_had_then() -> None:
    w = world(8.0)
    running(w, cpus=2.0)
    w.tune("j-1", RankTuning(rank=0, cpus=5.0, memory=3 * GIB))
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    w.round()
    free_capacity = w.core.cluster_state.pool.free_capacity.nodes["node-1"]
    assert (free_capacity.cpus, free_capacity.memory, free_capacity.gpus.whole) == (8.0, 16 * GIB, [0, 1, 2, 3])
    assert w.core.cluster_state.holdings.shares.of("alice") == 0.0


def test_a_new_leader_and_a_core_begun_in_the_middle_know_what_was_tuned() -> None:
    w = world(8.0)
    running(w)
    w.tune("j-1", RankTuning(rank=0, cpus=3.0))
    again = unpickled(pickled(w.core), w.core.cluster_state.jobs.values())
    again.cluster_state.check()
    assert again.cluster_state.pool.free_capacity.nodes["node-1"].cpus == 5.0
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    w.sync("node-1")
    assert w.core.cluster_state.pool.free_capacity.nodes["node-1"].cpus == 5.0
    (run,) = w.runs_of("node-1")
    assert run.cpus == 3.0


def test_a_dominant_share_is_that_of_what_is_held_now() -> None:
    w = world(8.0)
    running(w, gpus=0, cpus=2.0)
    assert w.core.cluster_state.holdings.shares.of("alice") == 0.25
    w.tune("j-1", RankTuning(rank=0, cpus=6.0))
    assert w.core.cluster_state.holdings.shares.of("alice") == 0.75


TUNINGS = st.builds(
    RankTuning,
    rank=st.integers(0, 3),
    cpus=st.none() | st.sampled_from([0.0, 0.25, 0.1, 1.0, 2.0, 3.0, 6.0]),
    memory=st.none() | st.sampled_from([1, 64 << 20, GIB, 3 * GIB, 8 * GIB]),
    egress=st.none() | st.sampled_from([0, 10_000]),
)


@given(asks=st.lists(st.tuples(st.sampled_from(["j-1", "j-2", "j-3"]), st.lists(TUNINGS, max_size=4)), max_size=25))
def test_whatever_is_asked_no_node_gives_more_than_it_has(asks: list[tuple[str, list[RankTuning]]]) -> None:
    w = world(6.0, 6.0, memory=8 * GIB)
    for job_id in ("j-1", "j-2", "j-3"):
        running(w, job_id, gpus=1, replicas=2)
    for job_id, ranks in asks:
        before = w.core.cluster_state.jobs[job_id]
        steps = w.tune(job_id, *ranks)  # checks that room and allocations add up
        assert (w.core.cluster_state.jobs[job_id] is before) == (not steps)
        for free_capacity in w.core.cluster_state.pool.free_capacity.nodes.values():
            assert free_capacity.cpus > -1e-6
            assert free_capacity.memory >= 0
        for step in steps:
            assert step.placement is not None
            assert before.placement is not None
            moved = [
                structs.replace(was, cpus=has.cpus, memory=has.memory, egress=has.egress) != has
                for was, has in zip(before.placement.allocations, step.placement.allocations, strict=True)
            ]
            assert not any(moved)
