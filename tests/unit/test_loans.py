"""Loans: a service that wants more than the free room holds takes what training can spare, and gives it back."""

from typing import Any

import pytest

from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, Job, JobEvent, JobState, Step
from weft.domain.spec import TuningMode
from weft.messages.asks import AskKind
from weft.planning.lending.freed_holds import FIRST_SECONDS
from weft.planning.partition.weft import weft
from weftd.reallocator.thinking.partitioning import Plans, SizePlanner

S, E, C = JobState, JobEvent, CauseCode


def service(want: int = 1, most: int = 4, least: int = 1, **fields: Any) -> dict[str, Any]:
    role = {"replicas": {"min": least, "want": want, "max": most}, **fields.pop("role", {})}
    return {"kind": "inference", "service": {"port": 8080}, "role": role, "grace": "5s", **fields}


def elastic(want: int = 4, most: int = 4, least: int = 1, **fields: Any) -> dict[str, Any]:
    replicas = {"min": least, "want": want, "max": most}
    return {"role": {"replicas": replicas}, "resize": {"how": "live"}, "grace": "5s", **fields}


def restarting(want: int = 4, most: int = 4, least: int = 1, **fields: Any) -> dict[str, Any]:
    return {**elastic(want, most, least, **fields), "resize": {"how": "restart"}, "checkpoints": {"on_stop": True}}


def of(w: World, job_id: str) -> Job:
    return w.stored[job_id]


def count(w: World, job_id: str) -> int:
    return of(w, job_id).granted["worker"]


def rounds(w: World, times: int = 4) -> None:
    for _ in range(times):
        w.round()


def running(w: World, job_id: str, spec: dict[str, Any], *, gpus: int = 1) -> None:
    w.submit(job_id, gpus=gpus, spec=spec)
    rounds(w)
    assert w.state(job_id) is S.RUNNING


def full() -> World:
    """A service with one replica and training with three ranks have all four GPUs."""
    w = world(gpus=4)
    running(w, "j-s", service())
    running(w, "j-t", elastic(want=3))
    return w


def scaled(w: World, job_id: str, worker: int) -> None:
    """Another size was asked for, and what follows of that has happened."""
    w.scale(job_id, worker=worker)
    rounds(w)


def lent(w: World, job_id: str = "j-s") -> list[tuple[str, int, float, int]]:
    return [(loan.lender, loan.rank, loan.gpus, loan.ranks) for loan in of(w, job_id).loans]


def steps_of(w: World, job_id: str, event: JobEvent) -> list[Step]:
    return [step for step in w.steps if step.job_id == job_id and step.event is event]


def test_a_service_borrows_the_extras_of_elastic_training_and_the_loan_is_recorded() -> None:
    w = full()
    scaled(w, "j-s", 3)
    assert (count(w, "j-s"), count(w, "j-t")) == (3, 1)
    assert lent(w) == [("j-t", 1, 1.0, 1), ("j-t", 2, 1.0, 1)]
    told = steps_of(w, "j-t", E.RESIZED)[-2]
    assert (told.cause.code, told.cause.by) == (C.LENT, "j-s")
    assert "borrows 2 GPUs of j-t" in steps_of(w, "j-s", E.RESIZED)[-1].cause.sentence


def test_the_free_room_comes_before_any_loan() -> None:
    w = world(gpus=6)
    running(w, "j-s", service())
    running(w, "j-t", elastic())
    scaled(w, "j-s", 2)
    assert (count(w, "j-s"), count(w, "j-t"), lent(w)) == (2, 4, [])


def test_a_loan_is_paid_back_when_the_service_shrinks_and_the_lender_grows_back_a_minute_later() -> None:
    w = full()
    scaled(w, "j-s", 2)
    assert (count(w, "j-s"), count(w, "j-t")) == (2, 2)
    scaled(w, "j-s", 1)
    assert (count(w, "j-s"), lent(w)) == (1, [])
    gone = [step.cause for step in steps_of(w, "j-s", E.RESIZED)][-2:]
    assert gone[0].code is C.PAID_BACK
    assert "paid back: 1 GPU of j-t" in gone[1].sentence
    assert count(w, "j-t") == 2, "it first serves shares and notebooks"
    w.now += FIRST_SECONDS
    rounds(w)
    assert count(w, "j-t") == 3


