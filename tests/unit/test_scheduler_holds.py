"""Jobs that wait for other jobs: they are held beside the queue, start when they may, and end when they never can."""

import pytest

from tests.support.scheduler import World, world
from weft.domain.arrays import Element
from weft.domain.dependencies import Ends
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.asks import AskKind
from weftd.scheduler.thinking.record.keeping import pickled, unpickled

S, E = JobState, JobEvent


def after(job: str, when: str = "ok") -> dict[str, object]:
    return {"after": [{"job": job, "when": when}]}


def submit_element(w: World, index: int, *, at_once: int | None = None, **fields: object) -> None:
    """An element of array a-1."""
    element = Element(array="a-1", name="part", index=index, at_once=at_once)
    w.submit(f"j-1-{index}", element=element, gpus=1, spec={"name": f"part-{index}", **fields})


def told(w: World, *ends: Ends) -> None:
    """As the store says it."""
    w.core.tell_ends(ends, w.now)
    w.round()


@pytest.mark.parametrize(
    ("when", "status", "becomes"),
    [
        ("ok", 0, S.RUNNING),
        ("ok", 1, S.CANCELLED),
        ("not_ok", 0, S.CANCELLED),
        ("not_ok", 1, S.RUNNING),
        ("any", 0, S.RUNNING),
        ("any", 1, S.RUNNING),
    ],
)
def test_a_job_starts_once_the_one_before_it_is_over_as_it_should_or_ends(
    when: str, status: int, becomes: JobState
) -> None:
    w = world()
    w.submit("j-1")
    w.submit("j-2", gpus=0, spec=after("j-1", when))
    w.round()
    waiting = w.core.cluster_state.jobs["j-2"]
    assert waiting.is_held
    assert waiting.waiting_for is not None
    assert (waiting.waiting_for.code, waiting.waiting_for.by) == (CauseCode.DEPENDENCY, "j-1")
    w.nodes["node-1"].end(("j-1", 0, 0), status)
    w.round()
    assert w.state("j-2") is becomes
    if becomes is S.CANCELLED:
        assert w.steps[-1].cause.code is CauseCode.DEPENDENCY_FAILED
        assert w.steps[-1].cause.by == "j-1"


def test_a_job_may_wait_until_another_has_started() -> None:
    w = world()
    w.submit("j-1")
    w.submit("j-2", spec=after("j-1", "started"))
    w.round()
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.RUNNING)


@pytest.mark.parametrize(("when", "becomes"), [("any", S.RUNNING), ("not_ok", S.CANCELLED), ("started", S.CANCELLED)])
def test_what_never_started_satisfies_any_alone(when: str, becomes: JobState) -> None:
    w = world(gpus=1)
    w.submit("j-0", gpus=1)
    w.submit("j-1", gpus=1)
    w.submit("j-2", gpus=0, spec=after("j-1", when))
    w.round()
    w.ask(AskKind.CANCEL, "j-1")
    w.round()
    assert w.state("j-2") is becomes


def test_a_held_job_is_in_the_way_of_none_and_nothing_is_kept_for_it() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1)
    w.submit("j-2", gpus=4, spec={**after("j-1"), "priority": 100})
    w.submit("j-3", gpus=3)
    w.round()
    w.submit("j-4", gpus=3)
    w.round()
    assert w.state("j-3") is S.RUNNING
    assert w.core.cluster_state.waitlist.held.keys() == {"j-2"}
    waiting = w.core.cluster_state.jobs["j-4"].waiting_for
    assert waiting is not None
    assert waiting.code is CauseCode.NO_ROOM
    w.core.cluster_state.check()


