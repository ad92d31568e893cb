"""What a router reads of the jobs that serve requests, and the asks and columns of services; in every store."""

import json
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from tests.support import postgres
from tests.support.builders import spec
from tests.support.steps import GIB, go
from tests.support.stores import AT, World
from weft.domain.job import Allocation, JobEvent, Loan, Placement, Revision
from weft.domain.spec import Kind, ServiceRules
from weft.domain.tenants import Allowance
from weft.messages.asks import AskKind, Update
from weft.store import ASKS_BYTES_MAX, LARGE_ASK_BYTES, LargeAskWaitsError, TenantFullError, UnlawfulError

_E = JobEvent
REPLICA = Allocation(rank=7, role="server", node_id="node-1", gpus=(1,), cpus=1.0, memory=GIB, extra=True, revision=1)


def serving(name: str = "chat", **fields: Any) -> Any:
    roles = {"server": {"replicas": {"min": 0, "want": 1, "max": 8}, "env": {"SECRET": "x"}}}
    made = {"kind": "inference", "service": {"ready": "/healthz", "concurrency": 4}, "roles": roles, **fields}
    return spec(name, **made)


async def admitted(world: World, job_id: str, wanted: Any) -> Any:
    lease = await world.scheduler.lease("default") or await world.lead()
    await world.gateway.submit(wanted, job_id=job_id, tenant="alice", key=None, at=AT)
    (job,) = await world.scheduler.admit(lease, load=0, pool="default", limit=10)
    return lease, job


async def test_a_router_reads_the_open_jobs_that_serve_requests_and_no_other(world: World) -> None:
    lease, job = await admitted(world, "j-1", serving())
    await admitted(world, "j-2", spec("train"))
    await admitted(world, "j-3", serving("book", kind="notebook", roles={"worker": {}}))
    assert [(one.id, one.kind, one.wanted) for one in await world.router.open_services()] == [
        ("j-1", Kind.INFERENCE, 1),
        ("j-3", Kind.NOTEBOOK, 1),
    ]
    job = await go(world.scheduler, lease, job, _E.SCALED, at=AT, size={"server": 5})
    where = Placement(allocations=(REPLICA,), master_port=20000, ranks_used=8)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 1, placement=where)
    (seen,) = await world.router.open_services(job_ids=["j-1", "j-2", "j-9"])
    assert (seen.wanted, seen.placement, seen.epoch, seen.version) == (5, where, 0, job.version)
    assert seen.rules == ServiceRules(ready="/healthz", concurrency=4)
    assert not seen.served
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 1)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 1)
    job = await go(world.scheduler, lease, job, _E.RESIZED, at=AT + 1, placement=where, worked={"server": 1})
    assert [one.served for one in await world.router.open_services()] == [True, False]
    await go(world.scheduler, lease, job, _E.FAILED, at=AT + 2)
    assert [one.id for one in await world.router.open_services()] == ["j-3"]
    assert await world.router.open_services(job_ids=[]) == []


async def use(world: World) -> int:
    (kept,) = await world.gateway.tenants(tenant="alice")
    return kept.use.spec_bytes


async def test_revisions_and_loans_are_stored_with_the_steps_that_change_them(world: World) -> None:
    lease, job = await admitted(world, "j-1", serving())
    assert (job.revisions, job.loans) == ((), ())
    revision = Revision(number=1, image="chat:2", command=("serve",), env={"A": "é"}, at=AT, back_to=0)
    job = await go(world.scheduler, lease, job, _E.UPDATED, at=AT, revisions=(revision,))
    where = Placement(allocations=(REPLICA,), master_port=20000, ranks_used=8)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT, placement=where)
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT)
    loan = Loan(lender="j-0", rank=7, gpus=0.25, ranks=2, since=AT)
    job = await go(world.scheduler, lease, job, _E.RESIZED, at=AT, placement=where, loans=(loan,))
    assert (job.revisions, job.revision, job.loans) == ((revision,), 1, (loan,))
    (same,) = await world.scheduler.open_jobs(pool="default")
    assert same == job
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT)
    assert (job.revisions, job.loans) == ((revision,), ()), "what was borrowed ends with the epoch"


