"""Jobs that share a GPU: from the queue to their node, and never more than the GPU has."""

from typing import Any

import msgspec

from tests.support.builders import GIB
from tests.support.scheduler import World, world
from tests.support.service_lives import service
from weft.domain.cluster import (
    NO_SHARES,
    NOT_HELD_TO_SHARES,
)
from weft.domain.job import Allocation, Cause, CauseCode, JobEvent, JobState
from weft.domain.shares import Share
from weft.messages.asks import AskKind
from weft.messages.nodes import Leader, NodeDesired, StartRun
from weftd.executor.thinking.orders import runs_of
from weftd.scheduler.thinking.answers import Answers
from weftd.scheduler.thinking.core_settings import Settings

S, E = JobState, JobEvent


def submit(w: World, job_id: str, request: float, *, memory: str = "1GiB", replicas: int = 1, **fields: Any) -> None:
    role = {"share": {"request": request, "limit": 1.0, "memory": memory}, "gpus": 0}
    w.submit(job_id, gpus=0, replicas=replicas, spec={"role": role, **fields.pop("spec", {})}, **fields)


def held(w: World, job_id: str) -> list[Allocation]:
    placement = w.core.cluster_state.jobs[job_id].placement
    assert placement is not None
    return list(placement.allocations)


def why(w: World, job_id: str) -> tuple[CauseCode, str]:
    cause = w.core.cluster_state.jobs[job_id].waiting_for
    assert cause is not None
    return cause.code, cause.sentence


def orders(w: World, node_id: str = "node-1") -> dict[str, StartRun]:
    return {run.job_id: run for run in w.runs_of(node_id)}


def test_two_jobs_run_on_one_gpu_each_with_its_part() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.7, memory="6GiB")
    submit(w, "j-2", 0.3, memory="10GiB")
    w.round()
    assert [w.state(job_id) for job_id in ("j-1", "j-2")] == [S.RUNNING, S.RUNNING]
    (one,), (two,) = held(w, "j-1"), held(w, "j-2")
    assert (one.gpus, two.gpus) == ((0,), (0,))
    assert one.share is not None
    assert two.share is not None
    assert (one.share.request, one.share.limit, one.share.memory) == (700, 1000, 6 * GIB)
    assert (two.share.request, two.share.memory) == (300, 10 * GIB)
    assert orders(w)["j-1"].share == one.share


def test_the_order_of_a_rank_has_its_share() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.7)
    w.submit("j-2", gpus=0)
    w.round()
    answer = Answers().answer(w.nodes["node-1"].report(), w.core.answer("node-1"))
    heard = msgspec.json.decode(msgspec.json.encode(answer), type=NodeDesired)
    shares = {run.job_id: run.share for order in heard.jobs for run in runs_of(order)}
    assert shares == {"j-1": held(w, "j-1")[0].share, "j-2": None}


def test_a_node_of_a_strict_pool_is_told_so_with_every_answer() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.7)
    w.round()
    orders_of, answers = w.core.answer("node-1"), Answers()
    leader = Leader(pool="default", epoch=1, holder="s-1", seq=1)
    node = w.nodes["node-1"]
    for unchanged in (False, True):
        for strict in (True, False):
            answer = answers.answer(node.report(), orders_of, leader=leader, strict=strict)
            heard = msgspec.json.decode(msgspec.json.encode(answer), type=NodeDesired)
            assert (heard.strict, heard.unchanged) == (strict, unchanged)
        node.holds = answer.digest


def test_a_job_that_was_killed_outside_its_share_fails_for_good_and_its_neighbour_runs_on() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.7, spec={"retries": {"max": 5}})
    submit(w, "j-2", 0.3)
    w.round()
    w.nodes["node-1"].end_outside(("j-1", 0, 0))
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.FAILED, S.RUNNING)
    last = [step for step in w.steps if step.job_id == "j-1"][-1].cause
    assert last.code is CauseCode.UNCONTROLLED
    assert "outside its share" in last.sentence
    assert last.numbers["exit_code"] == 137.0


