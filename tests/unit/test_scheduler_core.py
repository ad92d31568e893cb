"""The scheduler's core: given what it heard, these steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scheduler import World, world
from tests.support.tier import examples
from weft.domain.job import CauseCode, JobEvent, JobState, Step
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason, Noted
from weft.planning.order import SIZE_PATIENCE_SECONDS
from weft.planning.policy import Policy
from weftd.scheduler.thinking.core_settings import Settings

S, E = JobState, JobEvent


def test_a_job_goes_from_the_queue_to_its_end() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    assert w.state("j-1") is S.RUNNING
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    w.round()
    assert w.told("j-1") == [E.PLACED, E.STARTING, E.STARTED, E.SUCCEEDED]


def test_a_job_that_ended_before_it_was_seen_to_run_takes_every_step() -> None:
    w = world()
    w.submit("j-1")
    w.sync("node-1")
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    steps = w.sync("node-1")
    assert [step.event for step in steps] == [E.STARTING, E.STARTED, E.SUCCEEDED]


def test_what_does_not_fit_waits_and_says_why() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=3)
    w.submit("j-2", gpus=2)
    w.round()
    waiting = w.core.cluster_state.jobs["j-2"].waiting_for
    assert waiting is not None
    assert waiting.code is CauseCode.NO_ROOM
    assert waiting.numbers["gpus_free_max"] == 1
    assert "wants 2 GPUs on one node" in waiting.sentence


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-1", gpus=4, replicas=3)
    w.round()
    assert w.state("j-1") is S.QUEUED
    w.submit("j-2", gpus=4, replicas=2)
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_a_failed_job_is_retried_after_its_backoff_in_another_epoch() -> None:
    w = world()
    w.submit("j-1", spec={"retries": {"max": 1, "backoff": "10s"}})
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 7)
    w.round()
    assert w.state("j-1") is S.QUEUED
    w.tick(11)
    w.round()
    assert w.core.cluster_state.jobs["j-1"].epoch == 1
    assert w.state("j-1") is S.RUNNING
    w.nodes["node-1"].end(("j-1", 1, 0), 7)
    w.round()
    assert w.state("j-1") is S.FAILED
    assert w.steps[-1].exit_code == 7


def test_a_start_that_can_never_succeed_is_not_tried_again_and_the_story_says_why() -> None:
    w = world()
    w.submit("j-1", spec={"retries": {"max": 5, "backoff": "10s"}})
    w.sync("node-1")
    w.nodes["node-1"].end_for_good(("j-1", 0, 0), "command not found: pyhton")
    w.sync("node-1")
    assert w.state("j-1") is S.FAILED
    cause = w.steps[-1].cause
    assert cause.code is CauseCode.CANNOT_START
    assert cause.sentence == "could not start: command not found: pyhton; another try would end the same way"


def test_what_a_node_notes_of_a_run_is_in_the_story_once_and_in_the_end_of_a_job_that_succeeds() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    sentence = "one of its processes was killed for memory"
    w.nodes["node-1"].note(("j-1", 0, 0), Noted(code=CauseCode.PROCESS_KILLED, sentence=sentence))
    w.round()
    w.round()
    assert w.told("j-1") == [E.PLACED, E.STARTING, E.STARTED, E.NOTED]
    told = w.steps[-1].cause
    assert (told.code, told.sentence, told.by) == (CauseCode.PROCESS_KILLED, sentence, "node-1")
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    w.round()
    assert w.steps[-1].event is E.SUCCEEDED
    assert w.steps[-1].cause.sentence == f"every rank ended with status 0; {sentence}"


def test_the_end_of_a_job_that_was_stopped_has_what_its_node_noted() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    w.nodes["node-1"].unkillable.add(("j-1", 0, 0))
    w.ask(AskKind.CANCEL, "j-1")
    before = w.steps[-1].cause.sentence
    sentence = "4MiB of its output are lost: the disk of its node was full from 10:00:01 on"
    w.nodes["node-1"].note(("j-1", 0, 0), Noted(code=CauseCode.OUTPUT_LOST, sentence=sentence))
    w.nodes["node-1"].end(("j-1", 0, 0), 143, reason=EndReason.STOPPED)
    w.sync("node-1")
    assert w.steps[-1].event is E.CANCELLED
    assert w.steps[-1].cause.sentence == f"{before}; {sentence}"


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (3, "ended with status 3"),
        (128, "ended with status 128"),
        (134, "was killed by SIGABRT (status 134)"),
        (135, "was killed by SIGBUS (status 135)"),
        (137, "was killed by SIGKILL (status 137)"),
        (139, "was killed by SIGSEGV (status 139)"),
        (255, "ended with status 255"),
    ],
)
def test_a_signal_that_killed_a_run_is_told_by_its_name(status: int, sentence: str) -> None:
    w = world()
    w.submit("j-1")
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), status)
    w.round()
    assert w.steps[-1].cause.sentence == sentence


def test_a_job_that_ran_on_another_node_is_tried_again_where_it_cannot_start() -> None:
    w = world(nodes=2)
    w.submit("j-1", spec={"retries": {"max": 5, "backoff": "10s"}})
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 7)
    w.ask(AskKind.DRAIN, "node-1")
    w.round()
    w.tick(11)
    w.sync("node-2")
    w.nodes["node-2"].end_for_good(("j-1", 1, 0), "command not found: python")
    w.sync("node-2")
    assert w.state("j-1") is S.QUEUED


def test_one_rank_that_fails_stops_its_gang() -> None:
    w = world(nodes=2)
    w.submit("j-1", gpus=4, replicas=2)
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    w.sync("node-1")
    assert w.state("j-1") is S.STOPPING
    w.round()
    assert w.state("j-1") is S.FAILED
    assert not w.nodes["node-2"].live


def test_a_cancelled_job_holds_its_gpus_until_its_node_says_it_is_gone() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=4)
    w.round()
    w.submit("j-2", gpus=4)
    w.ask(AskKind.CANCEL, "j-1")
    w.tick()
    assert w.state("j-1") is S.STOPPING
    assert w.state("j-2") is S.QUEUED
    w.round()
    assert w.state("j-1") is S.CANCELLED
    assert w.state("j-2") is S.RUNNING


def test_a_job_cancelled_before_any_node_heard_of_it_ends_at_once() -> None:
    w = world()
    w.submit("j-1")
    w.tick()
    assert w.state("j-1") is S.PLACED
    w.ask(AskKind.CANCEL, "j-1")
    assert w.state("j-1") is S.CANCELLED


def test_a_job_offered_to_its_node_is_not_gone_until_a_later_report() -> None:
    w = world()
    w.submit("j-1")
    w.sync("node-1")  # the answer told the node to run it, the report knew nothing of it
    w.ask(AskKind.CANCEL, "j-1")
    assert w.state("j-1") is S.STOPPING
    w.sync("node-1")
    assert w.state("j-1") is S.STOPPING
    w.sync("node-1")
    assert w.state("j-1") is S.CANCELLED


def test_a_more_important_job_pre_empts_and_the_victim_comes_back() -> None:
    w = world(gpus=4)
    w.submit("j-low", gpus=4)
    w.round()
    w.submit("j-high", gpus=2, spec={"priority": 10})
    w.tick()
    assert w.state("j-low") is S.STOPPING
    waiting = w.core.cluster_state.jobs["j-high"].waiting_for
    assert waiting is not None
    assert waiting.code is CauseCode.MAKING_ROOM
    w.round()
    assert w.state("j-high") is S.RUNNING
    assert w.state("j-low") is S.QUEUED
    assert w.core.cluster_state.jobs["j-low"].epoch == 1
    w.nodes["node-1"].end(("j-high", 0, 0), 0)
    w.round()
    assert w.state("j-low") is S.RUNNING


def test_only_as_many_are_pre_empted_as_are_needed() -> None:
    w = world(nodes=2, gpus=4)
    for n in range(8):
        w.submit(f"j-{n}", gpus=1)
    w.round()
    w.submit("j-high", gpus=2, spec={"priority": 10})
    w.round()
    assert w.state("j-high") is S.RUNNING
    assert sum(step.event is E.STOPPING for step in w.steps) == 2


def test_a_job_that_may_not_be_pre_empted_is_left_alone() -> None:
    w = world(gpus=4)
    w.submit("j-low", gpus=4, spec={"preemptible": False})
    w.round()
    w.submit("j-high", gpus=2, spec={"priority": 10})
    w.round()
    assert w.state("j-low") is S.RUNNING


def test_a_room_being_made_is_not_taken_by_a_lesser_job() -> None:
    w = world(gpus=4)
    w.submit("j-a", gpus=2)
    w.submit("j-b", gpus=2)
    w.round()
    w.submit("j-high", gpus=4, spec={"priority": 10})
    w.tick()
    w.submit("j-small", gpus=1)
    w.round()
    assert w.state("j-high") is S.RUNNING
    assert w.state("j-small") is S.QUEUED


def test_a_run_that_its_node_forgot_is_started_again_in_another_epoch() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    w.nodes["node-1"].runs.clear()
    steps = w.sync("node-1")
    assert [step.event for step in steps][:1] == [E.REQUEUED]
    assert steps[0].cause.code is CauseCode.RUN_LOST


def test_a_job_over_its_time_limit_fails() -> None:
    w = world()
    w.submit("j-1", spec={"time_limit": "60s", "retries": {"max": 5}})
    w.round()
    w.tick(61)
    w.round()
    assert w.state("j-1") is S.FAILED
    assert w.steps[-1].cause.code is CauseCode.TIME_LIMIT


def test_an_older_job_that_waited_long_is_not_overtaken_for_ever() -> None:
    w = world(gpus=4, settings=Settings(policy=Policy(order="fifo"), patience_seconds=100))
    w.submit("j-0", gpus=1)
    w.round()
    w.submit("j-big", gpus=4)
    w.round()
    w.tick(101)
    w.submit("j-1", gpus=1)
    w.round()
    assert w.state("j-1") is S.RUNNING, "three GPUs would be idle for as long again as j-0 has run"
    w.nodes["node-1"].end(("j-0", 0, 0), 0)
    w.round()
    w.submit("j-small", gpus=1)
    w.round()
    assert w.state("j-small") is S.QUEUED, "j-1 has just begun, and may end soon"
    assert w.core.cluster_state.jobs["j-small"].waiting_for.code is CauseCode.HELD_BACK  # type: ignore[union-attr]
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    w.round()
    assert w.state("j-big") is S.RUNNING


@pytest.mark.parametrize(("waits", "first"), [(100.0, "j-small"), (SIZE_PATIENCE_SECONDS, "j-large")])
def test_smaller_jobs_come_before_a_large_one_until_it_has_waited_for_hours(waits: float, first: str) -> None:
    w = world(gpus=4)
    w.submit("j-0", gpus=4)
    w.round()
    w.submit("j-large", gpus=4)
    begun = w.now
    while w.now <= begun + waits:
        w.tick(100)
        w.round()
    w.submit("j-small", gpus=1)
    w.round()
    w.nodes["node-1"].end(("j-0", 0, 0), 0)
    w.round()
    assert {job_id for job_id in ("j-large", "j-small") if w.state(job_id) is S.RUNNING} == {first}


def test_a_priority_asked_for_changes_the_order() -> None:
    w = world(gpus=1)
    w.submit("j-0", gpus=1, spec={"preemptible": False})
    w.round()
    w.submit("j-1", gpus=1)
    w.submit("j-2", gpus=1)
    w.round()
    w.ask(AskKind.PRIORITISE, "j-2", priority=5)
    w.nodes["node-1"].end(("j-0", 0, 0), 0)
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.QUEUED, S.RUNNING)


def test_a_new_leader_goes_on_where_the_old_one_stopped() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    jobs, nodes = list(w.core.cluster_state.jobs.values()), list(w.core.cluster_state.pool.nodes.values())
    w.lead_anew(jobs, nodes)
    w.round()
    assert w.state("j-1") is S.RUNNING
    assert w.nodes["node-1"].live == [("j-1", 0, 0)]


def test_the_same_history_decides_the_same() -> None:
    def history() -> list[Step]:
        w = world(nodes=3, gpus=4)
        for n in range(20):
            w.submit(f"j-{n}", gpus=n % 3 + 1, spec={"priority": n % 4})
        w.round()
        w.round()
        return w.steps

    assert history() == history()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3)),
        st.tuples(st.just("sync"), st.integers(1, 3), st.booleans(), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 50), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 50), st.just(0), st.just(0)),
        st.tuples(st.just("requeue"), st.integers(0, 50), st.just(0), st.just(0)),
        st.tuples(st.just("tick"), st.integers(1, 60), st.just(0), st.just(0)),
        st.tuples(st.just("leader"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("forget"), st.integers(1, 3), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@settings(max_examples=examples(150), deadline=None)
@given(ACTIONS)
def test_whatever_happens_no_gpu_is_given_twice_and_no_rank_runs_in_two_epochs(
    actions: list[tuple[str, int, int, int]],
) -> None:
    w = world(nodes=3, gpus=4)
    for kind, a, b, c in actions:
        match kind:
            case "submit":
                w.submit(f"j-{w.seq}", gpus=a, replicas=b, spec={"priority": c, "retries": {"max": 1}})
            case "sync":
                w.sync(f"node-{a}", answered=bool(b))
            case "end":
                live = [(one, key) for one in w.nodes.values() for key in one.live]
                if live:
                    one, key = live[a % len(live)]
                    one.end(key, b, reason=EndReason.EXIT)
            case "cancel" | "requeue" if w.core.cluster_state.jobs:
                job_id = sorted(w.core.cluster_state.jobs)[a % len(w.core.cluster_state.jobs)]
                w.ask(AskKind.CANCEL if kind == "cancel" else AskKind.REQUEUE, job_id)
            case "tick":
                w.tick(float(a))
            case "leader":
                jobs, nodes = list(w.core.cluster_state.jobs.values()), list(w.core.cluster_state.pool.nodes.values())
                w.lead_anew(jobs, nodes)
            case "forget":
                w.nodes[f"node-{a}"].runs.clear()
            case _:
                pass
        _nothing_overlaps(w)
    for _ in range(60):  # and then it all comes to an end
        for one in w.nodes.values():
            for key in one.live:
                one.end(key, 0)
        w.now += 10
        w.round()
        _nothing_overlaps(w)
    assert not w.core.cluster_state.jobs, {job_id: kept.state for job_id, kept in w.core.cluster_state.jobs.items()}


def _nothing_overlaps(w: World) -> None:
    held: dict[tuple[str, int], tuple[str, int, int]] = {}
    epochs: dict[tuple[str, int], int] = {}
    for one in w.nodes.values():
        for key in one.live:
            for gpu in one.orders[key].gpus:
                other = held.setdefault((one.node_id, gpu), key)
                assert other == key, f"GPU {gpu} of {one.node_id} runs {other} and {key}"
            assert epochs.setdefault((key[0], key[2]), key[1]) == key[1], f"{key} runs in two epochs"


def test_a_gang_whose_port_is_taken_tries_another_one_and_it_costs_no_retry() -> None:
    w = world()
    w.submit("j-1", gpus=1, replicas=2)
    w.sync("node-1")
    first = w.core.cluster_state.jobs["j-1"].placement
    w.nodes["node-1"].end(("j-1", 0, 0), 0, reason=EndReason.PORT_TAKEN, detail="port taken")
    w.round()
    w.round()
    again = w.core.cluster_state.jobs["j-1"]
    assert (again.epoch, again.attempts, again.state) == (1, 0, S.RUNNING)
    assert first is not None
    assert again.placement is not None
    assert first.master_port != again.placement.master_port


def test_gangs_that_meet_at_one_address_have_ports_of_their_own() -> None:
    w = world(nodes=4, gpus=8)
    for n in range(8):
        w.submit(f"j-{n}", gpus=1, replicas=4)
    w.round()
    ports = [
        placement.master_port + rank
        for job in w.core.cluster_state.jobs.values()
        if (placement := job.placement) is not None
        for rank in range(len(placement.allocations))
    ]
    assert len(ports) == len(set(ports)) == 32


def test_a_victim_that_came_back_is_no_longer_leaving_and_is_asked_again() -> None:
    w = world(nodes=2, gpus=4)
    w.submit("j-a", gpus=4)
    w.submit("j-b", gpus=4)
    w.round()
    w.submit("j-high", gpus=4, replicas=2, spec={"priority": 10})
    w.tick()
    w.ask(AskKind.DRAIN, "node-1")
    w.round()
    w.ask(AskKind.RESUME, "node-1")
    for _ in range(4):
        w.round()
    assert w.state("j-high") is S.RUNNING


def test_a_run_that_vanishes_again_and_again_is_started_ever_more_rarely_up_to_a_bound() -> None:
    w = world()
    w.submit("j-1", spec={"retries": {"backoff": "10s", "backoff_max": "1m"}})
    waits = []
    for _ in range(4):
        w.round()
        key = ("j-1", w.core.cluster_state.jobs["j-1"].epoch, 0)
        w.nodes["node-1"].end(key, 0, reason=EndReason.LOST)
        w.sync("node-1")
        job = w.core.cluster_state.jobs["j-1"]
        waits.append(job.not_before - w.now)
        w.now = job.not_before
    assert waits == [10, 20, 30, 30]
    assert w.core.cluster_state.jobs["j-1"].attempts == 0


def test_a_run_that_vanished_waits_no_longer_because_its_job_was_moved_often_before() -> None:
    w = world()
    w.submit("j-1")
    for epoch in range(12):
        w.round()
        w.nodes["node-1"].end(("j-1", epoch, 0), 143, reason=EndReason.FENCED)
    w.round()
    assert w.state("j-1") is S.RUNNING
    del w.nodes["node-1"].runs["j-1", 12, 0]
    w.sync("node-1")
    job = w.core.cluster_state.jobs["j-1"]
    assert (job.state, job.epoch) == (S.QUEUED, 13)
    assert 0 < job.not_before - w.now <= 30


def test_a_job_that_is_being_cancelled_is_not_cancelled_a_second_time() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    assert [step.event for step in w.ask(AskKind.CANCEL, "j-1")] == [E.STOPPING]
    assert w.ask(AskKind.CANCEL, "j-1") == []
    w.round()
    assert w.told("j-1")[-2:] == [E.STOPPING, E.CANCELLED]


def test_a_job_that_stops_for_another_reason_is_cancelled_once_its_user_asks() -> None:
    w = world()
    w.submit("j-1")
    w.round()
    w.ask(AskKind.REQUEUE, "j-1")
    assert [step.event for step in w.ask(AskKind.CANCEL, "j-1")] == [E.STOPPING]
    assert w.ask(AskKind.REQUEUE, "j-1") == []
    w.round()
    assert w.state("j-1") is S.CANCELLED


def test_a_report_that_comes_a_second_time_is_refused() -> None:
    w = world()
    report = w.nodes["node-1"].report()
    assert w.core.report(report, w.now) == ""
    assert "a newer report of node-1 has arrived" in w.core.report(report, w.now)