async def test_revisions_count_for_their_tenant_as_long_as_the_job_is_open_and_names_them(world: World) -> None:
    await world.gateway.add_token(bytes(32), tenant="alice", admin=False, label="a", at=AT)
    lease, job = await admitted(world, "j-1", serving())
    at_first = await use(world)
    first = Revision(number=1, env={"A": "é" * 5000}, at=AT, back_to=0)
    job = await go(world.scheduler, lease, job, _E.UPDATED, at=AT, revisions=(first,))
    with_one = await use(world)
    assert 10_000 < with_one - at_first < 10_100
    second = Revision(number=2, env={"B": "x" * 3000}, at=AT, back_to=1)
    job = await go(world.scheduler, lease, job, _E.UPDATED, at=AT, revisions=(first, second))
    assert 3_000 < await use(world) - with_one < 3_100
    ready = structs.replace(second, back_to=None)
    job = await go(world.scheduler, lease, job, _E.UPDATED, at=AT, revisions=(ready,))
    assert 3_000 < await use(world) - at_first < 3_100
    (same,) = await world.scheduler.open_jobs(pool="default")
    assert same.revisions == (ready,)
    job = await go(world.scheduler, lease, job, _E.CANCELLED, at=AT)
    assert await use(world) == 0
    again = {"job_id": "j-1", "pool": "default", "tenant": "alice", "at": AT}
    with pytest.raises(TenantFullError, match="spec_bytes_max"):
        await world.gateway.ask_requeue(**again, allowance=Allowance(spec_bytes_max=at_first + 1000))
    await world.gateway.ask_requeue(**again, allowance=Allowance(spec_bytes_max=at_first + 4000))
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT)
    assert (job.revisions, 3_000 < await use(world) - at_first < 3_100) == ((ready,), True)


async def test_an_ask_counts_by_its_bytes_until_it_is_done_and_none_is_stored_beyond_them(world: World) -> None:
    await world.gateway.add_token(bytes(32), tenant="alice", admin=False, label="a", at=AT)
    lease, _ = await admitted(world, "j-1", serving())
    before = await use(world)
    most = Allowance(spec_bytes_max=before + 25_000)
    asked = {"subject_id": "j-1", "pool": "default", "tenant": "alice", "at": AT, "allowance": most}
    for number in range(2):
        await world.gateway.ask(AskKind.UPDATE, update=Update(env={f"A{number}": "x" * 10_000}), **asked)
    held = await use(world)
    assert 20_000 < held - before < 20_100
    small = Update(env={"A": "x"})
    for adds_bytes, update in ((0, Update(env={"A": "x" * 6000})), (6000, small)):
        with pytest.raises(
            TenantFullError, match=rf"spec_bytes_max: .* have {held} bytes, .* add 60\d\d, .*{before + 25_000}"
        ):
            await world.gateway.ask(AskKind.UPDATE, update=update, adds_bytes=adds_bytes, **asked)
    assert await use(world) == held
    await world.gateway.ask(AskKind.CANCEL, **asked)
    with pytest.raises(TenantFullError):
        await world.gateway.submit(
            serving(env={"A": "x" * 6000}), job_id="j-2", tenant="alice", key=None, at=AT, allowance=most
        )
    (only,) = await world.scheduler.asks(pool="default", limit=10, bytes_max=1)
    assert len(await world.scheduler.asks(pool="default", limit=10, bytes_max=11_000)) == 2
    await world.scheduler.drop_asks(lease, [only.id])
    assert 10_000 < await use(world) - before < 10_100
    await world.gateway.ask(AskKind.UPDATE, update=Update(env={"A": "x" * 6000}), **asked)


