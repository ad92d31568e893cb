"""The scheduler's core and its nodes: silent, drained, smaller, leaving; what they hear, and which are believed."""

import msgspec
import pytest
from msgspec import structs

from tests.support.builders import capacity, job, node
from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason, RunSeen, RunState
from weft.planning.reasons.explain import explain
from weft.planning.reasons.refusals import never_fits
from weftd.scheduler.thinking.answers import ANSWER_BYTES_MAX
from weftd.scheduler.thinking.core_settings import Settings

S, E = JobState, JobEvent

LARGE = {"env": {f"V{n}": "x" * 32_000 for n in range(30)}}


def test_a_silent_node_is_lost_and_its_jobs_are_given_away() -> None:
    w = world(nodes=2, gpus=4, settings=Settings(lease_seconds=100))
    w.submit("j-1", gpus=4)
    w.round()
    (home,) = [n for n, one in w.nodes.items() if one.live]
    (other,) = [n for n in w.nodes if n != home]
    for _ in range(11):
        w.now += 10
        w.sync(other)
    lost = w.core.cluster_state.pool.nodes[home]
    assert not lost.ready
    assert w.now - 110 <= lost.seen_at < w.now - 100  # when it reported last, and not when it joined
    w.sync(other)
    w.sync(other)
    assert w.state("j-1") is S.RUNNING
    assert w.core.cluster_state.jobs["j-1"].epoch == 1
    assert w.nodes[other].live == [("j-1", 1, 0)]
    w.sync(home)
    assert w.nodes[home].live == []


def test_a_gang_with_one_lost_node_starts_again_only_when_its_other_ranks_are_gone() -> None:
    w = world(nodes=3, gpus=4, settings=Settings(lease_seconds=100))
    w.submit("j-1", gpus=4, replicas=2)
    w.round()
    homes = [n for n, one in w.nodes.items() if one.live]
    spare = next(n for n in w.nodes if n not in homes)
    for _ in range(11):
        w.now += 10
        for node_id in (homes[1], spare):
            w.sync(node_id)
    assert w.core.cluster_state.pool.nodes[homes[0]].ready is False
    for node_id in (spare, homes[1], spare, homes[1], spare, homes[1]):
        w.sync(node_id)
        live = [key for n in (homes[1], spare) for key in w.nodes[n].live]
        assert len({epoch for _, epoch, _ in live}) <= 1
    assert w.core.cluster_state.jobs["j-1"].epoch == 1
    assert w.state("j-1") is S.RUNNING


def test_a_drained_node_takes_nothing_new_and_keeps_what_it_has() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    w.ask(AskKind.DRAIN, "node-1")
    w.submit("j-2")
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.QUEUED)
    assert w.core.cluster_state.jobs["j-2"].waiting_for.code is CauseCode.NO_NODES  # type: ignore[union-attr]
    w.ask(AskKind.RESUME, "node-1")
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_a_node_that_comes_back_smaller_keeps_what_runs() -> None:
    w = world()
    w.submit("j-1", gpus=2)
    w.round()
    w.nodes["node-1"].capacity = capacity(gpus=3)
    w.round()
    assert w.state("j-1") is S.RUNNING
    w.core.load(jobs=list(w.core.cluster_state.jobs.values()), nodes=[node("node-1", gpus=3)], now=w.now)
    w.core.cluster_state.check()


def test_a_node_that_leaves_takes_nothing_new_and_is_lost_once_nothing_runs_there() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=4)
    w.round()
    (home,) = [n for n, one in w.nodes.items() if one.live]
    (other,) = [n for n in w.nodes if n != home]
    w.nodes[home].leaving = True
    w.submit("j-2", gpus=4)
    w.submit("j-3", gpus=4)
    w.sync(home)
    w.sync(other)
    assert (w.state("j-1"), w.state("j-2"), w.state("j-3")) == (S.RUNNING, S.PLACED, S.QUEUED)
    w.nodes[home].end(("j-1", 0, 0), 143, reason=EndReason.STOPPED)
    w.sync(home)
    assert not w.core.cluster_state.pool.nodes[home].ready
    assert w.state("j-1") is S.QUEUED
    w.nodes[home].leaving = False
    w.round()
    assert w.core.cluster_state.pool.nodes[home].ready
    assert w.state("j-1") is S.RUNNING


