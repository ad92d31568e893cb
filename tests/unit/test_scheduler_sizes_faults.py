"""Jobs that take another size while something fails: a node is silent, the store went back, a rank does not leave."""

from typing import Any

from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, Job, JobEvent, JobState
from weft.messages.nodes import EndReason

S, E, C = JobState, JobEvent, CauseCode


def live(least: int, want: int, most: int) -> dict[str, Any]:
    return {"role": {"replicas": {"min": least, "want": want, "max": most}}, "resize": {"how": "live"}}


def running(w: World, spec: dict[str, Any], job_id: str = "j-1") -> None:
    w.submit(job_id, gpus=1, spec=spec)
    rounds(w)
    assert w.state(job_id) is S.RUNNING


def rounds(w: World, count: int = 3) -> None:
    for _ in range(count):
        w.round()


def of(w: World, job_id: str = "j-1") -> Job:
    return w.stored[job_id]


def ranks(w: World) -> list[int]:
    placement = of(w).placement
    return [] if placement is None else [each.rank for each in placement.staying]


def test_a_rank_that_leaves_on_a_silent_node_is_not_given_up_as_long_as_nobody_knows_whether_it_runs() -> None:
    w = world(nodes=1, gpus=2)
    running(w, live(1, 2, 2))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 1))
    w.scale("j-1", worker=1)
    rounds(w)
    w.lead_anew(w.open_jobs(), w.core.cluster_state.pool.nodes.values())
    w.tick(1.0)
    assert w.tick(140.0) == [], "its node is silent, and its lease is not over"
    w.now += 1000.0
    w.lead_anew(w.open_jobs(), w.core.cluster_state.pool.nodes.values())
    assert w.tick(1.0) == [], "a new leader has yet to hear of it"
    assert of(w).gpus_held == 2


def test_a_rank_that_began_with_its_job_and_never_runs_leaves_when_the_time_to_start_is_over() -> None:
    w = world(gpus=2)
    w.nodes["node-1"].prepares(("j-1", 0, 1))
    running(w, live(1, 2, 2))
    w.tick(1000.0)
    rounds(w)
    assert (w.state("j-1"), of(w).granted, of(w).gpus_held) == (S.RUNNING, {"worker": 1}, 1)


def test_a_rank_beyond_the_core_that_its_node_stopped_is_replaced() -> None:
    for reason in (EndReason.FENCED, EndReason.STOPPED, EndReason.LOST):
        w = world(gpus=2)
        running(w, live(1, 2, 2))
        w.nodes["node-1"].end(("j-1", 0, 1), 143, reason=reason)
        rounds(w)
        assert (w.state("j-1"), of(w).wanted, of(w).granted) == (S.RUNNING, {"worker": 2}, {"worker": 2}), reason


def test_ports_of_ranks_stay_as_they_are_while_ranks_leave_and_others_join() -> None:
    w = world(gpus=8)
    running(w, live(1, 3, 3))
    for rank in (1, 2):
        w.nodes["node-1"].unkillable.add(("j-1", 0, rank))
    w.scale("j-1", worker=1)
    rounds(w)
    w.scale("j-1", worker=3)
    rounds(w)
    assert ranks(w) == [0], "those that leave still have their ports"
    before = ports(w)
    for rank in (1, 2):
        w.nodes["node-1"].end(("j-1", 0, rank), 143, reason=EndReason.STOPPED)
    rounds(w)
    assert len(ranks(w)) == 3
    assert before.items() <= ports(w).items()
    assert len(set(ports(w).values())) == 3


def ports(w: World) -> dict[int, int]:
    (order,) = w.core.answer("node-1")
    assert order.members is not None
    return {each.rank: each.port for each in order.members.ranks}


def test_a_number_that_a_rank_of_a_lost_time_has_is_not_given_to_another() -> None:
    w = world(gpus=4)
    running(w, live(1, 1, 3))
    backup = w.open_jobs()
    w.nodes["node-1"].unkillable.add(("j-1", 0, 1))
    w.scale("j-1", worker=2)
    rounds(w)
    assert ranks(w) == [0, 1]
    w.lead_anew(backup, w.core.cluster_state.pool.nodes.values())
    rounds(w)
    w.scale("j-1", worker=2)
    rounds(w)
    assert ranks(w) == [0, 2]
    placement = of(w).placement
    assert placement is not None
    assert placement.allocations[1].gpus != w.nodes["node-1"].orders["j-1", 0, 1].gpus


def test_a_job_that_fails_soon_after_it_shrank_goes_back_to_the_size_before_and_not_to_an_older_one() -> None:
    w = world(gpus=4)
    running(w, live(1, 2, 4))
    w.scale("j-1", worker=4)
    rounds(w)
    w.tick(1000.0)
    rounds(w)
    w.scale("j-1", worker=3)
    rounds(w)
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    rounds(w)
    assert (w.state("j-1"), of(w).wanted) == (S.RUNNING, {"worker": 4})


def test_a_job_that_fails_after_it_lost_a_rank_long_after_it_grew_has_failed() -> None:
    w = world(gpus=4)
    running(w, live(1, 2, 4))
    w.scale("j-1", worker=4)
    rounds(w)
    w.tick(1000.0)
    rounds(w)
    w.nodes["node-1"].end(("j-1", 0, 3), 1)
    rounds(w)
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    rounds(w)
    assert w.state("j-1") is S.FAILED


def test_a_job_whose_core_is_done_has_succeeded_also_if_another_rank_does_not_stop() -> None:
    w = world(gpus=2)
    running(w, live(1, 2, 2))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 1))
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    rounds(w)
    w.tick(400.0)
    rounds(w)
    assert w.state("j-1") is S.SUCCEEDED
    assert len(w.core.cluster_state.pool.free_capacity.nodes["node-1"].gpus.whole) == 1, "the other GPU has a stray"


def test_a_job_grows_once_the_nodes_that_were_kept_for_another_are_no_longer_kept() -> None:
    w = world(nodes=2, gpus=2)
    running(w, live(1, 1, 2))
    closed = list(w.nodes)
    w.scale("j-1", worker=2)
    sizing = w.core._sizing
    assert sizing.decide(w.now, closed=closed, ahead="") == []
    assert [step.event for step in w.keep(sizing.decide(w.now, closed=[], ahead=""))] == [E.RESIZED]
