"""Jobs that take another size: live, where ranks join and leave, or by a restart in a place that stays their own."""

from typing import Any

from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, Job, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason
from weftd.scheduler.thinking.decide.lifecycle import COOL_DOWN_SECONDS

S, E, C = JobState, JobEvent, CauseCode


def role(least: int, want: int, most: int, **fields: Any) -> dict[str, Any]:
    return {"replicas": {"min": least, "want": want, "max": most}, **fields}


def live(least: int, want: int, most: int, **fields: Any) -> dict[str, Any]:
    return {"role": role(least, want, most), "resize": {"how": "live"}, **fields}


def restarting(least: int, want: int, most: int, **fields: Any) -> dict[str, Any]:
    return {"role": role(least, want, most), "checkpoints": {"on_stop": True}, **fields}


def of(w: World, job_id: str = "j-1") -> Job:
    return w.stored[job_id]


def ranks(w: World, job_id: str = "j-1") -> list[int]:
    placement = of(w, job_id).placement
    return [] if placement is None else [each.rank for each in placement.staying]


def runs(w: World, job_id: str = "j-1") -> list[tuple[int, int]]:
    """Epoch and rank of every live run, wherever it is."""
    return sorted(key[1:] for node in w.nodes.values() for key in node.live if key[0] == job_id)


def rounds(w: World, count: int = 3) -> None:
    for _ in range(count):
        w.round()


def running(w: World, spec: dict[str, Any], job_id: str = "j-1", gpus: int = 1) -> None:
    w.submit(job_id, gpus=gpus, spec=spec)
    rounds(w)
    assert w.state(job_id) is S.RUNNING


# live


def test_ranks_join_a_live_job_in_the_same_epoch_and_leave_it_again_the_newest_first() -> None:
    w = world(gpus=4)
    running(w, live(1, 2, 4))
    assert runs(w) == [(0, 0), (0, 1)]
    w.scale("j-1", worker=4)
    rounds(w)
    assert (w.state("j-1"), of(w).granted, runs(w)) == (S.RUNNING, {"worker": 4}, [(0, 0), (0, 1), (0, 2), (0, 3)])
    w.scale("j-1", worker=1)
    rounds(w)
    assert (w.state("j-1"), of(w).granted, runs(w)) == (S.RUNNING, {"worker": 1}, [(0, 0)])
    assert len(w.core.cluster_state.pool.free_capacity.nodes["node-1"].gpus.whole) == 3


def test_a_rank_number_of_a_live_job_is_never_given_again_in_its_epoch() -> None:
    w = world(gpus=4)
    running(w, live(1, 3, 4))
    w.scale("j-1", worker=1)
    rounds(w)
    w.scale("j-1", worker=3)
    rounds(w)
    assert ranks(w)[0] == 0
    assert min(ranks(w)[1:]) > 2
    members = next(iter(w.nodes["node-1"].orders.values())).members
    assert members is not None
    ports = [each.port for each in members.ranks]
    assert len(set(ports)) == len(ports)


def test_every_rank_is_told_who_the_members_are_and_the_counter_grows() -> None:
    w = world(gpus=4)
    running(w, live(1, 2, 4))
    w.scale("j-1", worker=3)
    rounds(w)
    orders = w.runs_of("node-1")
    assert {order.rank for order in orders} == {0, 1, 2}
    for order in orders:
        assert order.members is not None
        assert [each.rank for each in order.members.ranks] == [0, 1, 2]
        assert (order.members.changes, order.members.least, order.members.most) == (1, 1, 4)


def test_the_gpus_of_a_rank_that_leaves_are_given_away_only_when_its_node_says_that_it_is_gone() -> None:
    w = world(gpus=2)
    running(w, live(1, 2, 2))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 1))
    w.scale("j-1", worker=1)
    w.submit("j-2", gpus=1)
    rounds(w)
    assert (w.state("j-2"), of(w).granted, of(w).gpus_held) == (S.QUEUED, {"worker": 1}, 2)
    w.nodes["node-1"].end(("j-1", 0, 1), 143, reason=EndReason.STOPPED)
    rounds(w)
    assert (w.state("j-2"), of(w).gpus_held) == (S.RUNNING, 1)