def test_a_node_is_told_no_more_than_the_bus_carries_and_goes_on_with_all_it_has() -> None:
    """Or one user with large environments would leave a node unanswered, and its fence would end everybody's runs."""
    w = world(gpus=0)
    node = w.nodes["node-1"]
    w.submit("j-0", gpus=0)
    w.round()
    for n in range(1, 13):
        w.submit(f"j-{n}", gpus=0, spec=LARGE)
    w.round()
    assert 1 < len(node.live) < 13
    answered = w.core.answer("node-1")
    assert len(msgspec.json.encode(answered)) <= ANSWER_BYTES_MAX
    assert {order.job_id for order in answered} == {key[0] for key in node.live}
    for key in [key for key in node.live if key[0] != "j-0"]:
        node.end(key, 0)
    w.round()
    w.tick(60.0)
    w.round()
    assert w.state("j-0") is JobState.RUNNING
    assert w.state("j-12") is not JobState.QUEUED


def test_a_job_that_its_node_cannot_be_told_of_waits_without_gpus_and_names_the_limit() -> None:
    """It was placed, never told of, and failed 15 minutes later with `start-timeout`."""
    w = world(gpus=0)
    for n in range(12):
        w.submit(f"j-{n}", gpus=0, spec=LARGE)
    w.round()
    w.round()
    jobs = w.core.cluster_state.jobs.values()
    waiting = [each for each in jobs if each.state is S.QUEUED]
    assert waiting
    for each in waiting:
        assert each.waiting_for is not None
        assert each.waiting_for.code is CauseCode.ORDERS_FULL
        assert "6 MiB" in each.waiting_for.sentence
        assert each.attempts == 0
        told = explain(each, nodes=list(w.core.cluster_state.pool.nodes.values()), holding=[], queued=[each], now=w.now)
        assert told.code == "orders-full"
    assert all(each.state is S.RUNNING for each in jobs if each not in waiting)


def test_a_job_whose_orders_are_too_large_for_any_answer_fails_at_once_with_the_limit() -> None:
    """No gateway stores so large a specification, but the core does not rely on that."""
    w = world(gpus=0)
    made = job("j-1", gpus=0)
    made = structs.replace(made, spec=structs.replace(made.spec, env={"LARGE": "x" * ANSWER_BYTES_MAX}))
    w.stored["j-1"] = made
    w.core.admit([made])
    w.round()
    assert w.ended("j-1").state is S.FAILED
    (failed,) = [step for step in w.steps if step.event is E.FAILED]
    assert failed.cause.code is CauseCode.TOO_BIG
    assert "6 MiB" in failed.cause.sentence
    assert w.now < 60.0


def test_a_report_of_an_earlier_boot_that_comes_late_is_not_taken() -> None:
    w = world()
    node_1 = w.nodes["node-1"]
    w.round()
    late = node_1.report()
    node_1.boot_id, node_1.incarnation = "boot-2", 2
    assert w.core.report(node_1.report(), w.now) == ""
    assert "a newer report" in w.core.report(late, w.now)
    assert w.core.report(node_1.report(), w.now) == ""


def test_a_node_that_lost_its_disk_and_its_clock_is_believed_when_it_goes_on_speaking() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    node_1 = w.nodes["node-1"]
    node_1.boot_id, node_1.incarnation, node_1.seq = "boot-2", 0, 0
    node_1.runs.clear()
    refused = [bool(w.core.report(node_1.report(), w.now)) for _ in range(4)]
    assert refused == [True, True, False, False]
    w.round()
    w.round()
    assert E.REQUEUED in w.told("j-1")


# what a node claims


def claim(w: World, node_id: str, key: tuple[str, int, int], *, state: RunState = RunState.RUNNING) -> None:
    """The node says that it has this run, whatever it was told."""
    one = w.nodes[node_id]
    one.tells_gpus = False
    one.unkillable.add(key)
    one.runs[key] = RunSeen(job_id=key[0], epoch=key[1], rank=key[2], state=state)


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.EXITED])
@pytest.mark.parametrize("epoch", [0, 7])
def test_a_node_that_was_never_given_a_job_cannot_keep_it_waiting_by_claiming_to_run_it(
    epoch: int, state: RunState
) -> None:
    w = world(nodes=2, gpus=4)
    claim(w, "node-2", ("j-1", epoch, 0), state=state)
    w.round()
    w.submit("j-1", gpus=4)
    w.sync("node-2")
    w.round()
    w.round()
    assert w.nodes["node-1"].live == [("j-1", 0, 0)]
    assert w.state("j-1") is S.RUNNING


def test_what_a_node_claims_to_run_keeps_its_own_gpus_from_others() -> None:
    w = world(nodes=2, gpus=4)
    claim(w, "node-2", ("j-1", 0, 0))
    w.round()
    w.submit("j-1", gpus=4)
    w.submit("j-2", gpus=4)
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.QUEUED)


