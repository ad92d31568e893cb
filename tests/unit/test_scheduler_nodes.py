"""The scheduler's core and its nodes: silent, drained, smaller, leaving; what they hear, and which are believed."""

import msgspec
import pytest

from libs.domain.job import CauseCode, JobEvent, JobState
from libs.messages.asks import AskKind
from libs.messages.nodes import JOBS, EndReason
from services.scheduler.answers import ANSWER_BYTES_MAX
from services.scheduler.core import Settings
from tests.support.builders import capacity, node
from tests.support.scheduler import world

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
    assert not w.core.picture.nodes[home].ready
    w.sync(other)
    w.sync(other)
    assert w.state("j-1") is S.RUNNING
    assert w.core.picture.jobs["j-1"].epoch == 1
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
    assert w.core.picture.nodes[homes[0]].ready is False
    for node_id in (spare, homes[1], spare, homes[1], spare, homes[1]):
        w.sync(node_id)
        live = [key for n in (homes[1], spare) for key in w.nodes[n].live]
        assert len({epoch for _, epoch, _ in live}) <= 1
    assert w.core.picture.jobs["j-1"].epoch == 1
    assert w.state("j-1") is S.RUNNING


def test_a_drained_node_takes_nothing_new_and_keeps_what_it_has() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    w.ask(AskKind.DRAIN, "node-1")
    w.submit("j-2")
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.QUEUED)
    assert w.core.picture.jobs["j-2"].waiting_for.code is CauseCode.NO_NODES  # type: ignore[union-attr]
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
    w.core.load(jobs=list(w.core.picture.jobs.values()), nodes=[node("node-1", gpus=3)], now=w.now)
    w.core.picture.check()


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
    assert not w.core.picture.nodes[home].ready
    assert w.state("j-1") is S.QUEUED
    w.nodes[home].leaving = False
    w.round()
    assert w.core.picture.nodes[home].ready
    assert w.state("j-1") is S.RUNNING


@pytest.mark.parametrize("reads", [(JOBS,), ()], ids=["this version", "the version before"])
def test_a_node_is_told_no_more_than_the_bus_carries_and_goes_on_with_all_it_has(reads: tuple[str, ...]) -> None:
    """Or one user with large environments would leave a node unanswered, and its fence would end everybody's runs."""
    w = world(gpus=0)
    node = w.nodes["node-1"]
    node.reads = reads
    w.submit("j-0", gpus=0)
    w.round()
    for n in range(1, 13):
        w.submit(f"j-{n}", gpus=0, spec=LARGE)
    w.round()
    assert 1 < len(node.live) < 13
    answered = w.core.answer("node-1")
    assert len(msgspec.json.encode(answered)) <= ANSWER_BYTES_MAX
    assert {run.job_id for run in answered} == {key[0] for key in node.live}
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
    waiting = [job for job in w.core.picture.jobs.values() if job.state is S.QUEUED]
    assert waiting
    for job in waiting:
        assert job.waiting_for is not None
        assert job.waiting_for.code is CauseCode.ORDERS_FULL
        assert "6 MiB" in job.waiting_for.sentence
        assert job.attempts == 0
    assert all(job.state is S.RUNNING for job in w.core.picture.jobs.values() if job not in waiting)


def test_a_job_whose_orders_are_too_large_for_any_answer_fails_at_once_with_the_limit() -> None:
    """An executor of the version before reads every rank's orders by themselves: 400 ranks are too many for it."""
    w = world(gpus=0)
    w.nodes["node-1"].reads = ()
    worker = {"replicas": {"want": 2000}, "cpus": 0.01, "memory": "64MiB"}
    w.submit("j-1", gpus=0, spec={"roles": {"worker": worker}})
    w.round()
    job = w.ended("j-1")
    assert job.state is S.FAILED
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
