"""What the scheduler does when something takes too long: a run that cannot be stopped, nodes that fall silent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import node
from tests.support.scheduler import World, world
from tests.support.tier import examples
from weft.domain.job import Allocation, CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason
from weft.planning.reasons.explain import explain
from weftd.scheduler.settings import SchedulerSettings
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.decide.node_failure import NodeFailures
from weftd.scheduler.thinking.state.cluster_state import ClusterState

S, E = JobState, JobEvent


def unkillable(w: World, job_id: str, *, epoch: int = 0, rank: int = 0) -> str:
    """From now on its node cannot end this run."""
    key = (job_id, epoch, rank)
    (home,) = [one for one in w.nodes.values() if key in one.live]
    home.unkillable.add(key)
    return home.node_id


def wait(w: World, seconds: float) -> None:
    """Time in which every node reports."""
    until = w.now + seconds
    while w.now < until:
        w.now = min(until, w.now + 10)
        w.round()


# stopping


def test_a_job_that_cannot_be_stopped_fails_at_its_deadline_and_says_where() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=4, spec={"grace": "20s", "time_limit": "60s", "retries": {"max": 5}})
    w.round()
    home = unkillable(w, "j-1")
    wait(w, 61)
    assert w.state("j-1") is S.STOPPING
    wait(w, 310)
    assert w.state("j-1") is S.STOPPING  # 20 s and 300 s are not over
    wait(w, 15)
    assert w.state("j-1") is S.FAILED
    cause = w.steps[-1].cause
    assert (cause.code, cause.by) == (CauseCode.STOP_TIMEOUT, home)
    assert f"rank 0 on node {home}" in cause.sentence
    assert "its time limit of 60s" in cause.sentence


def test_a_cancelled_job_that_cannot_be_stopped_is_cancelled_at_its_deadline() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    unkillable(w, "j-1")
    w.ask(AskKind.CANCEL, "j-1")
    wait(w, 340)
    assert w.state("j-1") is S.CANCELLED
    assert w.steps[-1].cause.code is CauseCode.CANCEL_ASKED
    assert "rank 0 on node node-1" in w.steps[-1].cause.sentence


def test_a_job_that_is_pre_empted_and_cannot_be_stopped_is_not_tried_again_by_itself() -> None:
    w = world(gpus=4)
    w.submit("j-low", gpus=4)
    w.round()
    unkillable(w, "j-low")
    w.submit("j-high", gpus=4, spec={"priority": 5})
    wait(w, 360)
    assert w.state("j-low") is S.FAILED
    assert w.state("j-high") is S.QUEUED  # the GPUs are not free: something runs there


def test_no_deadline_ends_what_its_silent_node_may_still_run() -> None:
    """Only a report that it lives, or the end of the node's lease, frees the GPUs of a job that is to stop."""
    w = world(nodes=2, gpus=4, settings=Settings(lease_seconds=1000, stop_seconds=50, settle_seconds=5))
    w.submit("j-1", gpus=4)
    w.round()
    (home,) = [n for n, one in w.nodes.items() if one.live]
    (other,) = [n for n in w.nodes if n != home]
    unkillable(w, "j-1")
    jobs, nodes = list(w.core.cluster_state.jobs.values()), list(w.core.cluster_state.pool.nodes.values())
    w.lead_anew(jobs, nodes)  # and of that node nothing is heard any more
    w.ask(AskKind.CANCEL, "j-1")
    for _ in range(20):
        w.now += 10
        w.sync(other)
    assert w.state("j-1") is S.STOPPING
    w.sync(home)
    w.tick()
    assert w.state("j-1") is S.CANCELLED