def test_loans_end_one_by_one_though_the_partition_planner_looks_at_the_lender_all_the_time() -> None:
    w = world(gpus=9)
    planner = SizePlanner(Plans(mode=TuningMode.ON, seconds=0.0, cool_down_seconds=0.0), weft)

    def plan() -> None:
        jobs = [job for job in w.open_jobs() if job.state.holding]
        planned = planner.plan(
            holding=jobs, queued=[], nodes=list(w.core.cluster_state.pool.nodes.values()), curves={}, now=w.now
        )
        for job_id, scale in planned.sizes.items():
            w.scale(job_id, tenant="weft", instead_of=scale.instead_of["worker"], **scale.size)
        rounds(w)

    running(w, "j-s", service(most=6))
    running(w, "j-t", elastic(want=6, most=8))
    plan()
    assert count(w, "j-t") == 8
    scaled(w, "j-s", 5)
    plan()
    assert (count(w, "j-s"), count(w, "j-t"), len(lent(w))) == (5, 4, 4)
    for left in (4, 3, 2, 1):
        scaled(w, "j-s", left)
        plan()
        assert (count(w, "j-s"), len(lent(w)), of(w, "j-t").wanted) == (left, left - 1, {"worker": 8})
    w.now += FIRST_SECONDS
    plan()
    assert count(w, "j-t") == 8


def test_a_rank_of_a_lender_that_fails_takes_nothing_off_what_is_owed() -> None:
    w = world(gpus=9)
    running(w, "j-s", service(most=6))
    running(w, "j-t", elastic(want=8, most=8))
    scaled(w, "j-s", 5)
    assert (count(w, "j-t"), len(lent(w))) == (4, 4)
    w.nodes["node-1"].end(("j-t", 0, 3), 1)
    rounds(w)
    assert of(w, "j-t").wanted == {"worker": 7}
    scaled(w, "j-s", 4)
    assert len(lent(w)) == 3
    scaled(w, "j-s", 1)
    w.now += FIRST_SECONDS
    rounds(w)
    assert (count(w, "j-t"), lent(w)) == (7, [])


def test_what_was_borrowed_leaves_first() -> None:
    w = world(gpus=4)
    running(w, "j-s", service(most=6))
    running(w, "j-t", elastic(want=3))
    scaled(w, "j-s", 2)
    (borrowed,) = of(w, "j-s").loans
    w.nodes["node-1"].end(("j-t", 0, 0), 0)
    rounds(w)
    scaled(w, "j-s", 4)
    assert count(w, "j-s") == 4
    scaled(w, "j-s", 3)
    assert borrowed.rank == 1, "newer replicas are there"


def test_a_job_that_shrinks_by_a_restart_lends_only_if_no_other_can_and_grows_back() -> None:
    w = world(gpus=6)
    running(w, "j-s", service())
    running(w, "j-r", restarting(want=3, most=3))
    running(w, "j-t", elastic(want=2, most=2))
    scaled(w, "j-s", 2)
    assert (count(w, "j-s"), count(w, "j-t"), of(w, "j-r").epoch) == (2, 1, 0)
    w.scale("j-s", worker=3)
    rounds(w, 8)
    assert (count(w, "j-s"), count(w, "j-t"), count(w, "j-r"), of(w, "j-r").epoch) == (3, 1, 2, 1)
    assert [loan[0] for loan in lent(w)] == ["j-t", "j-r"]
    scaled(w, "j-s", 1)
    w.now += FIRST_SECONDS
    rounds(w, 8)
    assert (count(w, "j-t"), count(w, "j-r"), of(w, "j-r").attempts) == (2, 3, 0)