def test_a_retry_is_no_end() -> None:
    w = world()
    w.submit("j-1", spec={"retries": {"max": 1, "backoff": "10s"}})
    w.submit("j-2", spec=after("j-1"))
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.QUEUED, S.QUEUED)
    w.tick(11)
    w.round()
    w.nodes["node-1"].end(("j-1", 1, 0), 0)
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_a_predecessor_that_is_requeued_counts_again_as_not_over() -> None:
    w = world(gpus=1)
    w.submit("j-0", gpus=1, spec={"preemptible": False})
    w.submit("j-1", gpus=0)
    w.submit("j-2", gpus=1, spec=after("j-1"))
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    w.round()
    assert not w.core.cluster_state.waitlist.held  # it stands in the queue, where there is no room
    w.ask(AskKind.REQUEUE, "j-1", job=w.stored["j-1"])
    w.round()
    assert w.core.cluster_state.waitlist.held.keys() == {"j-2"}
    w.nodes["node-1"].end(("j-1", 1, 0), 1)
    w.round()
    assert w.state("j-2") is S.CANCELLED


def test_a_requeued_job_that_was_ended_for_its_dependency_waits_for_it_again() -> None:
    w = world()
    w.submit("j-1")
    w.submit("j-2", spec=after("j-1"))
    w.round()
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    w.round()
    assert w.state("j-2") is S.CANCELLED
    w.ask(AskKind.REQUEUE, "j-1", job=w.stored["j-1"])
    w.ask(AskKind.REQUEUE, "j-2", job=w.stored["j-2"])
    w.round()
    assert w.state("j-2") is S.QUEUED
    w.nodes["node-1"].end(("j-1", 1, 0), 0)
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_what_is_not_open_here_is_asked_of_the_store_until_it_is_over() -> None:
    w = world()
    w.submit("j-2", spec=after("j-of-another-pool"))
    w.round()
    assert w.core.cluster_state.holds.wanted(w.now + 1) == ["j-of-another-pool"]
    asked_at = w.now
    told(w, Ends(id="j-of-another-pool", total=1, began=1))
    assert w.core.cluster_state.holds.wanted(asked_at) == []
    assert w.core.cluster_state.holds.wanted(w.now + 1) == ["j-of-another-pool"]
    told(w, Ends(id="j-of-another-pool", total=1, began=1, ended=1, ok=1))
    assert w.state("j-2") is S.RUNNING
    assert w.core.cluster_state.holds.wanted(w.now + 10) == []


@pytest.mark.parametrize(
    ("when", "ends", "becomes"),
    [
        ("ok", Ends(id="a-9", total=3, ended=2, ok=2, began=3), S.QUEUED),
        ("ok", Ends(id="a-9", total=3, ended=3, ok=3, began=3), S.RUNNING),
        ("ok", Ends(id="a-9", total=3, ended=1, bad=1, began=1), S.CANCELLED),
        ("not_ok", Ends(id="a-9", total=3, ended=2, bad=1, ok=1, began=3), S.QUEUED),
        ("not_ok", Ends(id="a-9", total=3, ended=3, bad=1, ok=2, began=3), S.RUNNING),
        ("not_ok", Ends(id="a-9", total=3, ended=3, ok=3, began=3), S.CANCELLED),
        ("any", Ends(id="a-9", total=3, ended=3), S.RUNNING),
        ("started", Ends(id="a-9", total=3, began=2), S.QUEUED),
        ("started", Ends(id="a-9", total=3, ended=1, began=2), S.CANCELLED),
        ("ok", Ends(id="a-9"), S.CANCELLED),
    ],
)
def test_an_array_counts_with_all_its_elements(when: str, ends: Ends, becomes: JobState) -> None:
    w = world()
    w.submit("j-2", spec=after("a-9", when))
    w.round()
    told(w, ends)
    assert w.state("j-2") is becomes


def test_an_array_runs_as_many_elements_at_once_as_it_may_from_the_lowest_index() -> None:
    w = world(gpus=8)
    for index in (3, 1, 2, 0):
        submit_element(w, index, at_once=2)
    w.submit("j-2", gpus=1)
    w.round()
    running = [job_id for job_id in w.stored if w.state(job_id) is S.RUNNING]
    assert running == ["j-1-3", "j-1-1", "j-2"]
    held = w.core.cluster_state.jobs["j-1-0"].waiting_for
    assert held is not None
    assert held.code is CauseCode.ARRAY_FULL
    w.nodes["node-1"].end(("j-1-3", 0, 0), 1)
    w.round()
    assert w.state("j-1-0") is S.RUNNING
    assert w.state("j-1-2") is S.QUEUED
    w.core.cluster_state.check()