def test_what_could_not_be_stopped_keeps_its_gpus_until_it_ends() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=3)
    w.round()
    unkillable(w, "j-1")
    w.ask(AskKind.CANCEL, "j-1")
    wait(w, 340)
    w.submit("j-2", gpus=2)
    w.submit("j-3", gpus=1)
    w.round()
    assert (w.state("j-1"), w.state("j-2"), w.state("j-3")) == (S.CANCELLED, S.QUEUED, S.RUNNING)
    waiting = w.core.cluster_state.jobs["j-2"].waiting_for
    assert waiting is not None
    assert waiting.code is CauseCode.NO_ROOM
    assert waiting.numbers["gpus_occupied"] == 3
    assert "3 more are held by runs that should have ended" in waiting.sentence
    cluster_state = w.core.cluster_state
    told = explain(
        cluster_state.jobs["j-2"],
        nodes=list(cluster_state.pool.nodes.values()),
        holding=[cluster_state.jobs["j-3"]],
        queued=[cluster_state.jobs["j-2"]],
        now=w.now,
    )
    assert told.sentence == waiting.sentence  # by what is stored alone it would fit
    w.nodes["node-1"].end(("j-1", 0, 0), 137)
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_a_gpu_that_a_stray_has_is_not_free_when_the_job_that_was_given_it_ends() -> None:
    cluster_state = ClusterState()
    cluster_state.load(jobs=[], nodes=[node(gpus=2)], now=0.0)
    cluster_state.pool.free_capacity.add(cluster_state.pool.nodes["node-1"], occupied=frozenset({1}))
    free_capacity = cluster_state.pool.free_capacity.nodes["node-1"]
    held = Allocation(rank=0, role="worker", node_id="node-1", gpus=(0, 1), cpus=1, memory=1)
    cluster_state.pool.free_capacity.take(held)
    assert free_capacity.gpus.whole == []
    cluster_state.pool.free_capacity.give_back(held)
    assert free_capacity.gpus.whole == [0]


def test_a_stray_on_a_node_that_is_lost_keeps_nobody_waiting() -> None:
    """By then the node has ended it, as it ends all that it runs when it is cut off."""
    w = world(nodes=2, gpus=4, settings=Settings(lease_seconds=100))
    w.submit("j-1", gpus=4, spec={"time_limit": "60s"})
    w.round()
    home = unkillable(w, "j-1")
    (other,) = [n for n in w.nodes if n != home]
    wait(w, 420)
    w.ask(AskKind.REQUEUE, "j-1", job=w.ended("j-1"))
    w.round()
    assert w.state("j-1") is S.QUEUED
    for _ in range(12):
        w.now += 10
        w.sync(other)
    w.sync(other)
    assert not w.core.cluster_state.pool.nodes[home].ready
    assert w.nodes[other].live == [("j-1", 1, 0)]


def test_gpus_that_are_not_named_are_all_that_the_node_has() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1)
    w.round()
    unkillable(w, "j-1")
    w.nodes["node-1"].tells_gpus = False
    w.ask(AskKind.CANCEL, "j-1")
    wait(w, 340)
    w.submit("j-2", gpus=1)
    w.round()
    assert w.state("j-2") is S.QUEUED
    w.nodes["node-1"].end(("j-1", 0, 0), 137)
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_a_job_is_not_placed_again_while_a_node_still_runs_an_epoch_of_it() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=4, spec={"time_limit": "60s"})
    w.round()
    home = unkillable(w, "j-1")
    wait(w, 420)
    assert w.state("j-1") is S.FAILED
    w.ask(AskKind.REQUEUE, "j-1", job=w.ended("j-1"))
    w.round()
    job = w.core.cluster_state.jobs["j-1"]
    assert (job.state, job.epoch) == (S.QUEUED, 1)
    assert job.waiting_for is not None
    assert (job.waiting_for.code, job.waiting_for.by) == (CauseCode.STILL_RUNS, home)
    told = explain(job, nodes=list(w.core.cluster_state.pool.nodes.values()), holding=[], queued=[job], now=w.now)
    assert told.code == "still-runs"
    w.nodes[home].end(("j-1", 0, 0), 137)
    w.round()
    assert w.state("j-1") is S.RUNNING


def test_a_job_behind_one_that_is_kept_out_is_placed() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=4, spec={"time_limit": "60s"})
    w.round()
    unkillable(w, "j-1")
    wait(w, 420)
    w.ask(AskKind.REQUEUE, "j-1", job=w.ended("j-1"))
    w.submit("j-2", gpus=4)
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.QUEUED, S.RUNNING)
    w.ask(AskKind.CANCEL, "j-1")
    assert w.state("j-1") is S.CANCELLED