def test_a_whole_job_gives_way_last_and_only_if_the_order_says_so() -> None:
    w = world(gpus=3)
    running(w, "j-s", service(priority=5))
    running(w, "j-t", {"grace": "5s", "priority": 5, "preemptible": True})
    running(w, "j-u", {"grace": "5s"})
    scaled(w, "j-s", 3)
    assert (count(w, "j-s"), w.state("j-t"), w.state("j-u")) == (2, S.RUNNING, S.QUEUED)
    assert lent(w) == [("j-u", 1, 1.0, 0)]
    assert of(w, "j-u").attempts == 0
    scaled(w, "j-s", 1)
    assert (w.state("j-u"), lent(w)) == (S.RUNNING, [])


def test_a_job_of_higher_priority_a_service_a_notebook_and_one_that_may_not_be_preempted_lend_nothing() -> None:
    w = world(gpus=8)
    running(w, "j-s", service(priority=1))
    running(w, "j-1", elastic(want=2, most=2, priority=2))
    running(w, "j-2", service(want=2, most=2))
    running(w, "j-3", elastic(want=2, most=2, preemptible=False))
    running(w, "j-4", {"kind": "notebook", "priority": -5})
    before = [count(w, f"j-{number}") for number in range(1, 5)]
    scaled(w, "j-s", 4)
    assert (count(w, "j-s"), [count(w, f"j-{number}") for number in range(1, 5)]) == (1, before)


def test_a_lender_that_gave_ranks_away_a_moment_ago_gives_more_only_after_others() -> None:
    w = world(gpus=7)
    running(w, "j-s", service())
    running(w, "j-t", elastic(want=3, most=3))
    running(w, "j-u", elastic(want=3, most=3))
    scaled(w, "j-s", 2)
    scaled(w, "j-s", 3)
    assert sorted(loan[0] for loan in lent(w)) == ["j-t", "j-u"]


def test_gpus_that_come_free_for_a_loan_go_to_no_waiting_job_in_between() -> None:
    w = full()
    w.nodes["node-1"].unkillable.add(("j-t", 0, 2))
    w.scale("j-s", worker=2)
    w.tick()
    w.submit("j-w", spec={})
    rounds(w)
    w.nodes["node-1"].end(("j-t", 0, 2), 143)
    rounds(w)
    assert (count(w, "j-s"), w.state("j-w")) == (2, S.QUEUED)


def test_no_job_starts_where_a_service_has_too_little_only_to_give_way_to_it_at_once() -> None:
    w = world(gpus=2)
    running(w, "j-s", service(priority=5))
    running(w, "j-t", {"priority": 5})
    scaled(w, "j-s", 2)
    w.submit("j-w", spec={})
    rounds(w)
    w.nodes["node-1"].end(("j-t", 0, 0), 0)
    rounds(w)
    assert (count(w, "j-s"), lent(w), w.state("j-w")) == (2, [], S.QUEUED)
    assert steps_of(w, "j-w", E.PLACED) == []


@pytest.mark.parametrize(
    "waits", [{"priority": 5}, {"priority": 4, "preemptible": False}, {"priority": 4, "kind": "notebook"}]
)
def test_a_job_that_would_not_give_way_to_a_service_starts_before_that_grows(waits: dict[str, Any]) -> None:
    w = world(gpus=2)
    running(w, "j-s", service(priority=5))
    running(w, "j-t", {"priority": 5})
    scaled(w, "j-s", 2)
    w.submit("j-w", spec=waits)
    rounds(w)
    w.nodes["node-1"].end(("j-t", 0, 0), 0)
    rounds(w)
    assert (count(w, "j-s"), w.state("j-w")) == (1, S.RUNNING)


def test_a_job_of_higher_priority_starts_before_a_service_that_has_too_little_grows() -> None:
    w = world(gpus=2)
    running(w, "j-s", service())
    running(w, "j-t", {"priority": 5, "preemptible": False})
    scaled(w, "j-s", 2)
    w.submit("j-w", spec={"priority": 5})
    rounds(w)
    w.nodes["node-1"].end(("j-t", 0, 0), 0)
    rounds(w)
    assert (count(w, "j-s"), w.state("j-w")) == (1, S.RUNNING)


