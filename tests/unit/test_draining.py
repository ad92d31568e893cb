"""Nodes that a person drains: what runs there goes on or goes elsewhere, and a drain may end by itself."""

from tests.support.scheduler import World, world
from tests.support.service_lives import of, ranks, rounds, running, runs, service
from weft.domain.cluster import Drain, Node
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind

EVICTS = Drain(reason="new memory", evicts=True)


def node_of(w: World, node_id: str) -> Node:
    return w.core.cluster_state.pool.nodes[node_id]


def homes(w: World, job_id: str = "j-1") -> set[str]:
    return {node_id for node_id, one in w.nodes.items() if any(key[0] == job_id for key in one.live)}


def test_what_runs_on_a_node_that_evicts_goes_elsewhere_and_is_charged_with_no_try() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=2, spec={"retries": {"max": 0}})
    rounds(w)
    (home,) = homes(w)
    w.ask(AskKind.DRAIN, home, drain=EVICTS)
    rounds(w, 8)
    assert w.state("j-1") is JobState.RUNNING
    assert of(w).epoch == 1
    assert homes(w) == set(w.nodes) - {home}
    stops = [step for step in w.steps if step.event is JobEvent.STOPPING]
    assert [step.cause.code for step in stops] == [CauseCode.NODE_DRAINED]
    assert stops[0].cause.sentence == f"node {home} is drained (new memory)"


def test_what_runs_on_a_node_stays_if_the_drain_does_not_evict_until_one_does() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1")
    rounds(w)
    (home,) = homes(w)
    w.ask(AskKind.DRAIN, home, drain=Drain(reason="new memory"))
    rounds(w, 5)
    assert homes(w) == {home}
    w.ask(AskKind.DRAIN, home, drain=EVICTS)
    rounds(w, 8)
    assert homes(w) == set(w.nodes) - {home}


def test_a_service_leaves_replica_by_replica_and_answers_on() -> None:
    w = world(nodes=2, gpus=4)
    running(w, service(want=4))
    home = max(w.nodes, key=lambda name: len(w.nodes[name].live))
    before = len(w.nodes[home].live)
    w.ask(AskKind.DRAIN, home, drain=EVICTS)
    for _ in range(20 * before):
        w.round()
        assert len(runs(w)) >= 3
    assert homes(w) == set(w.nodes) - {home}
    assert len(ranks(w)) == 4
    left = [step.cause for step in w.steps if step.cause.code is CauseCode.NODE_DRAINED]
    assert [cause.numbers["ranks"] for cause in left] == [1.0] * before


def test_a_drain_ends_at_its_time_and_the_node_says_so() -> None:
    w = world(nodes=1, gpus=1)
    w.ask(AskKind.DRAIN, "node-1", drain=Drain(until=w.now + 100.0))
    w.submit("j-1")
    rounds(w)
    assert w.state("j-1") is JobState.QUEUED
    w.now += 101.0
    rounds(w)
    assert node_of(w, "node-1").drain is None
    assert w.state("j-1") is JobState.RUNNING


def test_a_drain_that_says_something_else_replaces_the_one_before() -> None:
    w = world(nodes=1, gpus=1)
    for wanted in (Drain(), EVICTS, Drain(reason="later", until=w.now + 9.0)):
        w.ask(AskKind.DRAIN, "node-1", drain=wanted)
        assert node_of(w, "node-1").drain == wanted
    changes = w.core.cluster_state.pool.unstored
    w.ask(AskKind.DRAIN, "node-1", drain=Drain(reason="later", until=w.now + 9.0))
    assert w.core.cluster_state.pool.unstored == changes


def test_a_drain_reads_well() -> None:
    assert Drain().text == ""
    assert Drain(reason="new memory").text == " (new memory)"
    assert Drain(reason="x", until=1_767_225_600.0).text == " (x, until 2026-01-01 00:00:00 UTC)"


def test_a_node_that_announces_its_end_takes_nothing_more_and_what_runs_there_goes_elsewhere() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=2, spec={"retries": {"max": 0}})
    rounds(w)
    (home,) = homes(w)
    w.nodes[home].ending = True
    rounds(w, 8)
    assert (w.state("j-1"), of(w).epoch, homes(w)) == (JobState.RUNNING, 1, set(w.nodes) - {home})
    (cause,) = [step.cause for step in w.steps if step.event is JobEvent.STOPPING]
    assert (cause.code, cause.sentence) == (
        CauseCode.NODE_DRAINED,
        f"node {home} is drained (it announced its shutdown)",
    )
    w.submit("j-2", gpus=4)
    rounds(w)
    assert w.state("j-2") is JobState.QUEUED
    w.nodes[home].ending = False
    rounds(w)
    assert homes(w, "j-2") == {home}


def test_a_persons_drain_outlives_the_announcement_of_an_end() -> None:
    w = world(nodes=1, gpus=4)
    w.round()
    w.ask(AskKind.DRAIN, "node-1", drain=Drain(reason="new memory"))
    w.nodes["node-1"].ending = True
    w.round()
    assert node_of(w, "node-1").drain == EVICTS
    w.nodes["node-1"].ending = False
    w.round()
    assert node_of(w, "node-1").drain == EVICTS