def test_a_new_leader_gives_nothing_on_a_node_before_it_has_reported() -> None:
    w = world(nodes=2, gpus=4, settings=Settings(settle_seconds=10))
    w.submit("j-1", gpus=4, spec={"time_limit": "60s"})
    w.round()
    home = unkillable(w, "j-1")
    (other,) = [n for n in w.nodes if n != home]
    wait(w, 420)
    w.lead_anew([], list(w.core.cluster_state.pool.nodes.values()))
    w.submit("j-2", gpus=4)
    w.submit("j-3", gpus=4)
    w.sync(other)
    w.sync(other)
    assert (w.state("j-2"), w.state("j-3")) == (S.QUEUED, S.QUEUED)  # the other may know something
    reason = w.core.cluster_state.jobs["j-2"].waiting_for
    assert reason is not None
    assert "have not reported" in reason.sentence
    for _ in range(3):
        w.now += 5
        w.sync(other)
    w.sync(other)
    assert (w.state("j-2"), w.state("j-3")) == (S.RUNNING, S.QUEUED)
    w.round()
    assert w.state("j-3") is S.QUEUED  # and that it does: its GPUs are not free
    w.nodes[home].end(("j-1", 0, 0), 137)
    w.round()
    assert w.state("j-3") is S.RUNNING


def test_a_new_leader_waits_for_no_node_longer_than_needed() -> None:
    w = world(nodes=3)
    w.lead_anew([], list(w.core.cluster_state.pool.nodes.values()))
    w.submit("j-1")
    for _ in range(2):  # the second report is surely not one that was under way before
        for node_id in w.nodes:
            w.sync(node_id)
    assert w.state("j-1") is S.PLACED


def test_a_run_is_not_started_by_a_leader_that_has_not_heard_of_all_nodes_and_goes_on_where_it_is() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=4)
    w.round()
    w.submit("j-2", gpus=4)
    w.tick()
    (first,) = [n for n, one in w.nodes.items() if one.live]
    (second,) = [n for n in w.nodes if n != first]
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.PLACED)
    w.lead_anew(list(w.core.cluster_state.jobs.values()), list(w.core.cluster_state.pool.nodes.values()))
    w.sync(second)
    w.sync(second)
    assert not w.nodes[second].live
    w.sync(first)
    w.sync(first)
    assert w.nodes[first].live == [("j-1", 0, 0)]
    w.tick()
    assert second in w.core.take_hinted()  # told to ask again, now that it may start
    w.sync(second)
    assert w.nodes[second].live == [("j-2", 0, 0)]


# silence


def test_one_node_alone_is_lost_after_its_lease() -> None:
    node_failures = NodeFailures(lease_seconds=150)
    assert node_failures.lost({"a": 0, "b": 145, "c": 149, "d": 150}, 150.0, leaving=()) == []
    assert node_failures.lost({"a": 0, "b": 150, "c": 150, "d": 150}, 151.0, leaving=()) == ["a"]
    assert node_failures.take_notices() == []


def test_many_at_once_are_given_another_lease_and_then_lost() -> None:
    node_failures = NodeFailures(lease_seconds=150)
    heard = {"a": 0.0, "b": 2.0, "c": 1000.0, "d": 1000.0, "e": 1000.0}
    for now in range(151, 300):
        assert node_failures.lost({**heard, "c": now, "d": now, "e": now}, float(now), leaving=()) == []
    assert node_failures.held_back == 2
    assert len(node_failures.take_notices()) == 1
    assert node_failures.lost({**heard, "c": 300, "d": 300, "e": 300}, 300.0, leaving=()) == ["a", "b"]
    assert node_failures.held_back == 0
    assert node_failures.take_notices() == []


