"""What is kept for a limited time, and what goes with it."""

from tests.support.builders import node, spec
from tests.support.stores import AT, World, names, told
from weft.domain.job import STEPS, Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.lease import Lease
from weft.messages.asks import AskKind
from weft.messages.signals import Curve, CurvePoint, GpuScore
from weft.store import JobsKept
from weft.store.accounts import Moment
from weft.store.migrate import migrations
from weft.store.tuning import Envelope

DAY = 86400.0
KEPT = 90 * DAY
_E, _S = JobEvent, JobState


async def cancelled(world: World, lease: Lease, job: Job, *, at: float) -> None:
    step = Step(
        job_id=job.id,
        version=job.version,
        event=_E.CANCELLED,
        to=STEPS[job.state, _E.CANCELLED],
        at=at,
        cause=Cause(code=CauseCode.CANCEL_ASKED, sentence="cancelled"),
        epoch=job.epoch,
    )
    assert await world.take(lease, step) == [True]


async def publish(world: World) -> None:
    await world.relay.sent(await world.relay.unsent(limit=1000))


async def ended(world: World, lease: Lease, *job_ids: str) -> None:
    """Jobs that ended one day after another, their events published."""
    for number, job in enumerate(await world.admitted(lease, *job_ids)):
        await cancelled(world, lease, job, at=AT + number * DAY)
    await publish(world)


async def forget(world: World, lease: Lease, *, before: float, limit: int = 100) -> int:
    return await world.scheduler.forget_jobs(lease, before=before, kept_seconds=KEPT, limit=limit)


async def ids(world: World) -> list[str]:
    return sorted(job.id for job in await world.gateway.jobs(tenant=None))


async def test_a_job_that_ended_long_ago_goes_with_all_that_is_stored_of_it(world: World) -> None:
    lease = await world.lead()
    await ended(world, lease, "j-old", "j-new")
    await world.admitted(lease, "j-open")
    await publish(world)
    await world.reallocator.save_envelope(Envelope(job_id="j-old", pool="default", epoch=0, state=b"{}"), at=AT)
    assert await forget(world, lease, before=AT + DAY) == 1
    assert await ids(world) == ["j-new", "j-open"]
    assert await world.gateway.job("j-old") is None
    assert await world.gateway.story("j-old") == []
    assert {event.subject_id for event in await world.gateway.events()} == {"j-new", "j-open"}
    assert names(await world.gateway.story("j-new")) == ["submitted", "cancelled"]
    assert await forget(world, lease, before=AT + DAY) == 0
    assert await world.gateway.told_until(Moment(at=AT + 2 * DAY)) == await world.gateway.story("j-open")


async def test_the_oldest_are_deleted_first_and_no_more_than_asked_for(world: World) -> None:
    lease = await world.lead()
    await ended(world, lease, "j-1", "j-2", "j-3")
    assert await forget(world, lease, before=AT + 10 * DAY, limit=2) == 2
    assert await ids(world) == ["j-3"]


async def test_a_job_of_another_pool_is_left_to_its_own_leader(world: World) -> None:
    lease = await world.lead()
    other = await world.lead("other")
    job_id = "j-elsewhere"
    await world.gateway.submit(spec(pool="other"), job_id=job_id, tenant="alice", key=None, at=AT)
    (job,) = await world.scheduler.admit(other, load=0, pool="other", limit=1)
    await cancelled(world, other, job, at=AT)
    await publish(world)
    assert await forget(world, lease, before=AT + DAY) == 0
    assert await forget(world, other, before=AT + DAY) == 1


async def test_a_job_stays_while_something_is_asked_of_it_or_an_event_of_it_is_not_published(world: World) -> None:
    lease = await world.lead()
    await ended(world, lease, "j-asked")
    (unpublished,) = await world.admitted(lease, "j-unpublished")
    await cancelled(world, lease, unpublished, at=AT)
    await world.gateway.ask(AskKind.REQUEUE, subject_id="j-asked", pool="default", tenant="alice", at=AT)
    assert await forget(world, lease, before=AT + DAY) == 0
    await world.scheduler.drop_asks(lease, [ask.id for ask in await world.scheduler.asks(pool="default", limit=9)])
    await publish(world)
    assert await forget(world, lease, before=AT + DAY) == 2


async def test_the_key_of_a_job_that_was_deleted_makes_a_new_job(world: World) -> None:
    lease = await world.lead()
    await world.gateway.submit(spec(), job_id="j-1", tenant="alice", key="once", at=AT)
    (job,) = await world.scheduler.admit(lease, load=0, pool="default", limit=1)
    await cancelled(world, lease, job, at=AT)
    await publish(world)
    await forget(world, lease, before=AT + DAY)
    assert await world.gateway.submitted(spec(), tenant="alice", key="once") is None
    again = await world.gateway.submit(spec("another"), job_id="j-2", tenant="alice", key="once", at=AT + DAY)
    assert (again.job_id, again.created) == ("j-2", True)
    (job,) = await world.scheduler.admit(lease, load=0, pool="default", limit=1)
    assert job.seq > 1