def test_a_gang_fails_for_the_rank_outside_its_share_and_not_for_those_that_missed_it() -> None:
    w = world(gpus=2)
    submit(w, "j-1", 0.7, replicas=2, spec={"retries": {"max": 5}})
    w.round()
    w.nodes["node-1"].end_outside(("j-1", 0, 1))
    w.nodes["node-1"].end(("j-1", 0, 0), 1)
    w.round()
    assert w.state("j-1") is S.FAILED
    last = [step for step in w.steps if step.job_id == "j-1"][-1].cause
    assert (last.code, last.numbers["rank"]) == (CauseCode.UNCONTROLLED, 1.0)


def test_a_third_waits_with_the_reason_until_one_has_ended() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.6)
    submit(w, "j-2", 0.3)
    w.round()
    submit(w, "j-3", 0.2)
    w.submit("j-4", gpus=1)
    w.round()
    assert (w.state("j-3"), w.state("j-4")) == (S.QUEUED, S.QUEUED)
    code, sentence = why(w, "j-3")
    assert code is CauseCode.NO_ROOM
    assert "0.2" in sentence
    assert "0.1" in sentence
    w.nodes["node-1"].end(("j-2", 0, 0), 0)
    w.round()
    assert (w.state("j-3"), w.state("j-4")) == (S.RUNNING, S.QUEUED)
    for job_id in ("j-1", "j-3"):
        w.nodes["node-1"].end((job_id, 0, 0), 0)
    w.round()
    assert w.state("j-4") is S.RUNNING


def test_memory_alone_keeps_a_job_out() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.1, memory="10GiB")
    submit(w, "j-2", 0.1, memory="10GiB")
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.QUEUED)


def test_ranks_of_a_gang_get_their_shares_whole_or_not_at_all() -> None:
    w = world(gpus=2)
    submit(w, "j-1", 0.6, replicas=3)
    submit(w, "j-2", 0.5, replicas=3)
    w.round()
    assert (w.state("j-1"), w.state("j-2")) == (S.QUEUED, S.RUNNING)
    assert sum(one.share.request for one in held(w, "j-2") if one.share) == 1500


def test_a_strict_pool_gives_no_shares_where_jobs_are_not_held_to_them() -> None:
    w = world(gpus=1, settings=Settings(shares_strict=True))
    w.nodes["node-1"].not_enforced = ("egress", NOT_HELD_TO_SHARES)
    w.round()
    assert w.core.cluster_state.pool.nodes["node-1"].not_enforced == ("egress", NO_SHARES)
    submit(w, "j-1", 0.5)
    w.round()
    assert w.state("j-1") is S.QUEUED
    assert "gives shares" in why(w, "j-1")[1]
    w.nodes["node-1"].not_enforced = ("egress",)
    w.round()
    assert w.state("j-1") is S.RUNNING


def test_another_pool_gives_them_and_says_that_it_does_not_hold_jobs_to_them() -> None:
    w = world(gpus=1)
    w.nodes["node-1"].not_enforced = (NOT_HELD_TO_SHARES,)
    w.round()
    submit(w, "j-1", 0.5)
    w.round()
    assert w.state("j-1") is S.RUNNING
    assert w.core.cluster_state.pool.nodes["node-1"].not_enforced == (NOT_HELD_TO_SHARES,)


def test_a_stray_with_a_share_keeps_its_gpu_from_new_jobs_and_from_none_that_is_there() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.3)
    submit(w, "j-2", 0.3)
    w.round()
    node = w.nodes["node-1"]
    node.unkillable.add(("j-1", 0, 0))
    w.ask(AskKind.CANCEL, "j-1")
    w.tick(1000)
    w.round()
    assert w.state("j-1") is S.CANCELLED
    submit(w, "j-3", 0.3)
    w.round()
    assert (w.state("j-2"), w.state("j-3")) == (S.RUNNING, S.QUEUED)
    assert w.core.cluster_state.pool.orphans.occupied("node-1") == {0}
    node.unkillable.clear()
    w.round()
    w.round()
    assert w.state("j-3") is S.RUNNING