def test_those_who_come_back_meanwhile_are_not_lost() -> None:
    node_failures = NodeFailures(lease_seconds=150)
    assert node_failures.lost({"a": 0, "b": 0, "c": 151}, 151.0, leaving=()) == []
    assert node_failures.lost({"a": 0, "b": 200, "c": 200}, 200.0, leaving=()) == []
    assert node_failures.lost({"a": 200, "b": 200, "c": 200}, 210.0, leaving=()) == []
    assert node_failures.held_back == 0
    assert node_failures.lost({"a": 200, "b": 1000, "c": 1000}, 1000.0, leaving=()) == ["a"]  # the next time, alone


def test_a_third_of_the_pool_is_not_many_and_a_node_that_leaves_is_not_counted() -> None:
    node_failures = NodeFailures(lease_seconds=150)
    six = {"a": 0.0, "b": 0.0, **dict.fromkeys("cdef", 151.0)}
    assert node_failures.lost(six, 151.0, leaving=()) == ["a", "b"]
    node_failures = NodeFailures(lease_seconds=150)
    assert node_failures.lost({"a": 0, "b": 0, "c": 0, "d": 151}, 151.0, leaving={"a", "b"}) == ["a", "b", "c"]
    node_failures = NodeFailures(lease_seconds=150)
    assert node_failures.lost({"a": 0, "b": 0, "c": 0, "d": 151}, 151.0, leaving={"a"}) == ["a"]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), max_size=60), st.integers(1, 6))
def test_no_node_is_lost_within_its_lease_and_none_is_held_back_beyond_a_second_one(
    history: list[tuple[int, int]], count: int
) -> None:
    """Time passes second by second; now and then a node speaks."""
    lease, node_failures = 20, NodeFailures(lease_seconds=20)
    heard = {f"n-{index}": 0 for index in range(count)}
    now = 0
    for speaks, seconds in [*history, (0, 50)]:
        for _ in range(min(seconds, 60)):
            now += 1
            for node_id in node_failures.lost(heard, now, leaving=()):
                assert now - heard.pop(node_id) > lease
            assert all(now - at <= 2 * lease for at in heard.values())
        if f"n-{speaks}" in heard:
            heard[f"n-{speaks}"] = now


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0.05, 30.0), st.booleans()), max_size=60),
    st.one_of(st.none(), st.floats(0.0, 90.0)),
)
def test_a_reaper_that_is_asked_only_when_a_node_may_be_due_loses_the_same_nodes_at_the_same_time(
    history: list[tuple[int, float, bool]], held_until: float | None
) -> None:
    """A report makes a node known, or known again; under this leader or under an earlier one that holds it."""
    asked, spared = (NodeFailures(lease_seconds=20, held_until=held_until) for _ in range(2))
    heard: dict[str, float] = {}
    now, times = 0.0, {True: 0, False: 0}
    for speaks, seconds, sure in [*history, *((9, 0.5, True) for _ in range(200))]:
        now += seconds
        lost = asked.lost({one: asked.silent_since(one, at) for one, at in heard.items()}, now, leaving=())
        due = spared.may_be_due(now)
        times[due] += 1
        since = {one: spared.silent_since(one, at) for one, at in heard.items()}
        assert lost == (spared.lost(since, now, leaving=()) if due else [])
        assert asked.held_back == spared.held_back
        for node_id in lost:
            del heard[node_id]
        heard[f"n-{speaks}"] = now
        if sure:
            asked.follows(f"n-{speaks}")
            spared.follows(f"n-{speaks}")
    assert times[False] > times[True]


def test_a_pool_that_falls_silent_together_keeps_its_jobs_for_a_second_lease() -> None:
    w = world(nodes=3, gpus=4, settings=Settings(lease_seconds=100, settle_seconds=5))
    for n in range(3):
        w.submit(f"j-{n}", gpus=4, spec={"preemptible": False})
    w.round()
    for _ in range(19):
        w.tick(10)
    assert [w.state(f"j-{n}") for n in range(3)] == [S.RUNNING] * 3
    w.round()  # all are back, with all that they ran
    assert [w.state(f"j-{n}") for n in range(3)] == [S.RUNNING] * 3
    assert all(node.ready for node in w.core.cluster_state.pool.nodes.values())
    for _ in range(21):
        w.tick(10)
    assert not any(node.ready for node in w.core.cluster_state.pool.nodes.values())
    assert [w.core.cluster_state.jobs[f"j-{n}"].epoch for n in range(3)] == [1, 1, 1]


