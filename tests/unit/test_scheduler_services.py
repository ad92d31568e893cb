"""Services: replicas begin, become ready, fail and leave one by one, and the service goes on."""

from msgspec import structs

from tests.support.scheduler import World, world
from tests.support.service_lives import end, of, ranks, rounds, running, runs, service
from weft.domain.job import CauseCode, JobEvent, JobState, Revision
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason, RunSeen, RunState
from weftd.executor.thinking.orders import runs_of
from weftd.scheduler.thinking.state.orders import job_order, node_orders

S, E, C = JobState, JobEvent, CauseCode


def free(w: World) -> int:
    return sum(len(node.gpus.whole) for node in w.core.cluster_state.pool.free_capacity.nodes.values())


# begin


def test_a_service_runs_once_its_first_replica_does_and_all_its_replicas_may_go() -> None:
    w = world(gpus=4)
    running(w, service(want=3))
    assert (w.state("j-1"), ranks(w), len(runs(w))) == (S.RUNNING, [0, 1, 2], 3)
    placement = of(w).placement
    assert placement is not None
    assert all(each.extra for each in placement.allocations)
    assert w.told("j-1")[:3] == [E.PLACED, E.STARTING, E.STARTED]


def test_a_service_that_should_have_no_replica_runs_at_once_and_holds_nothing() -> None:
    w = world(gpus=4)
    running(w, service(want=0))
    assert (w.state("j-1"), ranks(w), free(w)) == (S.RUNNING, [], 4)
    w.scale("j-1", worker=2)
    rounds(w)
    assert (ranks(w), len(runs(w))) == ([0, 1], 2)
    w.scale("j-1", worker=0)
    rounds(w)
    assert (w.state("j-1"), ranks(w), runs(w), free(w)) == (S.RUNNING, [], [], 4)
    w.scale("j-1", worker=1)
    rounds(w)
    assert ranks(w) == [2], "a number is never given again"


def test_one_replica_is_enough_to_begin_and_the_others_follow_when_there_is_room() -> None:
    w = world(gpus=4)
    w.submit("j-2", gpus=3)
    rounds(w)
    running(w, service(least=2, want=3))
    assert (w.state("j-1"), ranks(w)) == (S.RUNNING, [0])
    w.ask(AskKind.CANCEL, "j-2")
    rounds(w)
    assert len(ranks(w)) == 3


def test_a_service_without_room_waits_in_the_queue_and_may_be_scaled_to_nothing_there() -> None:
    w = world(gpus=1)
    w.submit("j-2", gpus=1)
    rounds(w)
    running(w, service())
    assert w.state("j-1") is S.QUEUED
    w.scale("j-1", worker=0)
    rounds(w, 1)
    assert w.state("j-1") is S.RUNNING


def test_replicas_are_told_how_to_serve_and_nothing_of_each_other() -> None:
    w = world(gpus=4)
    running(w, service(want=1, service={"path": "/s/{job}/v1", "port": 9000}))
    (first,) = w.nodes["node-1"].orders.values()
    assert first.serve is not None
    assert (first.serve.port, first.serve.path, first.serve.address) == (9000, "/s/j-1/v1", "/s/j-1/")
    assert (first.serve.ready, first.serve.drain) == ("/healthz", 1.0)
    assert (first.members, first.peers, first.world_size, first.master_port) == (None, {"worker": ()}, 1, 0)
    w.scale("j-1", worker=3)
    rounds(w)
    assert w.nodes["node-1"].orders["j-1", 0, 0] == first


def test_each_replica_runs_its_own_revision_in_the_middle_of_an_update() -> None:
    w = world(gpus=4)
    running(w, service(want=3, env={"A": "1", "B": "2"}, image="chat:1"))
    w.nodes["node-1"].becomes_ready = False
    w.update("j-1", image="chat:2", env={"A": ""}, command=("serve",))
    rounds(w)
    job = of(w)
    order = node_orders(job, job_order(job, w.core.cluster_state.pool.nodes))["node-1"]
    runs = list(runs_of(order))
    assert {run.revision for run in runs} == {0, 1}
    for run in runs:
        old = ("chat:1", job.spec.command, {"A": "1", "B": "2"})
        assert (run.image, run.command, run.env) == (("chat:2", ("serve",), {"B": "2"}) if run.revision else old)