def test_a_rank_that_does_not_leave_in_time_is_given_up_and_keeps_its_gpus_as_a_stray() -> None:
    w = world(gpus=2)
    running(w, live(1, 2, 2))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 1))
    w.scale("j-1", worker=1)
    rounds(w)
    w.tick(400.0)
    rounds(w)
    assert (w.state("j-1"), of(w).gpus_held) == (S.RUNNING, 1)
    assert w.core.cluster_state.pool.free_capacity.nodes["node-1"].gpus.whole == []


def test_the_death_of_a_rank_beyond_the_core_is_not_the_death_of_the_job() -> None:
    w = world(gpus=4)
    running(w, live(2, 3, 4))
    w.nodes["node-1"].end(("j-1", 0, 2), 1)
    rounds(w)
    assert (w.state("j-1"), of(w).epoch, of(w).granted, runs(w)) == (S.RUNNING, 0, {"worker": 2}, [(0, 0), (0, 1)])
    assert [step.cause.code for step in w.steps if step.event is E.RESIZED] == [C.RANK_LOST]
    rounds(w, 5)
    assert of(w).granted == {"worker": 2}, "the size that failed is not tried again by itself"


def test_the_death_of_a_rank_of_the_core_ends_the_epoch_for_all() -> None:
    w = world(gpus=4)
    running(w, live(2, 3, 4))
    w.nodes["node-1"].end(("j-1", 0, 1), 1)
    rounds(w)
    assert w.state("j-1") is S.FAILED
    assert runs(w) == []


def test_a_job_whose_core_is_done_has_succeeded_once_its_other_ranks_are_gone() -> None:
    w = world(gpus=4)
    running(w, live(1, 3, 4))
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    rounds(w)
    assert w.state("j-1") is S.SUCCEEDED
    assert runs(w) == []


def test_a_lost_node_with_ranks_beyond_the_core_costs_the_job_only_those() -> None:
    w = world(nodes=2, gpus=2)
    w.submit("j-0", gpus=1)
    running(w, live(1, 3, 3))
    placement = of(w).placement
    assert placement is not None
    away = placement.allocations[0].node_id
    other = next(node_id for node_id in w.nodes if node_id != away)
    assert any(each.node_id == other for each in placement.allocations)
    core_node = w.nodes[away]
    w.nodes = {away: core_node}
    for _ in range(40):
        w.tick(5.0)
        w.sync(away)
    assert (w.state("j-1"), of(w).epoch) == (S.RUNNING, 0)
    assert of(w).placement is not None
    assert {each.node_id for each in of(w).held} == {away}
    assert of(w).wanted == {"worker": 3}, "it grows again as soon as there is room"


def test_a_live_job_that_began_smaller_grows_to_what_it_wants_once_there_is_room_and_nobody_waits_for_it() -> None:
    w = world(gpus=3)
    running(w, {}, "j-0", gpus=2)
    running(w, live(1, 3, 3))
    assert of(w).granted == {"worker": 1}
    w.submit("j-2", gpus=3)
    w.nodes["node-1"].end(("j-0", 0, 0), 0)
    rounds(w)
    assert of(w).granted == {"worker": 1}, "j-2 waits for this room"
    w.ask(AskKind.CANCEL, "j-2")
    rounds(w)
    assert of(w).granted == {"worker": 3}


def test_a_job_of_two_roles_scales_each_by_itself() -> None:
    w = world(gpus=4)
    spec = {"roles": {"ps": {**role(1, 1, 2), "gpus": 0}, "worker": {**role(1, 2, 3), "gpus": 1}}}
    w.submit("j-1", spec={**spec, "resize": {"how": "live"}})
    rounds(w)
    w.scale("j-1", ps=2, worker=3)
    rounds(w)
    assert of(w).granted == {"ps": 2, "worker": 3}
    w.scale("j-1", ps=1)
    rounds(w)
    assert of(w).granted == {"ps": 1, "worker": 3}


# by a restart