def test_a_new_leader_knows_on_which_nodes_a_job_ever_was() -> None:
    """And waits for a run of an earlier epoch there, and for no other."""
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=4)
    w.round()
    (home,) = [name for name, one in w.nodes.items() if one.live]
    (other,) = [name for name in w.nodes if name != home]
    w.nodes[home].unkillable.add(("j-1", 0, 0))
    w.ask(AskKind.REQUEUE, "j-1")
    w.round()
    for _ in range(40):
        w.now += 10
        w.round()
    assert w.state("j-1") is S.FAILED
    w.ask(AskKind.REQUEUE, "j-1", job=w.ended("j-1"))
    assert w.stored["j-1"].nodes == (home,)
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    w.round()
    assert w.state("j-1") is S.QUEUED
    assert w.core.cluster_state.jobs["j-1"].waiting_for.code is CauseCode.STILL_RUNS  # type: ignore[union-attr]
    claim(w, other, ("j-1", 0, 0))
    w.sync(other)
    w.nodes[home].end(("j-1", 0, 0), 137)
    w.round()
    assert w.state("j-1") is S.RUNNING


def test_after_the_store_went_back_every_claim_counts() -> None:
    """In the time that it lost, the job may have been anywhere."""
    w = world(nodes=2, gpus=4, settings=Settings(lease_seconds=50))
    claim(w, "node-2", ("j-1", 0, 0))
    w.submit("j-1", gpus=4)
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()), went_back_at=w.now)
    for _ in range(10):
        w.tick(10)
        w.round()
    assert w.state("j-1") is S.QUEUED


def test_the_rack_that_a_node_names_is_kept_and_a_gang_across_racks_counts_as_slower() -> None:
    w = world(nodes=2, gpus=4, settings=Settings(rack_penalty=2.0))
    for name, one in w.nodes.items():
        one.rack = f"rack-of-{name}"
    w.round()
    assert {node.rack for node in w.core.cluster_state.pool.nodes.values()} == {"rack-of-node-1", "rack-of-node-2"}
    w.submit("j-1", gpus=4, replicas=2)
    w.round()
    placed = next(step.placement for step in w.steps if step.event is E.PLACED)
    assert placed is not None
    assert placed.numbers["slowdown"] == pytest.approx(2.0 * 1.7)


def lost_for_good(*, kept_seconds: float | None) -> World:
    """A pool whose only large node was lost long ago, led anew in the meantime."""
    w = world(nodes=2, gpus=4, settings=Settings(lease_seconds=100, nodes_kept_seconds=kept_seconds))
    w.nodes["node-1"].capacity = capacity(gpus=8)
    w.sync("node-1")
    large = w.nodes.pop("node-1")
    w.submit("j-large", gpus=8)
    w.sync("node-2")
    for _ in range(11):
        w.now += 10
        w.sync("node-2")
    assert not w.core.cluster_state.pool.nodes["node-1"].ready
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    w.nodes["node-1"] = large
    return w


def test_a_node_that_is_lost_for_good_leaves_the_pool_and_what_only_it_could_hold_is_told_so() -> None:
    w = lost_for_good(kept_seconds=86400)
    w.now += 86400 - 200
    w.sync("node-2")
    assert "node-1" in w.core.cluster_state.pool.nodes
    assert w.stored["j-large"].waiting_for.code is CauseCode.NO_ROOM  # type: ignore[union-attr]
    w.core.take_node_changes()
    w.now += 200
    w.sync("node-2")
    assert list(w.core.cluster_state.pool.nodes) == ["node-2"]
    (change,) = w.core.take_node_changes()
    assert (change.event, change.node.id) == ("removed", "node-1")
    w.tick(10)
    assert w.stored["j-large"].waiting_for.code is CauseCode.TOO_BIG  # type: ignore[union-attr]
    assert never_fits(w.stored["j-large"].spec, list(w.core.cluster_state.pool.nodes.values())) is not None


def test_a_node_that_was_removed_and_reports_again_joins_anew() -> None:
    w = lost_for_good(kept_seconds=1000)
    w.now += 2000
    w.sync("node-2")
    assert list(w.core.cluster_state.pool.nodes) == ["node-2"]
    w.core.take_node_changes()
    w.round()
    assert [(change.event, change.node.id) for change in w.core.take_node_changes()] == [("joined", "node-1")]
    assert w.state("j-large") is S.RUNNING


def test_a_lost_node_is_kept_where_nothing_says_how_long() -> None:
    w = lost_for_good(kept_seconds=None)
    w.now += 1e8
    w.sync("node-2")
    assert "node-1" in w.core.cluster_state.pool.nodes