def test_time_in_which_nobody_looked_is_no_silence() -> None:
    """The scheduler itself was stopped, and all that the nodes said meanwhile is lost."""
    w = world(nodes=1, settings=Settings(lease_seconds=100))
    w.submit("j-1")
    w.round()
    w.tick(5000)
    assert w.core.cluster_state.pool.nodes["node-1"].ready
    w.round()
    assert w.state("j-1") is S.RUNNING
    for _ in range(11):
        w.tick(10)
    assert not w.core.cluster_state.pool.nodes["node-1"].ready


def test_a_node_that_leaves_among_others_is_lost_as_soon_as_nothing_runs_there() -> None:
    w = world(nodes=3, settings=Settings(lease_seconds=100))
    for one in w.nodes.values():
        one.leaving = True
    for node_id in w.nodes:
        w.sync(node_id)
    assert not any(node.ready for node in w.core.cluster_state.pool.nodes.values())


# the other states


def test_a_job_whose_nodes_never_start_it_is_stopped_at_its_deadline_and_then_given_up() -> None:
    """Every state that is not final has an end, one deadline after another, whatever the node does."""
    w = world(settings=Settings(start_seconds=50, stop_seconds=200, lease_seconds=150))
    w.submit("j-1", spec={"grace": "10s", "retries": {"max": 0}})
    w.sync("node-1")
    w.nodes["node-1"].prepares(("j-1", 0, 0))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 0))
    w.sync("node-1")
    assert w.state("j-1") is S.STARTING
    wait(w, 60)
    assert w.state("j-1") is S.STOPPING
    wait(w, 230)
    assert w.state("j-1") is S.FAILED
    assert w.told("j-1") == [E.PLACED, E.STARTING, E.STOPPING, E.FAILED]
    assert w.steps[-1].cause.code is CauseCode.STOP_TIMEOUT
    assert "not running" in w.steps[-1].cause.sentence


def test_what_ends_just_in_time_ends_as_it_was_meant_to() -> None:
    w = world()
    w.submit("j-1", spec={"time_limit": "60s"})
    w.round()
    unkillable(w, "j-1")
    wait(w, 300)
    w.nodes["node-1"].end(("j-1", 0, 0), 137, reason=EndReason.STOPPED)
    w.round()
    assert w.state("j-1") is S.FAILED
    assert w.steps[-1].cause.code is CauseCode.TIME_LIMIT


def test_the_time_to_stop_must_outlast_the_lease() -> None:
    with pytest.raises(ValueError, match="stop_seconds 150 must be more than lease_seconds 150"):
        SchedulerSettings(stop_seconds=150.0, lease_seconds=150.0)


# what comes late


def test_a_report_from_before_a_run_began_takes_it_from_nobody_when_a_new_leader_hears_it_late() -> None:
    w = world()
    late = structs.replace(w.nodes["node-1"].report(), leader=None)
    w.submit("j-1")
    w.round()
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    assert not w.core.report(late, w.now)
    assert w.keep(w.core.follow(late, w.now)) == []
    w.tick()
    assert (w.state("j-1"), w.stored["j-1"].epoch) == (S.RUNNING, 0)
    w.round()
    assert (w.state("j-1"), w.stored["j-1"].epoch) == (S.RUNNING, 0)


@pytest.mark.parametrize("seconds", [0.0, 11.0])
def test_a_report_that_a_new_leader_has_answered_before_or_that_comes_much_later_is_believed(seconds: float) -> None:
    w = world(settings=Settings(settle_seconds=10))
    w.submit("j-1")
    w.round()
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    node = w.nodes["node-1"]
    if not seconds:
        w.sync("node-1")
    w.tick(seconds)
    node.runs.clear()
    report = structs.replace(node.report(), leader=None) if seconds else node.report()
    assert not w.core.report(report, w.now)
    assert [step.event for step in w.keep(w.core.follow(report, w.now))] == [JobEvent.REQUEUED]