def test_a_job_that_restarts_keeps_its_place_and_passes_through_no_queue() -> None:
    w = world(gpus=4)
    running(w, restarting(1, 2, 4))
    w.submit("j-2", gpus=2)  # takes what is left
    rounds(w)
    w.submit("j-3", gpus=1)
    w.scale("j-1", worker=1)
    rounds(w)
    told = w.told("j-1")
    assert told[told.index(E.SCALED) :] == [E.SCALED, E.STOPPING, E.RESTARTED, E.STARTING, E.STARTED]
    assert (of(w).epoch, of(w).granted, runs(w)) == (1, {"worker": 1}, [(1, 0)])
    assert w.state("j-3") is S.RUNNING, "it has the GPU that was given back"


def test_what_a_job_will_have_after_its_restart_is_its_own_from_the_moment_that_it_stops() -> None:
    w = world(gpus=4)
    running(w, restarting(1, 2, 4))
    for rank in (0, 1):
        w.nodes["node-1"].unkillable.add(("j-1", 0, rank))
    w.scale("j-1", worker=4)
    w.tick()
    assert w.state("j-1") is S.STOPPING
    assert of(w).gpus_held == 4
    w.submit("j-2", gpus=1)
    rounds(w)
    assert w.state("j-2") is S.QUEUED
    w.lead_anew([of(w), of(w, "j-2")], w.core.cluster_state.pool.nodes.values())
    w.tick(15.0)
    rounds(w)
    assert (w.state("j-1"), w.state("j-2")) == (S.STOPPING, S.QUEUED), "a new leader keeps it for the job"
    for rank in (0, 1):
        w.nodes["node-1"].end(("j-1", 0, rank), 0, reason=EndReason.STOPPED)
    rounds(w)
    assert (w.state("j-1"), of(w).epoch, of(w).granted) == (S.RUNNING, 1, {"worker": 4})


def test_a_job_grows_by_a_restart_only_when_all_of_it_fits() -> None:
    w = world(gpus=4)
    running(w, restarting(1, 2, 4))
    running(w, {}, "j-2")
    w.scale("j-1", worker=4)
    rounds(w)
    assert (w.state("j-1"), of(w).epoch) == (S.RUNNING, 0)
    w.nodes["node-1"].end(("j-2", 0, 0), 0)
    rounds(w)
    assert (of(w).epoch, of(w).granted) == (1, {"worker": 4})


def test_a_job_that_fails_at_its_new_size_goes_back_to_the_size_before_and_that_is_no_failed_try() -> None:
    w = world(gpus=4)
    running(w, restarting(1, 2, 4))
    w.scale("j-1", worker=4)
    rounds(w)
    w.nodes["node-1"].end(("j-1", 1, 3), 1)
    rounds(w)
    assert (w.state("j-1"), of(w).granted, of(w).attempts) == (S.RUNNING, {"worker": 2}, 0)
    requeued = [step for step in w.steps if step.event is E.REQUEUED]
    assert [step.cause.code for step in requeued] == [C.SIZE_FAILED]
    assert "goes back to worker 2" in requeued[0].cause.sentence
    w.nodes["node-1"].end(("j-1", of(w).epoch, 0), 1)
    rounds(w)
    assert w.state("j-1") is S.FAILED, "at the size before it fails by its own fault"


def test_a_job_that_fails_long_after_it_took_another_size_fails() -> None:
    w = world(gpus=4)
    running(w, restarting(1, 2, 4))
    w.scale("j-1", worker=4)
    rounds(w)
    w.tick(COOL_DOWN_SECONDS + 1)
    w.nodes["node-1"].end(("j-1", 1, 3), 1)
    rounds(w)
    assert w.state("j-1") is S.FAILED


def test_a_job_that_is_cancelled_while_it_stops_to_restart_gives_everything_back() -> None:
    w = world(gpus=4)
    running(w, restarting(1, 2, 4))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 0))
    w.scale("j-1", worker=4)
    w.tick()
    assert of(w).gpus_held == 4
    w.ask(AskKind.CANCEL, "j-1")
    assert of(w).gpus_held == 2
    w.nodes["node-1"].end(("j-1", 0, 0), 0, reason=EndReason.STOPPED)
    rounds(w)
    assert w.state("j-1") is S.CANCELLED
    assert len(w.core.cluster_state.pool.free_capacity.nodes["node-1"].gpus.whole) == 4