async def test_a_large_ask_is_not_stored_while_large_ones_of_its_tenant_wait(world: World) -> None:
    await world.gateway.add_token(bytes(32), tenant="alice", admin=False, label="a", at=AT)
    lease, _ = await admitted(world, "j-1", serving())
    asked = {"subject_id": "j-1", "pool": "default", "tenant": "alice", "at": AT, "allowance": Allowance()}
    large = Update(env={"A": "x" * LARGE_ASK_BYTES})
    for _ in range(ASKS_BYTES_MAX // LARGE_ASK_BYTES):
        await world.gateway.ask(AskKind.UPDATE, update=large, **asked)
    held = await use(world)
    with pytest.raises(LargeAskWaitsError, match=r"with 26\d{4} bytes are not done yet; .* more than 65536 bytes"):
        await world.gateway.ask(AskKind.UPDATE, update=large, **asked)
    assert await use(world) == held
    await world.gateway.ask(AskKind.UPDATE, update=Update(env={"A": "x" * 60_000}), **asked)
    await world.gateway.ask(AskKind.UPDATE, update=large, **(asked | {"tenant": "bob"}))
    await world.gateway.ask(AskKind.UPDATE, update=large, **(asked | {"allowance": None}))
    waiting = await world.scheduler.asks(pool="default", limit=10, bytes_max=10 * ASKS_BYTES_MAX)
    await world.scheduler.drop_asks(lease, [ask.id for ask in waiting if ask.tenant == "alice"])
    await world.gateway.ask(AskKind.UPDATE, update=large, **asked)


async def test_an_event_has_the_names_of_an_environment_and_no_values(world: World) -> None:
    lease, job = await admitted(world, "j-1", serving())
    revision = Revision(number=1, image="chat:2", command=("serve", "x" * 5000), env={"KEY": "secret-value"}, at=AT)
    await go(world.scheduler, lease, job, _E.UPDATED, at=AT, revisions=(revision,))
    told = (await world.gateway.story("j-1"))[-1]
    assert b"secret-value" not in bytes(told.data)
    assert json.loads(bytes(told.data))["revisions"] == [
        {"number": 1, "image": "chat:2", "env_names": ["KEY"], "at": AT}
    ], "a command of more than 4 KiB is left out"


async def test_an_ask_for_an_update_says_what_is_to_run(world: World) -> None:
    await admitted(world, "j-1", serving())
    update = Update(image="chat:2", env={"A": "", "B": "é"})
    await world.gateway.ask(AskKind.UPDATE, subject_id="j-1", pool="default", tenant="alice", at=AT, update=update)
    (ask,) = await world.scheduler.asks(pool="default", limit=10)
    assert (ask.kind, ask.update, ask.scale, ask.share) == (AskKind.UPDATE, update, None, None)


async def test_a_router_may_read_no_specification_and_change_nothing(real: postgres.Stores) -> None:
    for call in (
        real.router.job("j-1"),
        real.router.events(),
        real.router.ask(AskKind.CANCEL, subject_id="j-1", pool="default", tenant="alice", at=AT),
        real.router.token_used(bytes(32), at=AT, not_within=0.0),
        real.router.tokens(),
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await call
    await real.gateway.add_token(bytes(32), tenant="alice", admin=True, label="x", at=AT)
    access = await real.router.access(bytes(32), at=AT)
    assert access is not None
    assert (access.tenant, access.admin) == ("alice", True)
    assert await real.router.nodes() == []


async def test_an_ask_of_another_kind_has_no_update(real: postgres.Stores) -> None:
    for kind, update in ((AskKind.CANCEL, Update(image="x")), (AskKind.UPDATE, None)):
        with pytest.raises(UnlawfulError, match="asks_update_check"):
            await real.gateway.ask(kind, subject_id="j-1", pool="default", tenant="a", at=AT, update=update)
