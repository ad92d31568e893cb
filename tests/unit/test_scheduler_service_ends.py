"""Replicas of a service that end or never become ready: when another begins, and when the service fails."""

import pytest

from tests.support.scheduler import World, world
from tests.support.service_lives import end, of, ranks, rounds, running, runs, service
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.nodes import EndReason
from weftd.scheduler.thinking.core_settings import Settings

S, E, C = JobState, JobEvent, CauseCode


def causes(w: World, event: JobEvent, job_id: str = "j-1") -> list[CauseCode]:
    return [step.cause.code for step in w.steps if step.job_id == job_id and step.event is event]


def free(w: World) -> int:
    return sum(len(node.gpus.whole) for node in w.core.cluster_state.pool.free_capacity.nodes.values())


# ends


def test_a_replica_that_ends_leaves_alone_and_another_takes_its_place_after_a_wait() -> None:
    w = world(gpus=4)
    running(w, service(want=2))
    end(w, 0, 1)
    w.sync("node-1")
    assert (w.state("j-1"), ranks(w), of(w).attempts) == (S.RUNNING, [1], 1)
    assert of(w).not_before == pytest.approx(w.now + 5)
    rounds(w, 3)
    assert ranks(w) == [1]
    rounds(w, 3)
    assert (ranks(w), len(runs(w)), of(w).wanted) == ([1, 2], 2, {"worker": 2})
    assert C.REPLICA_ENDED in causes(w, E.RESIZED)


def test_the_event_of_a_replica_that_ended_has_the_last_lines_of_its_log() -> None:
    w = world(gpus=4)
    running(w, service(want=2))
    end(w, 0, 1, detail="Traceback\nImportError: torch")
    w.sync("node-1")
    (cause,) = [step.cause for step in w.steps if step.cause.code is C.REPLICA_ENDED]
    assert cause.sentence.endswith("Its last words:\nTraceback\nImportError: torch")


def test_status_0_is_an_end_like_any_other() -> None:
    w = world(gpus=4)
    running(w, service())
    end(w, 0, 0)
    w.sync("node-1")
    assert (w.state("j-1"), ranks(w)) == (S.RUNNING, [])
    rounds(w, 8)
    assert ranks(w) == [1]


def waits(w: World, *, ends: int) -> list[float]:
    """The seconds until a replica begins again, after each of so many ends in a row."""
    found = []
    for _ in range(ends):
        end(w, ranks(w)[0])
        w.sync("node-1")
        found.append(of(w).not_before - w.now)
        w.tick(found[-1])
        rounds(w)
    return found


def test_the_wait_doubles_with_each_end_in_a_row_up_to_its_most() -> None:
    w = world(gpus=1)
    running(w, service())
    assert waits(w, ends=5) == pytest.approx([5, 10, 20, 40, 40])


def test_a_service_that_wants_no_wait_has_one_all_the_same() -> None:
    w = world(gpus=1)
    running(w, service(retries={"backoff": "0s", "backoff_max": "0s"}))
    assert waits(w, ends=7) == pytest.approx([1, 2, 4, 8, 16, 30, 30])


def test_after_a_replica_that_was_ready_for_long_the_next_begins_at_once_and_ends_count_anew() -> None:
    w = world(gpus=1)
    running(w, service())
    end(w, 0)
    w.sync("node-1")
    w.tick(6)
    rounds(w)
    for _ in range(7):
        w.tick(10)
        w.sync("node-1")
    end(w, ranks(w)[0])
    w.sync("node-1")
    assert (of(w).attempts, len(ranks(w))) == (1, 1)


def test_a_lost_node_takes_its_replicas_and_others_begin_elsewhere() -> None:
    w = world(nodes=2, gpus=2)
    running(w, service(want=3))
    there = [each.rank for each in of(w).placement.allocations if each.node_id == "node-1"]  # type: ignore[union-attr]
    assert there
    w.nodes.pop("node-1")
    for _ in range(80):
        w.tick(2)
        w.sync("node-2")
    assert w.state("j-1") is S.RUNNING
    assert not set(there) & set(ranks(w))
    assert (len(ranks(w)), of(w).attempts) == (2, 0)


@pytest.mark.parametrize("begins", [False, True])
def test_a_node_that_is_lost_before_any_replica_runs_takes_only_its_own(begins: bool) -> None:
    w = world(nodes=3, gpus=1)
    w.submit("j-1", gpus=1, spec=service(want=2))
    w.tick()
    for node in w.nodes.values():
        node.prepares(("j-1", 0, 0))
        node.prepares(("j-1", 0, 1))
    on = {each.rank: each.node_id for each in of(w).held}
    assert len(set(on.values())) == 2
    if begins:
        rounds(w)
    assert w.state("j-1") is (S.STARTING if begins else S.PLACED)
    w.nodes.pop(on[0])
    rounds(w, 200)
    assert (w.state("j-1"), of(w).epoch, ranks(w)) == (S.RUNNING, 0, [1, 2])
    assert E.REQUEUED not in w.told("j-1")
    assert causes(w, E.STARTED) == [C.NODE_LOST]
    assert of(w).attempts == 0