def test_a_new_leader_finds_the_shares_as_they_are_stored() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.6)
    w.round()
    w.lead_anew(w.open_jobs(), w.core.cluster_state.pool.nodes.values())
    w.round()
    w.tick(20)
    submit(w, "j-2", 0.5)
    submit(w, "j-3", 0.4)
    w.round()
    assert (w.state("j-1"), w.state("j-2"), w.state("j-3")) == (S.RUNNING, S.QUEUED, S.RUNNING)
    left = w.core.cluster_state.pool.free_capacity.nodes["node-1"].gpus.left_of(0)
    assert left is not None
    assert left.time == 0


def test_a_lost_node_frees_the_shares_of_its_jobs() -> None:
    w = world(nodes=2, gpus=1)
    submit(w, "j-1", 0.9)
    submit(w, "j-2", 0.9)
    w.round()
    lost = held(w, "j-1")[0].node_id
    other = next(node_id for node_id in w.nodes if node_id != lost)
    for _ in range(20):
        w.tick(10)
        w.sync(other)
    assert w.state("j-1") is S.QUEUED
    w.round()
    w.round()
    assert w.state("j-1") is S.RUNNING


def test_the_share_of_a_waiting_job_is_what_its_specification_says() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.001, memory="1MiB")
    w.round()
    (one,) = held(w, "j-1")
    assert one.share is not None
    assert Share(request=1, memory=1 << 20) == Share(request=one.share.request, memory=one.share.memory)


# another share while it runs


def share_of(w: World, job_id: str, rank: int = 0) -> tuple[int, int]:
    share = held(w, job_id)[rank].share
    assert share is not None
    return share.request, share.limit


def left(w: World, gpu: int = 0) -> int:
    found = w.core.cluster_state.pool.free_capacity.nodes["node-1"].gpus.left_of(gpu)
    assert found is not None
    return found.time


def test_a_running_job_gets_another_share_and_its_node_hears_of_it() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.3)
    w.round()
    w.core.take_hinted()
    (step,) = w.share("j-1", request=500, limit=800)
    assert (step.event, step.cause.code, step.ask) == (E.TUNED, CauseCode.SHARE_ASKED, 1)
    assert step.cause.sentence == "share 0.3 (up to 1) → 0.5 (up to 0.8) of a GPU, asked by alice"
    assert (share_of(w, "j-1"), left(w)) == ((500, 800), 500)
    assert w.core.take_hinted() == {"node-1"}
    told = orders(w)["j-1"].share
    assert told is not None
    assert (told.request, told.limit, told.memory) == (500, 800, GIB)
    w.share("j-1", request=100)
    assert (share_of(w, "j-1"), left(w)) == ((100, 800), 900)


def test_it_grows_only_as_far_as_its_gpu_has_room_and_says_so() -> None:
    w = world(gpus=2)
    submit(w, "j-1", 0.3, spec={"pin": {"node": "node-1", "gpu": 0}})
    w.round()
    submit(w, "j-2", 0.5, spec={"pin": {"node": "node-1", "gpu": 0}})
    w.round()
    assert held(w, "j-1")[0].gpus == held(w, "j-2")[0].gpus
    (step,) = w.share("j-1", request=800)
    assert "0.8 was asked for, and GPU 0 of node-1 has no more" in step.cause.sentence
    assert (share_of(w, "j-1"), left(w)) == ((500, 1000), 0)
    (step,) = w.share("j-1", request=600, limit=500)
    assert "0.6 was asked for" in step.cause.sentence
    assert share_of(w, "j-1") == (500, 500)
    (step,) = w.share("j-1", request=600)
    assert "share stays 0.5 (up to 0.5) of a GPU, asked by alice: 0.6 was asked for" in step.cause.sentence
    assert w.share("j-1", request=500) == []


