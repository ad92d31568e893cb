"""Another share of a GPU, over a real Postgres and a real NATS: what is stored, what is refused, and what is shown."""

from typing import Any

import pytest
from msgspec import structs

from tests.support.gateway_world import World, error_of
from tests.support.steps import GIB, placement
from weft.domain.job import Cause, CauseCode, Job, JobEvent, Placement
from weft.domain.shares import Share
from weft.messages.asks import AskKind, Reshare


def placed(*requests: int) -> Placement:
    """One rank for each request, all on GPU 0 of node-1."""
    where = placement(*(("node-1", 0) for _ in requests))
    ranks = (
        structs.replace(one, share=Share(request=request, memory=GIB))
        for one, request in zip(where.allocations, requests, strict=True)
    )
    return structs.replace(where, allocations=tuple(ranks))


async def running(world: World, *requests: int, **says: Any) -> Job:
    role = {"share": {"request": 0.25, "memory": "1GiB"}, "replicas": {"want": len(requests)}}
    return await world.running(placement=placed(*requests), gpus=0, role=role, **says)


async def test_the_share_that_is_asked_for_is_stored_for_the_scheduler(world: World) -> None:
    job = await running(world, 250)
    accepted = await world.alice.share(job.id, request=0.5, limit=0.8)
    assert (accepted.id, accepted.ask, accepted.state) == (job.id, AskKind.SHARE, "running")
    await world.admin.share(job.id, limit=1.0, role="worker")
    stored = await world.take_asks()
    assert [(ask.kind, ask.subject_id, ask.tenant, ask.share) for ask in stored] == [
        (AskKind.SHARE, job.id, "alice", Reshare(request=500, limit=800)),
        (AskKind.SHARE, job.id, "admin", Reshare(limit=1000, role="worker")),
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, ""),
        ({"request": 0.5, "limit": 0.4}, ""),
        ({"request": 1.5}, "request"),
        ({"request": -1}, "request"),
        ({"request": 0.00001}, ""),
        ({"request": "half"}, "request"),
        ({"request": 0.5, "gpus": 1}, "gpus"),
        ({"request": 0.5, "role": "ps"}, "role"),
    ],
)
async def test_what_is_no_share_names_its_field_and_stores_nothing(
    world: World, body: dict[str, Any], field: str
) -> None:
    job = await running(world, 250)
    status, answer, _ = await world.ask("POST", f"/v1/jobs/{job.id}/share", json=body)
    assert (status, error_of(answer)[0]) == (400, field)
    assert await world.place.stores.scheduler.asks(pool="default", limit=10) == []


async def test_a_job_without_a_share_or_that_does_not_run_conflicts_and_anothers_is_not_there(world: World) -> None:
    whole = await world.running(placement=placement(("node-1", 1)))
    waits = await world.submitted(gpus=0, role={"share": {"request": 0.25, "memory": "1GiB"}})
    for job, token, expected in ((whole, "alice", 409), (waits, "alice", 409), (whole, "bob", 404)):
        status, answer, _ = await world.ask("POST", f"/v1/jobs/{job.id}/share", token=token, json={"request": 0.5})
        assert (status, error_of(answer)[0]) == (expected, "job")


async def test_another_share_is_told_and_shown(world: World) -> None:
    job = await running(world, 250, 250)
    cause = Cause(code=CauseCode.SHARE_ASKED, sentence="share 0.25 → 0.5")
    await world.go(job, JobEvent.TUNED, cause=cause, placement=placed(500, 500))
    view = await world.alice.job(job.id)
    assert view.gpus == 1
    assert [run.share for run in view.runs] == [Share(request=500, memory=GIB)] * 2
    gpu = next(gpu for gpu in (await world.alice.gpus(node="node-1")).gpus if gpu.index == 0)
    assert [(one.job_id, one.rank, one.share) for one in gpu.sharing] == [
        (job.id, rank, Share(request=500, memory=GIB)) for rank in (0, 1)
    ]
    told = (await world.alice.story(job.id))[-1]
    assert told.type == "weft.jobs.tuned"
    assert told.data.cause == cause
    assert told.data.placement is not None
    assert [one.share for one in told.data.placement.allocations] == [Share(request=500, memory=GIB)] * 2
    before = await world.alice.job(job.id, at=(await world.alice.story(job.id))[-2].cursor)
    assert before.gpus == 0.5