async def test_how_long_jobs_are_kept_can_be_read_by_a_gateway(world: World) -> None:
    lease = await world.lead()
    assert await world.gateway.jobs_kept() == []
    await forget(world, lease, before=AT + DAY)
    await forget(world, lease, before=AT)  # a leader with a slow clock
    assert await world.gateway.jobs_kept() == [JobsKept(pool="default", seconds=KEPT, forgotten_before=AT + DAY)]


async def test_a_gateway_reads_how_the_database_is(world: World) -> None:
    assert (await world.gateway.database_status()).asks == 0
    await world.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
    status = await world.gateway.database_status()
    assert (status.ran, status.asks, status.unsent) == (migrations(), 1, 1)
    assert 0 < status.connections < status.connections_max


async def test_a_node_that_is_removed_is_told_and_goes_on_counting_when_it_joins_again(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(seen_at=AT), event="joined", cause="joined")
    await world.scheduler.save_node(lease, node(seen_at=AT, ready=False), event="lost", cause="silent")
    await world.scheduler.remove_node(lease, "node-1", cause="was lost for 30 days", at=AT + 30 * DAY)
    await world.scheduler.remove_node(lease, "node-1", cause="again", at=AT + 30 * DAY)
    assert await world.gateway.nodes() == []
    *_, removed = await world.gateway.events()
    facts = told(removed)
    assert (removed.event, removed.version, removed.at) == ("removed", 3, AT + 30 * DAY)
    assert (facts["node_id"], facts["sentence"], facts["ready"]) == ("node-1", "was lost for 30 days", False)
    await world.scheduler.save_node(lease, node(seen_at=AT), event="joined", cause="joined")
    assert [event.version for event in await world.gateway.events()] == [1, 2, 3, 4]


async def test_of_the_events_of_nodes_the_last_before_the_retention_stays(world: World) -> None:
    lease = await world.lead()
    for number, event in enumerate(("joined", "drained", "resumed", "drained")):
        await world.scheduler.save_node(lease, node(seen_at=AT), event=event, cause=event, at=AT + number * DAY)
    assert await forget(world, lease, before=AT + 2.5 * DAY) == 0  # none is published
    await publish(world)
    assert await forget(world, lease, before=AT + 2.5 * DAY, limit=1) == 1
    assert await forget(world, lease, before=AT + 2.5 * DAY) == 1
    assert names(await world.gateway.events()) == ["resumed", "drained"]
    await world.scheduler.remove_node(lease, "node-1", cause="gone", at=AT + 10 * DAY)
    await publish(world)
    assert await forget(world, lease, before=AT + 11 * DAY) == 3
    assert await world.gateway.events() == []


async def test_scores_of_nodes_that_are_gone_and_old_curves_go(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(seen_at=AT), event="joined", cause="joined")

    def score(node_id: str) -> GpuScore:
        return GpuScore(node_id=node_id, gpu_index=0, job_class="compute", score=1.0)

    def curve(subject: str, at: float) -> Curve:
        return Curve(subject=subject, pool="default", points=(CurvePoint(replicas=1, cpus=4.0, speed=1.0),), at=at)

    await world.scorer.save_scores([score("node-1"), score("node-gone")], at=AT)
    await world.scorer.save_scores([score("node-gone-lately")], at=AT + DAY)
    assert await world.scorer.forget_scores(before=AT + DAY) == 1
    assert await world.scorer.forget_scores(before=AT + 2 * DAY) == 1
    assert len(await world.gateway.scores(pool="default")) == 1
    await world.scorer.save_curves([curve("job:j-1", AT), curve("job:j-2", AT + DAY)])
    assert await world.scorer.forget_curves(before=AT + DAY) == 1
    left = await world.gateway.curves(pool="default", subjects=["job:j-1", "job:j-2"])
    assert [one.subject for one in left] == ["job:j-2"]


async def test_tokens_that_ended_long_ago_go_but_for_those_of_a_file(world: World) -> None:
    for number, (label, expires_at) in enumerate(
        (("expired", AT + 1), ("in-force", None), ("revoked", None), ("file-0123456789ab", None))
    ):
        await world.gateway.add_token(
            bytes([number] * 32), tenant="alice", admin=False, label=label, at=AT, expires_at=expires_at
        )
    for label in ("revoked", "file-0123456789ab"):
        await world.gateway.revoke_tokens(tenant="alice", label=label, at=AT + 2)
    assert await world.gateway.forget_tokens(before=AT + 1.5) == 1
    assert await world.gateway.forget_tokens(before=AT + DAY) == 1
    assert sorted(token.label for token in await world.gateway.tokens()) == ["file-0123456789ab", "in-force"]
