"""What is told of loans: why a service has less than it should have, and what a job lent."""

from typing import Any

from msgspec import structs
from rich.console import Console

from tests.support.builders import GIB, job, node
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState, Loan, Placement, Revision
from weft.messages.http.explanation import Explanation
from weft.planning.reasons.explain import explain
from weftd.cli.rendering.context import RenderContext
from weftd.cli.rendering.explanation import explanation


def held(job_id: str, gpus: list[int], *, wants: int, extra: int = 0, leaving: int = 0, **fields: Any) -> Job:
    """On node-1; the last `extra` ranks are beyond its core, and of those the last `leaving` leave."""
    last = len(gpus)
    allocations = tuple(
        Allocation(
            rank=rank,
            role="worker",
            node_id="node-1",
            gpus=(gpu,),
            cpus=1.0,
            memory=GIB,
            extra=rank >= last - extra,
            leaving=rank >= last - leaving,
        )
        for rank, gpu in enumerate(gpus)
    )
    return job(
        job_id,
        state=JobState.RUNNING,
        placement=Placement(allocations=allocations, why="packed"),
        started_at=0.0,
        size={"worker": wants},
        **fields,
    )


def service(gpus: list[int], *, wants: int, **fields: Any) -> Job:
    spec = {"kind": "inference", "service": {}, "role": {"replicas": {"min": 0, "want": 1, "max": 8}}, "name": "chat"}
    return held("j-s", gpus, wants=wants, extra=len(gpus), spec=spec, **fields)


def elastic(job_id: str, gpus: list[int], *, wants: int, leaving: int = 0, **of_spec: Any) -> Job:
    spec = {"role": {"replicas": {"min": 1, "want": 2, "max": 4}}, "resize": {"how": "live"}, **of_spec}
    return held(job_id, gpus, wants=wants, extra=len(gpus) - 1, leaving=leaving, spec=spec)


def why(about: Job, *others: Job) -> Explanation:
    return explain(about, nodes=[node(gpus=4, seen_at=60.0)], holding=[about, *others], queued=[], now=60.0)


def drawn(told: Explanation) -> str:
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(explanation(told, RenderContext(now=60.0), emulated={}))
    return capture.get()


def test_a_service_that_nobody_lends_anything_says_how_many_jobs_do_not_and_why() -> None:
    told = why(service([0], wants=3), elastic("j-1", [1], wants=1), elastic("j-2", [2, 3], wants=2, priority=5))
    assert told.code == CauseCode.NO_ROOM
    assert told.sentence.startswith(
        "has 1 of 3 replicas: wants 1 GPU on one node; none is free;"
        " no job may lend it ranks: 1 of higher priority, 1 without a rank to spare; it is on node-1"
    )
    assert (told.numbers["replicas"], told.numbers["replicas_missing"]) == (1.0, 2.0)
    assert (told.numbers["jobs_that_may_lend"], told.numbers["jobs_that_lend_nothing"]) == (0.0, 2.0)
    assert [holder.job_id for holder in told.holders] == ["j-2", "j-1"]


def test_jobs_that_may_lend_are_counted_and_those_that_do_are_named() -> None:
    assert "; 1 job may lend it ranks; " in why(service([0], wants=2), elastic("j-1", [1, 2, 3], wants=3)).sentence
    leaving = elastic("j-1", [1, 2, 3], wants=3, leaving=1)
    assert "; these jobs leave to make room: j-1; " in why(service([0], wants=2), leaving).sentence
    stops = structs.replace(
        elastic("j-1", [1, 2, 3], wants=3),
        state=JobState.STOPPING,
        stopping_for=Cause(code=CauseCode.LENT, by="j-s"),
    )
    assert "; these jobs leave to make room: j-1; " in why(service([0], wants=2), stops).sentence


def test_a_service_that_has_what_it_should_have_and_one_for_which_there_is_room_are_told_so() -> None:
    assert why(service([0], wants=1)).sentence == "it is on node-1: packed"
    assert why(service([], wants=0)).sentence == "it has no replica now"
    assert why(service([0], wants=2)).sentence.endswith("has 1 of 2 replicas: there is room for one more, which joins"
                                                        " in the next cycle")  # fmt: skip


def test_a_lender_says_what_it_lent_until_it_has_grown_back() -> None:
    loans = (Loan(lender="j-1", rank=3, gpus=1.0, ranks=1, since=20.0), Loan(lender="j-9", rank=4, gpus=0.5, ranks=1))
    borrower = service([0], wants=1, loans=loans)
    lender = elastic("j-1", [1, 2], wants=3)
    told = why(lender, borrower)
    assert [(one.service, one.name, one.gpus, one.ranks, one.since) for one in told.lent] == [
        ("j-s", "chat", 1.0, 1, 20.0)
    ]
    assert "lent to services; the job takes GPUs back once some are free again:" in drawn(told)
    assert "1 GPU to chat (j-s), for 40s" in drawn(told)
    assert why(elastic("j-1", [1, 2, 3], wants=3), borrower).lent == ()


def test_a_job_that_gave_way_as_a_whole_says_so_while_it_waits() -> None:
    borrower = service([0, 1, 2, 3], wants=4, loans=(Loan(lender="j-1", rank=3, gpus=1.0, since=20.0),))
    waits = job("j-1", since=30.0)
    told = explain(waits, nodes=[node(gpus=4)], holding=[borrower], queued=[waits], now=60.0)
    assert [(one.service, one.ranks) for one in told.lent] == [("j-s", 0)]
    assert "the whole job gave way" in drawn(told)


def test_an_update_without_room_beside_the_only_replica_says_so_and_who_holds_the_room() -> None:
    updated = structs.replace(service([0], wants=1), revisions=(Revision(number=1),))
    told = why(updated, elastic("j-1", [1, 2, 3], wants=3))
    assert told.code == CauseCode.NO_ROOM
    assert told.sentence.startswith(
        "its update to revision 1 waits for room beside its only replica, which serves meanwhile:"
        " wants 1 GPU on one node; none is free; it is on node-1"
    )
    assert (told.numbers["replicas_to_update"], told.numbers["gpus"]) == (1.0, 1.0)
    assert [(holder.job_id, holder.gpus) for holder in told.holders] == [("j-1", 3.0)]
    assert why(updated).sentence == "it is on node-1: packed", "there is room"
    assert why(service([0], wants=1), elastic("j-1", [1, 2, 3], wants=3)).sentence == "it is on node-1: packed"