def test_ranks_get_the_same_share_and_several_on_one_gpu_divide_it() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.2, replicas=3)
    w.round()
    (step,) = w.share("j-1", request=900)
    assert "0.9 was asked for" in step.cause.sentence
    assert [share_of(w, "j-1", rank) for rank in range(3)] == [(333, 1000)] * 3
    assert left(w) == 1


def test_ranks_with_different_shares_are_raised_no_further_than_their_gpu_has() -> None:
    """A replica that joins later has what its specification requests; its peers may have been given more."""
    w = world(gpus=1)
    role = {"share": {"request": 0.25, "limit": 1.0, "memory": "1GiB"}, "replicas": {"min": 0, "want": 1, "max": 4}}
    w.submit("j-1", gpus=0, spec=service(role=role))
    w.round()
    w.share("j-1", request=600)
    w.scale("j-1", worker=2)
    w.round()

    def requests() -> list[int]:
        return [one.share.request for one in held(w, "j-1") if one.share is not None]

    assert requests() == [600, 250]
    (step,) = w.share("j-1", request=1000)
    assert requests() == [600, 400], "what is left goes to those that have least"
    raised = "share 0.25 (up to 1) → 0.4 (up to 1) of a GPU, asked by alice"
    assert step.cause.sentence == f"{raised}: 1 was asked for, and GPU 0 of node-1 has no more"
    w.share("j-1", request=500)
    assert requests() == [500, 400], "less is given at once"


def test_a_limit_is_never_less_than_its_request() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.5)
    w.round()
    w.share("j-1", limit=300)
    assert share_of(w, "j-1") == (500, 500)
    w.share("j-1", request=700)
    assert share_of(w, "j-1") == (700, 700)


def test_what_no_share_can_be_changes_nothing() -> None:
    w = world(gpus=2)
    submit(w, "j-1", 0.5)
    w.submit("j-2", gpus=1)
    w.round()
    assert w.share("j-1", request=0) == []
    assert w.share("j-1", request=1001) == []
    assert w.share("j-1", limit=-1) == []
    assert w.share("j-1", request=600, role="ps") == []
    assert w.share("j-2", request=500) == []
    assert w.share("j-9", request=500) == []
    submit(w, "j-3", 0.9)
    assert w.share("j-3", request=500) == []  # it waits
    assert share_of(w, "j-1") == (500, 1000)


def test_what_the_reallocator_asked_for_is_dropped_once_its_user_has_asked_or_it_started_anew() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.5)
    w.round()
    assert w.share("j-1", request=600, instead_of=400) == []
    assert w.share("j-1", request=600, epoch=1) == []
    cause = Cause(code=CauseCode.SHARE_USED, sentence="it uses all of it")
    [step] = w.share("j-1", request=600, instead_of=500, epoch=0, cause=cause)
    assert (step.cause, share_of(w, "j-1")) == (cause, (600, 1000))


def test_what_one_gives_back_another_gets() -> None:
    w = world(gpus=1)
    submit(w, "j-1", 0.8)
    w.round()
    submit(w, "j-2", 0.5)
    w.round()
    assert w.state("j-2") is S.QUEUED
    w.share("j-1", request=500)
    w.round()
    assert w.state("j-2") is S.RUNNING


def test_on_a_node_that_is_kept_for_a_waiting_job_a_share_grows_back_to_what_was_asked_for_and_no_further() -> None:
    w = world(gpus=1, settings=Settings(patience_seconds=100.0))
    submit(w, "j-1", 0.5)
    w.round()
    w.share("j-1", request=300)
    w.submit("j-whole", gpus=1)
    w.round()
    w.tick(101.0)
    w.round()
    assert w.state("j-whole") is S.QUEUED
    w.share("j-1", request=800)
    (one,) = held(w, "j-1")
    assert one.share is not None
    assert one.share.request == 500