def test_an_array_of_which_an_element_ended_while_all_waited_for_another_job_takes_its_turns_then() -> None:
    w = world(gpus=4)
    w.submit("j-1")
    for index in range(4):
        submit_element(w, index, at_once=2, **after("j-1"))
    w.round()
    w.ask(AskKind.CANCEL, "j-1-0")
    w.nodes["node-1"].end(("j-1", 0, 0), 0)
    w.round()
    states = [w.state(f"j-1-{index}") for index in range(4)]
    assert states == [S.CANCELLED, S.RUNNING, S.RUNNING, S.QUEUED]


def test_a_new_leader_counts_what_an_array_holds_before_it_gives_a_turn() -> None:
    w = world(gpus=8)
    for index in range(4):
        submit_element(w, index, at_once=2)
    w.round()
    w.nodes["node-1"].end(("j-1-0", 0, 0), 0)
    w.round()
    w.round()
    w.ask(AskKind.REQUEUE, "j-1-0", job=w.stored["j-1-0"])
    jobs = [w.core.cluster_state.jobs[job_id] for job_id in sorted(w.core.cluster_state.jobs)]
    w.core.load(jobs=jobs, nodes=w.core.cluster_state.pool.nodes.values(), now=w.now)
    w.core.decide(w.now)
    assert w.core.cluster_state.waitlist.held.keys() == {"j-1-0", "j-1-3"}


def test_a_singleton_starts_once_every_earlier_job_of_its_name_is_over() -> None:
    w = world()
    for job_id in ("j-1", "j-2", "j-3"):
        w.submit(job_id, spec={"name": "nightly", "singleton": job_id != "j-1"})
    w.submit("j-4", spec={"name": "other", "singleton": True})
    w.round()
    assert [w.state(job_id) for job_id in ("j-1", "j-2", "j-3", "j-4")] == [S.RUNNING, S.QUEUED, S.QUEUED, S.RUNNING]
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    w.round()
    assert (w.state("j-2"), w.state("j-3")) == (S.RUNNING, S.QUEUED)
    w.ask(AskKind.REQUEUE, "j-1", job=w.stored["j-1"])
    w.nodes["node-1"].end(("j-2", 0, 0), 0)
    w.round()
    w.round()
    assert w.state("j-3") is S.QUEUED  # the requeued one came before it


def test_a_chain_of_many_ends_link_by_link_within_few_turns() -> None:
    w = world()
    w.submit("j-0")
    for number in range(1, 801):
        w.submit(f"j-{number}", spec=after(f"j-{number - 1}"))
    w.round()
    w.ask(AskKind.CANCEL, "j-0")
    for _ in range(10):
        w.round()
    assert {w.state(job_id) for job_id in w.stored} == {S.CANCELLED}


def test_many_dependents_of_one_job_are_let_go_a_bounded_number_at_a_time() -> None:
    w = world()
    w.submit("j-0")
    for number in range(1, 801):
        w.submit(f"j-{number}", spec=after("j-0", "not_ok"))
    w.round()
    w.nodes["node-1"].end(("j-0", 0, 0), 0)
    w.sync("node-1")
    steps = w.core.decide(w.now)
    assert sum(step.event is E.CANCELLED for step in steps) <= w.core.settings.steps_max
    for step in steps:
        w.keep([step])
    for _ in range(10):
        w.round()
    assert w.state("j-800") is S.CANCELLED


def test_what_waits_is_part_of_a_snapshot_of_the_core() -> None:
    w = world()
    w.submit("j-1")
    w.submit("j-2", spec=after("j-1"))
    w.submit("j-3", spec={"name": "nightly", "singleton": True})
    submit_element(w, 0, at_once=1)
    submit_element(w, 1, at_once=1)
    w.round()
    again = unpickled(pickled(w.core), w.core.cluster_state.jobs.values())
    assert again.cluster_state.waitlist.held == w.core.cluster_state.waitlist.held
    w.ask(AskKind.CANCEL, "j-1-0")
    assert again.cluster_state.holds.why(again.cluster_state.jobs["j-1-1"]) is not None