# neither, refused, counted


def test_a_job_that_can_do_neither_stays_as_it_is() -> None:
    w = world(gpus=4)
    running(w, {"role": role(1, 2, 4)})
    assert w.scale("j-1", worker=4) == []
    rounds(w)
    assert (of(w).granted, of(w).epoch) == ({"worker": 2}, 0)


def test_a_size_outside_the_range_an_unknown_role_and_another_epoch_change_nothing() -> None:
    w = world(gpus=4)
    running(w, live(1, 2, 4))
    assert w.scale("j-1", worker=5) == []
    assert w.scale("j-1", worker=0) == []
    assert w.scale("j-1", boss=1) == []
    assert w.scale("j-1", worker=3, epoch=7) == []
    assert w.scale("j-1", worker=2) == []


def test_a_plan_does_not_undo_what_its_user_asked_for_meanwhile() -> None:
    w = world(gpus=4)
    running(w, live(1, 2, 4))
    w.scale("j-1", worker=1)
    assert w.scale("j-1", tenant="weft", worker=4, instead_of=2) == []
    assert of(w).wanted == {"worker": 1}
    assert w.scale("j-1", tenant="weft", worker=3, instead_of=1) != []


def test_a_waiting_job_that_is_scaled_starts_with_that_size() -> None:
    w = world(gpus=4)
    running(w, {}, "j-0", gpus=4)
    w.submit("j-1", gpus=1, spec={"role": role(1, 2, 4)})
    rounds(w)
    w.scale("j-1", worker=4)
    w.nodes["node-1"].end(("j-0", 0, 0), 0)
    rounds(w)
    assert of(w).granted == {"worker": 4}


def test_gpu_seconds_are_those_that_were_held_at_every_size() -> None:
    w = world(gpus=4)
    running(w, live(1, 1, 4))
    began = of(w).held_since
    w.tick(100.0)
    w.scale("j-1", worker=4)
    w.tick(1.0)
    grew = of(w).sized_at
    assert grew is not None
    rounds(w)
    w.tick(50.0)
    assert of(w).gpu_seconds(w.now) == (grew - began) * 1 + (w.now - grew) * 4
    assert w.core.cluster_state.holdings.shares.of("alice") == 1.0


def test_no_rank_joins_a_live_job_while_others_still_leave_it() -> None:
    w = world(gpus=6)
    running(w, live(1, 3, 4))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 2))
    w.scale("j-1", worker=2)
    rounds(w)
    w.scale("j-1", worker=4)
    rounds(w)
    assert (of(w).granted, runs(w)) == ({"worker": 2}, [(0, 0), (0, 1), (0, 2)])
    w.nodes["node-1"].end(("j-1", 0, 2), 143, reason=EndReason.STOPPED)
    rounds(w)
    assert (of(w).granted, len(runs(w))) == ({"worker": 4}, 4)


def test_a_job_whose_next_node_is_lost_before_it_has_stopped_goes_back_to_the_queue() -> None:
    w = world(nodes=2, gpus=2)
    running(w, restarting(1, 2, 4))
    for rank in (0, 1):
        w.nodes["node-1"].unkillable.add(("j-1", 0, rank))
    w.scale("j-1", worker=4)
    w.tick()
    following = of(w).next_placement
    assert following is not None
    assert {one.node_id for one in following.allocations} == {"node-1", "node-2"}
    w.nodes["node-2"].leaving = True
    w.sync("node-2")
    assert not w.core.cluster_state.pool.nodes["node-2"].ready
    for rank in (0, 1):
        w.nodes["node-1"].end(("j-1", 0, rank), 143, reason=EndReason.STOPPED)
    w.sync("node-1")
    told = w.told("j-1")
    assert E.RESTARTED not in told
    assert E.REQUEUED in told