def test_a_service_that_loses_all_its_replicas_before_any_runs_goes_back_to_the_queue() -> None:
    w = world(nodes=2, gpus=1)
    w.submit("j-1", gpus=1, spec=service(want=1))
    w.tick()
    (lost,) = {each.node_id for each in of(w).held}
    w.nodes.pop(lost)
    rounds(w, 200)
    assert (w.state("j-1"), of(w).epoch, len(runs(w))) == (S.RUNNING, 1, 1)


def test_a_service_is_never_lost_with_its_last_replica() -> None:
    w = world(gpus=1)
    running(w, service())
    for _ in range(20):
        for key in runs(w):
            w.nodes["node-1"].end(key, 137)
        w.tick(45)
        rounds(w)
    assert w.state("j-1") is S.RUNNING
    assert len(runs(w)) == 1


# never ready


def test_a_service_of_which_no_replica_becomes_ready_fails_with_its_last_words() -> None:
    w = world(gpus=4)
    w.nodes["node-1"].becomes_ready = False
    running(w, service(want=1))
    for number in range(3):
        assert w.state("j-1") is S.RUNNING
        end(w, ranks(w)[0], 3, detail=f"cannot bind, try {number}")
        w.sync("node-1")
        w.tick(50)
        rounds(w)
    assert w.state("j-1") is S.FAILED
    why = next(step.cause for step in w.steps if step.event is E.FAILED)
    assert why.code is C.NEVER_READY
    assert why.sentence.endswith("cannot bind, try 2")
    assert free(w) == 4


def test_tries_before_it_is_given_up_are_as_many_as_its_retries_allow() -> None:
    w = world(gpus=4)
    w.nodes["node-1"].becomes_ready = False
    running(w, service(want=1, retries={"max": 5, "backoff": "1s"}))
    ends = 0
    while w.state("j-1") is S.RUNNING and ends < 20:
        end(w, ranks(w)[0], 3)
        ends += 1
        w.sync("node-1")
        w.tick(60)
        rounds(w)
    assert (w.state("j-1"), ends) == (S.FAILED, 6)


def test_a_service_that_was_ready_once_is_started_again_for_ever() -> None:
    w = world(gpus=4)
    running(w, service())
    for _ in range(10):
        end(w, ranks(w)[0], 3)
        w.sync("node-1")
        w.tick(50)
        rounds(w)
    assert (w.state("j-1"), of(w).attempts) == (S.RUNNING, 10)


def test_a_replica_that_is_not_ready_in_time_leaves_and_counts() -> None:
    w = world(gpus=4)
    w.nodes["node-1"].becomes_ready = False
    running(w, service(want=1))
    w.tick(30)
    rounds(w)
    assert ranks(w) == [0]
    w.tick(40)
    rounds(w)
    assert (ranks(w), of(w).attempts) == ([], 1)
    for _ in range(60):
        w.tick(5)
        rounds(w, 1)
    assert w.state("j-1") is S.FAILED
    assert C.NEVER_READY in causes(w, E.STOPPING)


def test_replicas_that_cannot_start_before_any_runs_are_tried_again_until_it_fails() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1, spec=service())
    for number in range(3):
        w.tick(60)
        w.sync("node-1")
        (key,) = runs(w)
        w.nodes["node-1"].end(key, 0, reason=EndReason.START_FAILED, detail=f"no such image, try {number}")
        w.sync("node-1")
        assert w.state("j-1") is (S.QUEUED if number < 2 else S.FAILED)
    why = w.steps[-1].cause
    assert (why.code, "no such image, try 2" in why.sentence) == (C.NEVER_READY, True)


def test_a_replica_that_ends_before_it_is_seen_to_run_has_last_words_too() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1, spec=service())
    for number in range(3):
        w.tick(60)
        w.sync("node-1")
        (key,) = runs(w)
        w.nodes["node-1"].end(key, 3, detail=f"no port, try {number}")
        w.sync("node-1")
    assert w.state("j-1") is S.FAILED
    assert w.steps[-1].cause.sentence.endswith("no port, try 2")


def test_a_replica_that_never_begins_makes_place_for_another() -> None:
    w = world(gpus=4, settings=Settings(start_seconds=30))
    running(w, service(want=1))
    w.scale("j-1", worker=2)
    w.tick()
    w.nodes["node-1"].prepares(("j-1", 0, 1))
    rounds(w)
    assert ranks(w) == [0, 1]
    w.tick(40)
    rounds(w, 8)
    assert (w.state("j-1"), ranks(w)) == (S.RUNNING, [0, 2])


def test_a_replica_that_does_not_leave_is_given_up_and_keeps_its_gpu() -> None:
    w = world(gpus=4, settings=Settings(stop_seconds=30))
    running(w, service(want=2))
    w.nodes["node-1"].unkillable.add(("j-1", 0, 1))
    w.scale("j-1", worker=1)
    rounds(w)
    w.tick(40)
    rounds(w)
    assert (ranks(w), free(w)) == ([0], 2)
    w.scale("j-1", worker=2)
    rounds(w)
    assert (ranks(w), len(runs(w))) == ([0, 2], 3), "a stray is in the way of no other replica"