def test_an_update_on_one_node_changes_no_order_of_another() -> None:
    w = world(nodes=2, gpus=1)
    running(w, service(want=2))
    before = {name: w.core.answer(name) for name in w.nodes}
    job = of(w)
    assert job.placement is not None
    moved, stays = job.placement.allocations
    updated = structs.replace(
        job,
        revisions=(Revision(number=1, image="chat:2"),),
        placement=structs.replace(job.placement, allocations=(structs.replace(moved, revision=1), stays)),
    )
    orders = node_orders(updated, job_order(updated, w.core.cluster_state.pool.nodes))
    assert orders[moved.node_id].revisions[1].image == "chat:2"
    assert (orders[stays.node_id],) == before[stays.node_id]


def test_a_node_that_makes_up_ranks_does_not_use_up_the_numbers() -> None:
    w = world(gpus=4)
    running(w, service(want=1))
    made_up = ("j-1", 0, (1 << 31) - 1)
    w.nodes["node-1"].runs[made_up] = RunSeen(job_id="j-1", epoch=0, rank=made_up[2], state=RunState.RUNNING, gpus=())
    w.nodes["node-1"].orders[made_up] = structs.replace(w.nodes["node-1"].orders["j-1", 0, 0], gpus=())
    w.nodes["node-1"].unkillable.add(made_up)
    w.scale("j-1", worker=2)
    rounds(w)
    assert ranks(w) == [0, 1]


def test_the_story_of_a_service_reads_well() -> None:
    w = world(gpus=4)
    running(w, service(want=1))
    w.scale("j-1", worker=4)
    rounds(w)
    end(w, 1)
    rounds(w, 8)
    w.scale("j-1", worker=3)
    rounds(w)
    w.update("j-1", image="chat:2")
    rounds(w, 8)
    w.scale("j-1", worker=0)
    rounds(w)
    told = [step.cause.sentence for step in w.steps if step.event is E.RESIZED]
    assert told[:7] == [
        "replica 0 is ready",
        "worker 1 → 4",
        "replica 1 ended with status 1; another one is started in 5.0s",
        "worker 3 → 4",
        "worker 4 → 3: replica 4 leaves",
        "replica 4 left: it has 3 replicas",
        "worker 3 → 4",
    ], told
    assert told[7] == "replica 5 of revision 1 is ready"
    assert told[8] == "replica 3 gives way to revision 1"
    assert told[-2:] == ["worker 3 → 0: replicas 7, 6, 5 leave", "replicas 5, 6, 7 left: it has no replica"]


# others


def test_a_cancelled_service_ends_and_so_does_one_without_a_replica() -> None:
    w = world(gpus=4)
    running(w, service(want=2))
    running(w, service(want=0), "j-2")
    w.ask(AskKind.CANCEL, "j-1")
    w.ask(AskKind.CANCEL, "j-2")
    rounds(w)
    assert (w.state("j-1"), w.state("j-2"), free(w)) == (S.CANCELLED, S.CANCELLED, 4)


def test_a_service_that_is_stopped_with_status_0_has_not_succeeded() -> None:
    w = world(gpus=4)
    running(w, service(want=1, time_limit="100s"))
    w.tick(101)
    for key in runs(w):
        w.nodes["node-1"].end(key, 0, reason=EndReason.STOPPED)
    rounds(w)
    assert (w.state("j-1"), w.steps[-1].cause.code) == (S.FAILED, C.TIME_LIMIT)


def test_a_job_of_higher_priority_takes_single_replicas_and_they_come_back() -> None:
    w = world(gpus=4)
    running(w, service(least=1, want=4))
    w.submit("j-2", gpus=2, spec={"priority": 10})
    rounds(w, 5)
    assert (w.state("j-2"), w.state("j-1"), len(ranks(w))) == (S.RUNNING, S.RUNNING, 2)
    assert 0 in ranks(w), "the newest give way first"
    w.ask(AskKind.CANCEL, "j-2")
    rounds(w, 5)
    assert len(ranks(w)) == 4


def test_a_job_of_higher_priority_may_take_all_of_a_service() -> None:
    w = world(gpus=2)
    running(w, service(least=1, want=2))
    w.submit("j-2", gpus=2, spec={"priority": 10})
    rounds(w, 5)
    assert (w.state("j-2"), w.state("j-1"), ranks(w)) == (S.RUNNING, S.RUNNING, [])
    w.ask(AskKind.CANCEL, "j-2")
    rounds(w, 5)
    assert len(ranks(w)) == 2