def test_a_victim_that_does_not_leave_in_time_is_not_waited_for_without_end() -> None:
    w = full()
    w.nodes["node-1"].unkillable.add(("j-t", 0, 2))
    scaled(w, "j-s", 2)
    assert count(w, "j-s") == 1
    for _ in range(50):
        w.now += 10.0
        w.round()
    assert (count(w, "j-s"), count(w, "j-t")) == (2, 1), "another rank gave way"


def test_a_service_that_wants_less_again_before_it_got_anything_lets_the_place_go() -> None:
    w = full()
    w.scale("j-s", worker=2)
    w.tick()
    scaled(w, "j-s", 1)
    assert (count(w, "j-s"), count(w, "j-t"), lent(w)) == (1, 2, [])
    w.now += FIRST_SECONDS
    rounds(w)
    assert count(w, "j-t") == 3


def test_a_new_leader_gives_the_service_what_was_asked_for_and_asks_for_no_more() -> None:
    w = full()
    w.nodes["node-1"].unkillable.add(("j-t", 0, 2))
    w.scale("j-s", worker=2)
    w.tick()
    w.lead_anew(w.open_jobs(), list(w.core.cluster_state.pool.nodes.values()))
    rounds(w, 12)
    w.nodes["node-1"].end(("j-t", 0, 2), 143)
    rounds(w)
    assert (count(w, "j-s"), count(w, "j-t"), lent(w)) == (2, 2, [("j-t", 1, 1.0, 1)])


def test_shares_of_one_gpu_that_was_lent_serve_several_replicas() -> None:
    w = world(gpus=3)
    share = {"share": {"request": 0.25, "memory": "1GiB"}, "gpus": 0}
    running(w, "j-t", elastic(want=3))
    w.submit("j-s", gpus=0, spec=service(most=8, role=share))
    rounds(w)
    assert w.state("j-s") is S.QUEUED, "it waits for its first replica as any job"
    scaled(w, "j-t", 2)
    scaled(w, "j-s", 4)
    assert (count(w, "j-s"), count(w, "j-t"), lent(w)) == (4, 2, [])
    scaled(w, "j-s", 7)
    assert (count(w, "j-s"), count(w, "j-t")) == (7, 1)
    assert [loan[2] for loan in lent(w)] == [0.25] * 3


def test_a_borrowed_replica_that_ends_and_begins_again_is_still_borrowed() -> None:
    w = world(gpus=4)
    running(w, "j-s", service(retries={"backoff": "1s"}))
    running(w, "j-t", elastic(want=3))
    scaled(w, "j-s", 2)
    assert lent(w) == [("j-t", 1, 1.0, 1)]
    since = of(w, "j-s").loans[0].since
    w.nodes["node-1"].end(("j-s", 0, 1), 1)
    rounds(w, 8)
    assert (count(w, "j-s"), lent(w)) == (2, [("j-t", 2, 1.0, 1)])
    assert of(w, "j-s").loans[0].since == since


def test_a_service_borrows_nothing_while_a_job_of_higher_priority_waits_for_room() -> None:
    w = world(nodes=2, gpus=4)
    running(w, "j-x", {"priority": 9, "preemptible": False}, gpus=4)
    running(w, "j-s", service())
    running(w, "j-t", elastic(want=3))
    w.submit("j-w", gpus=4, replicas=2, spec={"priority": 5})
    rounds(w)
    assert w.state("j-w") is S.QUEUED
    scaled(w, "j-s", 2)
    assert (count(w, "j-s"), count(w, "j-t")) == (1, 3), "what is lent would go to the job that is ahead"
    w.ask(AskKind.CANCEL, "j-w")
    rounds(w)
    assert (count(w, "j-s"), count(w, "j-t")) == (2, 2)
