"""Updates of services: new replicas beside old ones, one by one, and back where the new do not become ready."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nodes import Key
from tests.support.scheduler import World, world
from tests.support.service_lives import end, of, ranks, revisions, rounds, running, runs, service
from tests.support.tier import examples
from weft.domain.job import REVISIONS_BYTES_MAX, CauseCode, JobEvent, JobState, Revision
from weft.messages.asks import AskKind

S, E, C = JobState, JobEvent, CauseCode


def images(w: World) -> list[str | None]:
    return [w.nodes[node].orders[key].image for node in w.nodes for key in sorted(w.nodes[node].live)]


def codes(w: World) -> list[CauseCode]:
    return [step.cause.code for step in w.steps if step.job_id == "j-1"]


def test_an_update_replaces_one_replica_after_the_other_and_none_is_missing_meanwhile() -> None:
    w = world(gpus=4)
    running(w, service(want=3, image="chat:1"))
    w.update("j-1", image="chat:2")
    seen = []
    for _ in range(12):
        w.tick()
        seen.append(sorted(revisions(w)))
        w.sync("node-1")
    assert revisions(w) == [1, 1, 1]
    assert set(images(w)) == {"chat:2"}
    assert all(len(those) in (3, 4) for those in seen), seen
    assert of(w).revisions[-1].back_to is None
    assert C.UPDATE_ASKED in codes(w)
    assert C.REPLACED in codes(w)


def test_what_runs_goes_on_with_what_it_runs() -> None:
    w = world(gpus=4)
    running(w, service(want=1, image="chat:1"))
    w.nodes["node-1"].becomes_ready = False
    w.nodes["node-1"].ready.add(("j-1", 0, 0))
    w.update("j-1", image="chat:2", env={"A": "1"})
    rounds(w)
    orders = {key[2]: order for key, order in w.nodes["node-1"].orders.items()}
    assert (orders[0].image, orders[1].image) == ("chat:1", "chat:2")
    assert ("A" in orders[0].env, orders[1].env["A"]) == (False, "1")
    w.nodes["node-1"].ready.add(("j-1", 0, 1))
    rounds(w)
    assert (ranks(w), revisions(w)) == ([1], [1])


def test_an_empty_text_takes_a_variable_away_and_updates_add_up() -> None:
    w = world(gpus=4)
    running(w, service(want=1, env={"KEEP": "k", "GO": "g"}))
    w.update("j-1", env={"GO": "", "NEW": "n"})
    w.update("j-1", command=("serve",))
    rounds(w, 8)
    (order,) = [w.nodes["node-1"].orders[key] for key in runs(w)]
    assert (order.command, order.env) == (("serve",), {"KEEP": "k", "NEW": "n"})


def test_an_update_of_nothing_or_of_another_job_changes_nothing() -> None:
    w = world(gpus=4)
    running(w, service(want=1, image="chat:1"))
    w.submit("j-2", gpus=1)
    rounds(w)
    assert w.update("j-2", image="x") == []
    assert w.update("j-9", image="x") == []
    assert w.update("j-1") == []
    assert w.update("j-1", env={}) == []
    assert len(w.update("j-1", image="chat:2")) == 1
    assert w.update("j-1", image="chat:2") == []
    w.nodes["node-1"].unkillable |= set(runs(w))
    w.ask(AskKind.CANCEL, "j-1")
    assert w.state("j-1") is S.STOPPING
    assert w.update("j-1", image="chat:3") == []


def test_updates_that_add_up_to_more_than_a_specification_change_nothing() -> None:
    w = world(gpus=4)
    running(w, service(want=1))
    taken = 0
    for number in range(40):
        taken += len(w.update("j-1", env={f"A{number}": "x" * 32768}))
        rounds(w, 2)
    assert 20 < taken < 33, "a megabyte of them"
    assert w.update("j-1", env={f"B{number}": "x" for number in range(1025)}) == []


def test_updates_faster_than_replicas_leave_are_not_kept_without_bound() -> None:
    w = world(gpus=4)
    running(w, service(role={"replicas": {"min": 0, "want": 4, "max": 4}, "gpus": 0, "cpus": 0.001}), gpus=0)
    for number in range(100):
        w.update("j-1", image=f"chat:{number}")
        w.tick()
        w.nodes["node-1"].unkillable |= set(runs(w))
        w.sync("node-1")
    assert 3 < len(of(w).revisions) <= 32


def test_revisions_that_still_run_are_no_more_together_than_an_event_may_hold() -> None:
    """Thirty of a megabyte made an event of 30 MB, which NATS does not take."""
    w = world(gpus=4)
    running(w, service(role={"replicas": {"min": 0, "want": 16, "max": 16}, "gpus": 0, "cpus": 0.001}), gpus=0)
    largest = 0
    for number in range(30):
        w.update("j-1", env={"A": f"{number:06}" * 150_000})
        w.tick()
        w.nodes["node-1"].unkillable |= set(runs(w))
        w.sync("node-1")
        largest = max(largest, len(msgspec.json.encode(of(w).revisions)))
    assert 3 << 20 < largest <= REVISIONS_BYTES_MAX


def test_an_update_goes_back_after_three_new_replicas_in_a_row_that_fail() -> None:
    w = world(gpus=4)
    running(w, service(want=2, image="chat:1"))
    w.update("j-1", image="broken", env={"SECRET": "s3cret"})
    w.nodes["node-1"].becomes_ready = False
    w.nodes["node-1"].ready |= set(runs(w))
    ends = 0
    while C.UPDATE_FAILED not in codes(w) and ends < 9:
        rounds(w)
        new = [each.rank for each in of(w).placement.staying if each.revision == 1]  # type: ignore[union-attr]
        assert len(new) == 1
        end(w, new[0], 3)
        ends += 1
        w.sync("node-1")
        w.tick(60)
    rounds(w, 5)
    assert (ends, ranks(w), revisions(w)) == (3, [0, 1], [2, 2]), "the old ones are those of the former contents"
    assert set(images(w)) == {"chat:1"}
    assert of(w).revision == 2
    assert not any("s3cret" in step.cause.sentence for step in w.steps)


def test_an_update_goes_back_at_once_where_the_new_is_not_ready_in_time() -> None:
    w = world(gpus=4)
    running(w, service(want=2, image="chat:1"))
    w.nodes["node-1"].ready |= set(runs(w))
    w.nodes["node-1"].becomes_ready = False
    w.update("j-1", image="slow")
    rounds(w)
    assert sorted(revisions(w)) == [0, 0, 1]
    w.tick(70)
    rounds(w, 6)
    assert (ranks(w), set(images(w))) == ([0, 1], {"chat:1"})
    assert codes(w).count(C.UPDATE_FAILED) == 1


def test_without_room_for_one_more_an_old_replica_leaves_first() -> None:
    w = world(gpus=2)
    running(w, service(want=2, image="chat:1"))
    w.update("j-1", image="chat:2")
    least = 2
    for _ in range(12):
        w.round()
        least = min(least, len(runs(w)))
    assert (revisions(w), least) == ([1, 1], 1)


def test_an_update_without_room_goes_on_although_each_new_replica_takes_a_while_to_be_ready() -> None:
    """It stood still for ever once the second new replica was ready: nothing else had changed since the last look."""
    w = world(gpus=3)
    running(w, service(want=3, image="chat:1"))
    w.nodes["node-1"].becomes_ready = False
    w.nodes["node-1"].ready |= set(runs(w))
    w.update("j-1", image="chat:2")
    for _ in range(4):
        rounds(w)
        w.nodes["node-1"].ready |= set(runs(w))
    rounds(w)
    assert revisions(w) == [1, 1, 1]


def test_the_only_replica_is_not_given_up_for_an_update_without_room() -> None:
    w = world(gpus=1)
    running(w, service(want=1, image="chat:1"))
    w.update("j-1", image="chat:2")
    rounds(w, 8)
    assert (revisions(w), images(w)) == ([0], ["chat:1"])
    assert w.core._sizing.short == {"j-1": 1}
    w.scale("j-1", worker=0)
    rounds(w)
    w.scale("j-1", worker=1)
    rounds(w)
    assert images(w) == ["chat:2"]


def test_a_surge_of_more_than_one_replaces_as_many_at_once() -> None:
    w = world(gpus=8)
    running(w, service(want=4, service={"max_surge": 3}))
    w.update("j-1", image="chat:2")
    w.tick()
    assert sorted(revisions(w)) == [0, 0, 0, 0, 1, 1, 1]
    rounds(w, 5)
    assert revisions(w) == [1, 1, 1, 1]


def test_an_update_of_an_update_that_is_under_way_goes_back_to_what_was_ready() -> None:
    w = world(gpus=4)
    running(w, service(want=1, image="chat:1"))
    w.nodes["node-1"].becomes_ready = False
    w.nodes["node-1"].ready |= set(runs(w))
    w.update("j-1", image="broken")
    rounds(w)
    w.update("j-1", image="broken-too")
    rounds(w)
    assert of(w).revisions[-1].back_to == 0
    w.tick(70)
    rounds(w, 6)
    assert (images(w), of(w).revision) == (["chat:1"], 3)


def test_an_update_of_a_service_that_waits_or_sleeps_is_what_it_begins_with() -> None:
    w = world(gpus=1)
    w.submit("j-2", gpus=1)
    rounds(w)
    running(w, service(want=1, image="chat:1"))
    assert w.state("j-1") is S.QUEUED
    w.update("j-1", image="chat:2")
    w.ask(AskKind.CANCEL, "j-2")
    rounds(w)
    assert (images(w), revisions(w)) == (["chat:2"], [1])


def test_a_new_leader_goes_on_with_an_update() -> None:
    w = world(gpus=4)
    running(w, service(want=3, image="chat:1"))
    w.update("j-1", image="chat:2")
    for _ in range(12):
        w.lead_anew(w.open_jobs(), w.core.cluster_state.pool.nodes.values())
        w.sync("node-1")
        w.sync("node-1")
        w.round()
        assert len(ranks(w)) in (3, 4)
    assert (revisions(w), set(images(w))) == ([1, 1, 1], {"chat:2"})


def test_revisions_that_nothing_runs_and_nothing_needs_are_forgotten() -> None:
    w = world(gpus=4)
    running(w, service(want=1))
    for number in range(20):
        w.update("j-1", image=f"chat:{number}")
        rounds(w, 4)
    assert of(w).revision == 20
    assert len(of(w).revisions) <= 3
    assert isinstance(of(w).revisions[-1], Revision)


# whatever happens

acts = st.one_of(
    st.tuples(st.just("scale"), st.integers(0, 4)),
    st.tuples(st.just("update"), st.integers(0, 3)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("unready"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from([1, 3, 10, 40, 90])),
    st.tuples(st.just("leader"), st.just(0)),
    st.tuples(st.just("node"), st.integers(1, 2)),
    st.tuples(st.just("rival"), st.integers(1, 3)),
)


@settings(max_examples=examples(120), deadline=None)
@given(script=st.lists(acts, max_size=30), surge=st.integers(1, 2))
def test_a_service_comes_to_its_size_and_its_newest_revision_whatever_happens(
    script: list[tuple[str, int]], surge: int
) -> None:
    w = world(nodes=2, gpus=4)
    running(w, service(want=2, most=4, image="chat:1", service={"max_surge": surge}))
    rivals: list[str] = []
    for act, number in script:
        live = runs(w)
        match act:
            case "scale":
                w.scale("j-1", worker=number)
            case "update":
                w.update("j-1", image=f"chat:{number}")
            case "end" if live:
                end(w, live[number % len(live)][2], number % 3)
            case "unready" if live:
                unready(w, live[number % len(live)])
            case "leader":
                w.lead_anew(w.open_jobs(), w.core.cluster_state.pool.nodes.values())
            case "node":
                for key in [key for key in live if key in w.nodes[f"node-{number}"].live]:
                    w.nodes[f"node-{number}"].end(key, 137)
            case "rival":
                rivals.append(f"r-{len(rivals)}")
                w.submit(rivals[-1], gpus=number, spec={"priority": number})
            case _:
                w.tick(number)
        w.round()
        bounded(w, surge)
    for rival in rivals:
        w.ask(AskKind.CANCEL, rival)
    for node in w.nodes.values():
        node.becomes_ready = True
    for _ in range(40):
        w.tick(5)
        w.round()
        bounded(w, surge)
    job = of(w)
    assert job.state is S.RUNNING
    assert job.granted == job.wanted == {"worker": len(runs(w))}
    assert set(revisions(w)) <= {job.revision}


def unready(w: World, key: Key) -> None:
    for node in w.nodes.values():
        if key in node.live:
            node.becomes_ready = not node.becomes_ready


def bounded(w: World, surge: int) -> None:
    job = of(w)
    assert job.state in (S.RUNNING, S.QUEUED, S.PLACED, S.STARTING), job.state
    if job.placement is not None:
        staying = [each.rank for each in job.placement.staying]
        assert len(staying) <= 4 + surge
        every = [each.rank for each in job.placement.allocations]
        assert len(set(every)) == len(every)