def test_a_service_that_no_node_has_begun_and_that_should_have_nothing_gives_way_and_runs() -> None:
    """Its scheduler died of it, and each that loaded the same jobs after it."""
    w = world(gpus=2)
    w.submit("j-1", gpus=1, spec=service(want=2))
    w.tick()
    assert w.state("j-1") is S.PLACED
    w.scale("j-1", worker=0)
    w.submit("j-2", gpus=2, spec={"priority": 10})
    w.tick()
    assert w.state("j-1") is S.QUEUED, "stopped, and over at once"
    assert w.core.unfinished, "so that it needs not wait for the next second"
    w.tick()
    assert (w.state("j-1"), w.state("j-2"), ranks(w)) == (S.RUNNING, S.PLACED, [])


def test_a_job_that_waits_for_room_does_not_keep_a_replica_from_being_started_again() -> None:
    w = world(gpus=4)
    running(w, service(want=2))
    w.submit("j-2", gpus=4)
    rounds(w)
    end(w, 0)
    w.sync("node-1")
    rounds(w, 8)
    assert len(ranks(w)) == 2


def test_a_size_outside_of_its_range_changes_nothing() -> None:
    w = world(gpus=4)
    running(w, service(least=1, want=2, most=3))
    assert w.scale("j-1", worker=4) == []
    assert w.scale("j-1", worker=0) == []
    assert of(w).wanted == {"worker": 2}


def test_a_service_that_could_not_grow_is_known_with_what_it_lacks() -> None:
    w = world(gpus=2)
    running(w, service(want=5))
    assert len(ranks(w)) == 2
    assert w.core._sizing.short == {"j-1": 3}
    w.scale("j-1", worker=2)
    rounds(w, 1)
    assert w.core._sizing.short == {}


# leaders


def test_a_new_leader_goes_on_with_all_replicas_and_their_wait() -> None:
    w = world(gpus=4)
    running(w, service(want=3))
    end(w, 1)
    w.sync("node-1")
    until = of(w).not_before
    w.lead_anew(w.open_jobs(), w.core.cluster_state.pool.nodes.values())
    w.sync("node-1")
    w.sync("node-1")
    assert (w.state("j-1"), ranks(w), len(runs(w))) == (S.RUNNING, [0, 2], 2)
    rounds(w, 2)
    assert w.now < until
    assert ranks(w) == [0, 2]
    rounds(w, 6)
    assert ranks(w) == [0, 2, 3]


def test_a_new_leader_knows_that_a_service_was_ready() -> None:
    w = world(gpus=1)
    running(w, service())
    w.nodes["node-1"].becomes_ready = False
    for _ in range(5):
        w.lead_anew(w.open_jobs(), w.core.cluster_state.pool.nodes.values())
        w.sync("node-1")
        w.tick(45)
        rounds(w)
        end(w, ranks(w)[0])
        w.sync("node-1")
    assert w.state("j-1") is S.RUNNING


def test_after_the_store_went_back_no_number_of_a_living_replica_is_given_again() -> None:
    w = world(gpus=4)
    running(w, service(want=1))
    before = of(w)
    w.scale("j-1", worker=3)
    rounds(w)
    assert len(runs(w)) == 3
    w.nodes["node-1"].unkillable |= {("j-1", 0, 1), ("j-1", 0, 2)}
    w.lead_anew([before], w.core.cluster_state.pool.nodes.values(), went_back_at=w.now)
    for _ in range(80):
        w.round()
        w.tick(2)
    w.scale("j-1", worker=2)
    rounds(w, 5)
    assert len(ranks(w)) == 2
    assert min(set(ranks(w)) - {0}) > 2


def test_a_service_whose_replica_was_killed_outside_its_share_fails_and_is_not_started_again_and_again() -> None:
    w = world(gpus=4)
    running(w, service(want=2))
    first = next(key for key in runs(w) if key[2] == ranks(w)[0])
    next(node for node in w.nodes.values() if first in node.live).end_outside(first)
    rounds(w)
    assert w.state("j-1") is S.FAILED
    assert [step for step in w.steps if step.job_id == "j-1"][-1].cause.code is CauseCode.UNCONTROLLED
    assert runs(w) == []
