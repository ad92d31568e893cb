"""What every store promises, whether it is in one process or in a Postgres, each role with its own rights there."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs

from libs.domain.job import STEPS, Cause, CauseCode, Job, JobEvent, JobState, Step
from libs.messages.asks import AskKind, RankTuning, Tune
from libs.messages.events import Event
from libs.messages.history import Record
from libs.messages.signals import Curve, CurvePoint, GpuScore, WorkloadClass
from libs.store import (
    Access,
    DoubleAllocationError,
    Envelope,
    GatewayStore,
    KeyReusedError,
    Lease,
    LeaseLostError,
    Moment,
    RelayStore,
    ReviewStore,
    SchedulerStore,
    ScorerStore,
    StoreUnavailableError,
    TokenKept,
    UnlawfulError,
)
from libs.store.memory import MemoryStore
from libs.store.postgres import PostgresStore
from tests.simulation.database import Database, SimStore
from tests.simulation.history import History
from tests.simulation.place import Place
from tests.support import postgres
from tests.support.builders import node, spec
from tests.support.steps import go, placement, step
from tests.support.story import documents, tell_everything
from tests.support.virtual_time import Process

AT = 1_700_000_000.0
_E, _S = JobEvent, JobState

REAL = ("embedded", pytest.param("container", marks=pytest.mark.docker))


class World(Struct):
    """One empty store, as each of those who use it sees it."""

    gateway: GatewayStore
    scheduler: SchedulerStore
    relay: RelayStore
    scorer: ScorerStore
    reallocator: ReviewStore

    async def lead(self, pool: str = "default", *, holder: str = "me") -> Lease:
        lease = await self.scheduler.take_lease(pool, holder=holder, seen=await self.scheduler.lease(pool))
        assert lease is not None
        return lease

    async def admitted(self, lease: Lease, *job_ids: str, **fields: Any) -> list[Job]:
        for job_id in job_ids:
            await self.gateway.submit(spec(**fields), job_id=job_id, tenant="alice", key=None, at=AT)
        born = await self.scheduler.admit(lease, pool=lease.name, limit=1000)
        assert [job.id for job in born] == list(job_ids)
        return born

    async def take(self, lease: Lease, *steps: Step) -> list[bool]:
        return await self.scheduler.take(lease, steps)

    async def known(self, job_id: str) -> Job:
        job = await self.gateway.job(job_id)
        assert job is not None
        return job


class Servers:
    """Starts each server when it is first asked for; all end with the session."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, stack: AsyncExitStack) -> None:
        self._folders = tmp_path_factory
        self._stack = stack
        self._known: dict[str, postgres.Stores] = {}
        self._missing: dict[str, str] = {}

    async def empty(self, kind: str) -> postgres.Stores:
        if kind in self._missing:
            pytest.skip(self._missing[kind])
        try:
            return await self._emptied(kind)
        except pytest.skip.Exception as skipped:
            self._missing[kind] = str(skipped)
            raise

    async def _emptied(self, kind: str) -> postgres.Stores:
        if kind not in self._known:
            making = postgres.container() if kind == "container" else postgres.embedded(self._folders.mktemp(kind))
            server = await self._stack.enter_async_context(making)
            self._known[kind] = await self._stack.enter_async_context(postgres.stores(server))
        await self._known[kind].clear()
        return self._known[kind]


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield Servers(tmp_path_factory, stack)


def simulated() -> Any:
    """The store of the simulation, while nothing is wrong with it."""
    loop = asyncio.get_running_loop()
    database = Database(MemoryStore(), loop, random.Random(1), History(loop, trace=False))
    return SimStore(database, Place(Process("test", loop), loop))


@pytest.fixture(params=["memory", "simulated", *REAL])
async def world(request: pytest.FixtureRequest, servers: Servers) -> World:
    if request.param in ("memory", "simulated"):
        store = MemoryStore() if request.param == "memory" else simulated()
        return World(store, store, store, store, store)
    stores = await servers.empty(request.param)
    return World(stores.gateway, stores.scheduler, stores.scheduler, stores.scorer, stores.reallocator)


@pytest.fixture(params=REAL)
async def real(request: pytest.FixtureRequest, servers: Servers) -> postgres.Stores:
    return await servers.empty(request.param)


def told(event: Event) -> dict[str, Any]:
    """What an event says, with its numbers as numbers."""
    found: dict[str, Any] = json.loads(bytes(event.data))
    return found


def names(events: list[Event]) -> list[str]:
    return [event.event for event in events]


# submissions


async def test_a_submission_is_queued_and_told_before_any_scheduler_saw_it(world: World) -> None:
    asked = spec(priority=7, roles={"ps": {}, "worker": {"gpus": 2}})
    submitted = await world.gateway.submit(asked, job_id="j-1", tenant="alice", key=None, at=AT)
    assert (submitted.job_id, submitted.created) == ("j-1", True)
    job = await world.known("j-1")
    assert job == Job(
        id="j-1", tenant="alice", spec=asked, seq=job.seq, submitted_at=AT, since=AT, priority=7, version=1
    )
    assert await world.gateway.jobs(tenant="alice", states=[_S.QUEUED]) == [job]
    assert await world.scheduler.open_jobs(pool="default") == []  # admitting it is how a scheduler gets it
    (event,) = await world.gateway.story("j-1")
    assert (event.subject, event.version, event.tenant, event.at) == ("weft.events.jobs.submitted", 1, "alice", AT)
    assert told(event)["cause"] == {"code": "submitted", "sentence": "submitted by alice", "by": "alice"}
    assert await world.relay.unsent(limit=10) == [event]


async def test_the_order_of_roles_is_the_users(world: World) -> None:
    asked = spec(roles={"worker": {}, "ps": {}, "chief": {}}, env={"ZZ": "1", "A": "2"})
    await world.gateway.submit(asked, job_id="j-1", tenant="alice", key=None, at=AT)
    stored = (await world.known("j-1")).spec
    assert list(stored.roles) == ["worker", "ps", "chief"]
    assert list(stored.env) == ["ZZ", "A"]


async def test_one_key_submitted_by_twenty_at_once_makes_one_job(world: World) -> None:
    found = await asyncio.gather(
        *(world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key="same", at=AT) for number in range(20))
    )
    assert len({submitted.job_id for submitted in found}) == 1
    assert [submitted.created for submitted in found].count(True) == 1
    assert len(await world.gateway.jobs(tenant=None)) == 1
    assert len(await world.gateway.events()) == 1
    assert len(await world.scheduler.admit(await world.lead(), pool="default", limit=100)) == 1


async def test_a_key_belongs_to_its_tenant_and_to_one_specification(world: World) -> None:
    async def submit(job_id: str, tenant: str, name: str) -> str:
        submitted = await world.gateway.submit(spec(name), job_id=job_id, tenant=tenant, key="k", at=AT)
        return submitted.job_id

    assert await submit("j-1", "alice", "train") == "j-1"
    assert await submit("j-2", "bob", "other") == "j-2"
    assert await submit("j-3", "alice", "train") == "j-1"
    with pytest.raises(KeyReusedError, match="j-1"):
        await submit("j-4", "alice", "other")
    assert {job.id for job in await world.gateway.jobs(tenant=None)} == {"j-1", "j-2"}


async def test_the_order_in_which_env_is_written_makes_no_other_specification(world: World) -> None:
    for number, env in enumerate(({"A": "1", "B": "2"}, {"B": "2", "A": "1"})):
        submitted = await world.gateway.submit(spec(env=env), job_id=f"j-{number}", tenant="alice", key="k", at=AT)
        assert submitted.job_id == "j-0"


async def test_without_a_key_every_submission_is_a_job(world: World) -> None:
    for number in range(3):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT)
    assert [job.id for job in await world.gateway.jobs(tenant="alice")] == ["j-2", "j-1", "j-0"]


async def test_admitting_takes_the_oldest_of_its_pool_each_once(world: World) -> None:
    for number in range(5):
        asked = spec(pool="other" if number == 1 else "default", priority=number)
        await world.gateway.submit(asked, job_id=f"j-{number}", tenant="alice", key=None, at=AT + number)
    lease = await world.lead()
    first = await world.scheduler.admit(lease, pool="default", limit=2)
    second = await world.scheduler.admit(lease, pool="default", limit=10)
    assert [job.id for job in first + second] == ["j-0", "j-2", "j-3", "j-4"]
    assert await world.scheduler.admit(lease, pool="default", limit=10) == []
    assert [(job.priority, job.since, job.version) for job in first] == [(0, AT, 1), (2, AT + 2, 1)]
    assert await world.scheduler.open_jobs(pool="default") == first + second
    assert await world.gateway.queued_jobs(pool="default") == first + second
    assert await world.reallocator.open_jobs(pool="default") == first + second
    assert await world.scheduler.job("j-1") == await world.known("j-1")
    assert len(await world.gateway.events()) == 5  # admitting is no event: it was told as submitted


# jobs


async def test_jobs_are_listed_newest_first_by_tenant_state_and_name_in_pages(world: World) -> None:
    lease = await world.lead()
    for number in range(6):
        asked = spec("even" if number % 2 == 0 else "odd")
        tenant = "alice" if number < 4 else "bob"
        await world.gateway.submit(asked, job_id=f"j-{number}", tenant=tenant, key=None, at=AT)
    born = await world.scheduler.admit(lease, pool="default", limit=5)  # j-5 is not admitted
    await go(world.scheduler, lease, born[0], _E.CANCELLED, at=AT)
    where = placement(("node-1", 0))
    await go(world.scheduler, lease, born[1], _E.PLACED, at=AT, placement=where)

    async def listed(tenant: str | None = None, **filters: Any) -> list[int]:
        return [int(job.id[2:]) for job in await world.gateway.jobs(tenant=tenant, **filters)]

    assert await listed() == [5, 4, 3, 2, 1, 0]
    assert await listed("alice") == [3, 2, 1, 0]
    assert await listed("bob") == [5, 4]
    assert await listed("carol") == []
    assert await listed(name="odd") == [5, 3, 1]
    assert await listed("alice", name="even") == [2, 0]
    assert await listed(states=[_S.QUEUED]) == [5, 4, 3, 2]
    assert await listed(states=[_S.QUEUED, _S.PLACED], name="odd") == [5, 3, 1]
    assert await listed(states=[_S.CANCELLED]) == [0]
    assert await listed("alice", states=[_S.CANCELLED, _S.QUEUED]) == [3, 2, 0]
    assert await listed(limit=0) == []

    seen: list[int] = []
    before = 0
    while page := await world.gateway.jobs(tenant=None, limit=4, before=before):
        seen += [int(job.id[2:]) for job in page]
        before = page[-1].seq
    assert seen == [5, 4, 3, 2, 1, 0]
    opened = await world.gateway.jobs(tenant=None, states=[_S.QUEUED], limit=2)
    assert await listed(states=[_S.QUEUED], before=opened[-1].seq) == [3, 2]


async def test_jobs_are_found_by_what_they_do_in_their_pool(world: World) -> None:
    lease, other = await world.lead(), await world.lead("other")
    waits, holds, ended = await world.admitted(lease, "j-1", "j-2", "j-3")
    (elsewhere,) = await world.admitted(other, "j-4", pool="other")
    holds = await go(world.scheduler, lease, holds, _E.PLACED, at=AT, placement=placement(("n", 0)))
    await go(world.scheduler, lease, ended, _E.CANCELLED, at=AT)
    assert await world.gateway.queued_jobs(pool="default") == [waits]
    assert await world.gateway.holding_jobs(pool="default") == [holds]
    assert await world.scheduler.open_jobs(pool="default") == [waits, holds]
    assert await world.scheduler.open_jobs(pool="other") == [elsewhere]
    assert await world.gateway.job("j-5") is None


# steps


async def test_a_job_goes_from_step_to_step_and_its_story_says_so(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1", gpus=1)
    where = placement(("node-1", 0), why="there was room")
    cause = Cause(code=CauseCode.NO_ROOM, sentence="no room", by="x", numbers={"free": 0.5})
    job = await go(world.scheduler, lease, job, _E.WAITING, at=AT + 1, cause=cause)
    assert (job.state, job.version, job.since, job.waiting_for) == (_S.QUEUED, 2, AT, cause)
    job = await go(world.scheduler, lease, job, _E.REPRIORITISED, at=AT + 2, priority=-5)
    assert (job.priority, job.waiting_for, job.since) == (-5, cause, AT)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 3, placement=where)
    assert (job.state, job.placement, job.since, job.waiting_for) == (_S.PLACED, where, AT + 3, None)
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 4)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 5.123456)
    assert (job.state, job.started_at) == (_S.RUNNING, AT + 5.123456)
    job = await go(world.scheduler, lease, job, _E.STOPPING, at=AT + 6, cause=cause)
    assert (job.state, job.stopping_for, job.placement) == (_S.STOPPING, cause, where)
    done = {"exit_code": 1, "progress": {"step": 12.5}, "attempts": 1, "not_before": AT + 60}
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT + 7, **done)
    assert (job.epoch, job.placement, job.stopping_for, job.started_at) == (1, None, None, None)
    assert (job.attempts, job.not_before, job.exit_code, job.progress) == (1, AT + 60, 1, {"step": 12.5})
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 8, placement=where)
    assert job.exit_code is None
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 9)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 10)
    job = await go(world.scheduler, lease, job, _E.SUCCEEDED, at=AT + 11, exit_code=0)
    assert (job.state, job.ended_at, job.exit_code, job.placement) == (_S.SUCCEEDED, AT + 11, 0, where)
    assert job.progress == {"step": 12.5}

    story = await world.gateway.story("j-1")
    assert [event.version for event in story] == list(range(1, 13))
    assert story == await world.gateway.events() == await world.relay.unsent(limit=100)
    assert await world.gateway.story("j-1", after=10) == story[10:]
    assert await world.gateway.story("j-2") == []
    requeued = told(story[7])
    assert requeued == {
        "job_id": "j-1",
        "name": "train",
        "tenant": "alice",
        "pool": "default",
        "state": "queued",
        "epoch": 1,
        "version": 8,
        "priority": -5,
        "cause": {"code": "preempted", "sentence": "because of requeued"},
        "exit_code": 1,
        "progress": {"step": 12.5},
        "attempts": 1,
        "not_before": AT + 60,
    }
    assert told(story[3])["placement"] == json.loads(msgspec.json.encode(where))


async def test_of_twenty_movers_at_once_one_moves_the_job(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    moves = [step(job, _E.PLACED, at=AT, placement=placement(("n", gpu))) for gpu in range(20)]
    found = await asyncio.gather(*(world.take(lease, move) for move in moves))
    assert sorted(found) == [[False]] * 19 + [[True]]
    job = await world.known("j-1")
    assert job.version == 2
    assert job.placement == moves[found.index([True])].placement
    assert names(await world.gateway.story("j-1")) == ["submitted", "placed"]


async def test_a_job_takes_several_steps_in_one_call_and_stale_ones_are_left_out(world: World) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    placed = step(one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    stale = step(two, _E.WAITING, at=AT, version=7)
    unknown = structs.replace(stale, job_id="j-9")
    at_two = structs.replace(one, state=_S.PLACED, version=2)
    starting = step(at_two, _E.STARTING, at=AT)
    again = step(at_two, _E.STARTING, at=AT)
    started = step(structs.replace(at_two, state=_S.STARTING, version=3), _E.STARTED, at=AT)
    taken = await world.take(lease, placed, stale, starting, unknown, again, started)
    assert taken == [True, False, True, False, False, True]
    assert (await world.known("j-1")).state is _S.RUNNING
    assert await world.known("j-2") == two
    assert names(await world.gateway.events()) == ["submitted", "submitted", "placed", "starting", "started"]
    assert await world.take(lease) == []


async def test_a_gpu_given_back_in_a_call_can_be_given_again_in_it(world: World) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    one = await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    leaves = step(one, _E.REQUEUED, at=AT)
    comes = step(two, _E.PLACED, at=AT, placement=placement(("n", 0)))
    assert await world.take(lease, leaves, comes) == [True, True]


@pytest.mark.parametrize("second", [(("n", 0),), (("m", 0), ("n", 0)), (("m", 1), ("m", 1))])
async def test_a_gpu_given_twice_is_refused_and_the_whole_call_with_it(world: World, second: Any) -> None:
    lease = await world.lead()
    one, two, three = await world.admitted(lease, "j-1", "j-2", "j-3")
    await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    before = await world.gateway.events()
    waits = step(three, _E.WAITING, at=AT)
    double = step(two, _E.PLACED, at=AT, placement=placement(*second))
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, waits, double)
    assert await world.known("j-2") == two
    assert await world.known("j-3") == three
    assert await world.gateway.events() == before
    assert await world.take(lease, step(two, _E.PLACED, at=AT, placement=placement(("m", 0), ("m", 1)))) == [True]


@pytest.mark.parametrize("end", [_E.REQUEUED, _E.FAILED])
async def test_gpus_are_free_once_a_job_holds_them_no_longer_and_not_before(world: World, end: JobEvent) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    one = await go(world.scheduler, lease, one, _E.PLACED, at=AT, placement=placement(("n", 0)))
    for event in (_E.STARTING, _E.STARTED, _E.STOPPING):
        one = await go(world.scheduler, lease, one, event, at=AT)
        with pytest.raises(DoubleAllocationError):
            await world.take(lease, step(two, _E.PLACED, at=AT, placement=placement(("n", 0))))
    one = await go(world.scheduler, lease, one, end, at=AT)
    await go(world.scheduler, lease, two, _E.PLACED, at=AT, placement=placement(("n", 0)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"event": _E.STARTED, "to": _S.RUNNING},
        {"event": _E.WAITING, "to": _S.SUCCEEDED},
        {"event": _E.WAITING, "to": _S.QUEUED, "epoch": 1},
        {"event": _E.PLACED, "to": _S.PLACED},  # nowhere
    ],
)
async def test_a_step_that_is_not_legal_is_refused_and_the_whole_call_with_it(
    world: World, wrong: dict[str, Any]
) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    illegal = structs.replace(step(one, _E.WAITING, at=AT), **wrong)
    with pytest.raises(UnlawfulError):
        await world.take(lease, step(two, _E.WAITING, at=AT), illegal)
    assert await world.scheduler.open_jobs(pool="default") == [one, two]
    assert names(await world.gateway.events()) == ["submitted", "submitted"]


async def test_a_zero_byte_in_what_a_node_says_stops_nobody(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    cause = Cause(code=CauseCode.START_FAILED, sentence="could not start: \0 and \\u0000 and \\\0")
    job = await go(world.scheduler, lease, job, _E.WAITING, at=AT, cause=cause)
    assert job.waiting_for is not None
    assert "and \\u0000 and" in job.waiting_for.sentence
    await world.scheduler.save_node(lease, node(not_enforced=("a\0b",)), event="joined", cause="\0")
    assert len(await world.scheduler.nodes()) == 1


# asks


async def test_an_ask_stays_until_its_step_is_taken(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    gateway = world.gateway
    await gateway.ask(AskKind.PRIORITISE, subject_id="j-1", pool="default", tenant="bob", at=AT, priority=9)
    await gateway.ask(AskKind.CANCEL, subject_id="j-1", pool="default", tenant="bob", at=AT + 1)
    await gateway.ask(AskKind.CANCEL, subject_id="j-2", pool="other", tenant="bob", at=AT)
    first, second = await world.scheduler.asks(pool="default", limit=10)
    assert (first.kind, first.subject_id, first.tenant, first.priority, first.at) == ("prioritise", "j-1", "bob", 9, AT)
    assert (second.kind, second.priority) == (AskKind.CANCEL, 0)
    assert await world.scheduler.asks(pool="default", limit=1) == [first]

    stale = step(job, _E.REPRIORITISED, at=AT, priority=9, ask=first.id, version=5)
    assert await world.take(lease, stale) == [False]
    assert await world.scheduler.asks(pool="default", limit=10) == [first, second]
    await go(world.scheduler, lease, job, _E.REPRIORITISED, at=AT, priority=9, ask=first.id)
    assert await world.scheduler.asks(pool="default", limit=10) == [second]
    await world.scheduler.drop_asks(lease, [second.id])
    assert await world.scheduler.asks(pool="default", limit=10) == []
    assert len(await world.scheduler.asks(pool="other", limit=10)) == 1


async def test_a_submission_is_no_ask_to_be_done(world: World) -> None:
    await world.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
    assert await world.scheduler.asks(pool="default", limit=10) == []


# leases


async def test_of_two_who_take_a_lease_one_has_it(world: World) -> None:
    assert await world.scheduler.lease("default") is None
    taken = await asyncio.gather(
        *(world.scheduler.take_lease("default", holder=f"s-{number}", seen=None) for number in range(10))
    )
    (lease,) = filter(None, taken)
    assert (lease.name, lease.epoch, lease.seq) == ("default", 1, 0)
    assert await world.scheduler.lease("default") == lease


async def test_an_abandoned_lease_is_taken_only_if_it_did_not_change(world: World) -> None:
    seen = await world.lead(holder="old")
    renewed = await world.scheduler.renew_lease(seen)
    assert renewed is not None
    assert (renewed.holder, renewed.epoch, renewed.seq) == ("old", 1, 1)
    assert await world.scheduler.take_lease("default", holder="new", seen=seen) is None
    taken = await world.scheduler.take_lease("default", holder="new", seen=renewed)
    assert taken is not None
    assert (taken.holder, taken.epoch, taken.seq) == ("new", 2, 0)
    assert await world.scheduler.renew_lease(renewed) is None


async def test_a_released_lease_is_free_and_only_its_owner_releases_it(world: World) -> None:
    old = await world.lead(holder="old")
    new = await world.scheduler.take_lease("default", holder="new", seen=old)
    assert new is not None
    await world.scheduler.release_lease(old)
    assert await world.scheduler.lease("default") == new
    await world.scheduler.release_lease(new)
    free = await world.scheduler.lease("default")
    assert free is not None
    assert (free.holder, free.epoch) == ("", 2)
    with pytest.raises(LeaseLostError):
        await world.scheduler.admit(new, pool="default", limit=1)
    third = await world.scheduler.take_lease("default", holder="third", seen=None)
    assert third is not None
    assert third.epoch == 3


async def test_how_earlier_leaderships_ended_is_kept_whoever_ended_them(world: World) -> None:
    first = await world.lead(holder="first")
    renewed = await world.scheduler.renew_lease(first)
    second = await world.scheduler.take_lease("default", holder="second", seen=renewed)
    assert second is not None
    assert await world.scheduler.leaderships("default") == [renewed]
    await world.scheduler.release_lease(second)
    await world.lead(holder="third")
    assert await world.scheduler.leaderships("default") == [renewed, second]
    assert await world.scheduler.leaderships("other") == []


async def test_a_lease_is_raised_above_what_was_heard_and_marked_until_it_is_settled(world: World) -> None:
    first = await world.lead(holder="first")
    lease = await world.scheduler.take_lease("default", holder="second", seen=first)
    assert lease is not None
    raised = await world.scheduler.raise_lease(lease, above=40)
    assert raised == Lease(name="default", holder="second", epoch=41, seq=0, went_back=True)
    assert await world.scheduler.lease("default") == raised
    assert await world.scheduler.leaderships("default") == []  # they were of another past
    with pytest.raises(LeaseLostError):
        await world.scheduler.admit(lease, pool="default", limit=1)
    assert await world.scheduler.raise_lease(lease, above=100) is None
    assert await world.scheduler.settle_lease(lease) is None

    third = await world.scheduler.take_lease("default", holder="third", seen=raised)
    assert third is not None
    assert (third.epoch, third.went_back) == (42, True)  # the next leader has to wait, too
    renewed = await world.scheduler.renew_lease(third)
    assert renewed is not None
    assert renewed.went_back
    settled = await world.scheduler.settle_lease(renewed)
    assert settled == structs.replace(renewed, went_back=False)
    assert await world.scheduler.lease("default") == settled
    assert await world.scheduler.leaderships("default") == [structs.replace(raised, went_back=False)]
    low = await world.scheduler.raise_lease(settled, above=3)
    assert low is not None
    assert low.epoch == 43


async def test_what_a_former_leader_writes_is_refused_whole(world: World) -> None:
    stale = await world.lead(holder="old")
    (job,) = await world.admitted(stale, "j-1")
    await world.scheduler.save_node(stale, node(), event="joined", cause="")
    await world.gateway.submit(spec(), job_id="j-2", tenant="alice", key=None, at=AT)
    await world.gateway.ask(AskKind.CANCEL, subject_id="j-1", pool="default", tenant="alice", at=AT)
    asks = await world.scheduler.asks(pool="default", limit=10)
    nodes, events = await world.scheduler.nodes(), await world.gateway.events()
    lease = await world.scheduler.take_lease("default", holder="new", seen=stale)
    assert lease is not None
    forged = structs.replace(lease, holder="old")
    store = world.scheduler
    for former in (stale, forged, Lease(name="nobodys", holder="old", epoch=1, seq=0)):
        for writing in (
            store.take(former, [step(job, _E.WAITING, at=AT)]),
            store.admit(former, pool="default", limit=1),
            store.drop_asks(former, [asks[0].id]),
            store.save_node(former, node(drained=True), event="drained", cause=""),
            store.save_node(former, node("node-2"), event="", cause=""),
            store.touch_nodes(former, ["node-1"], at=AT + 100),
        ):
            with pytest.raises(LeaseLostError):
                await writing
    assert await store.open_jobs(pool="default") == [job]
    assert await store.asks(pool="default", limit=10) == asks
    assert (await store.nodes(), await world.gateway.events()) == (nodes, events)
    assert await world.take(lease, step(job, _E.WAITING, at=AT)) == [True]


# nodes


async def test_a_node_is_kept_as_it_was_saved_and_told_when_there_is_an_event(world: World) -> None:
    lease = await world.lead()
    first = node("node-2", seen_at=AT, not_enforced=("memory",))
    await world.scheduler.save_node(lease, first, event="joined", cause="joined with 4 emulated GPUs")
    await world.scheduler.save_node(lease, node("node-1", seen_at=AT + 1), event="", cause="")
    changed = structs.replace(first, address="10.0.0.9", ready=False, seen_at=AT + 2)
    await world.scheduler.save_node(lease, changed, event="lost", cause="silent")
    other = structs.replace(node("node-3"), pool="other")
    await world.scheduler.save_node(await world.lead("other"), other, event="", cause="")
    expected = [node("node-1", seen_at=AT + 1), changed]
    for store in (world.scheduler, world.gateway, world.scorer, world.reallocator):
        assert await store.nodes(pool="default") == expected
        assert await store.nodes() == [*expected, other]
    joined, lost = await world.gateway.events()
    assert (joined.subject, joined.subject_id, joined.version, joined.tenant) == (
        "weft.events.nodes.joined",
        "node-2",
        1,
        "",
    )
    assert (lost.version, lost.at, told(lost)["sentence"], told(lost)["ready"]) == (2, AT + 2, "silent", False)
    assert told(lost)["capacity"] == json.loads(msgspec.json.encode(changed.capacity))
    assert await world.relay.unsent(limit=10) == [joined, lost]


async def test_a_node_is_drained_with_the_ask_for_it(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="joined", cause="")
    await world.gateway.ask(AskKind.DRAIN, subject_id="node-1", pool="default", tenant="admin", at=AT)
    (ask,) = await world.scheduler.asks(pool="default", limit=10)
    assert (ask.kind, ask.subject_id) == (AskKind.DRAIN, "node-1")
    await world.scheduler.save_node(lease, node(drained=True), event="drained", cause="by admin", ask=ask.id)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    assert (await world.gateway.nodes())[0].drained


async def test_touching_a_node_changes_when_it_was_seen_and_nothing_else(world: World) -> None:
    lease = await world.lead()
    for node_id in ("node-1", "node-2"):
        await world.scheduler.save_node(lease, node(node_id, seen_at=AT), event="", cause="")
    await world.scheduler.touch_nodes(lease, ["node-2", "node-9"], at=AT + 5)
    assert await world.gateway.nodes() == [node("node-1", seen_at=AT), node("node-2", seen_at=AT + 5)]
    assert await world.gateway.events() == []


# events


async def test_events_are_read_on_from_where_one_was(world: World) -> None:
    lease = await world.lead()
    for number in range(5):
        tenant = "alice" if number % 2 == 0 else "bob"
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant=tenant, key=None, at=AT)
    await world.scheduler.save_node(lease, node(), event="joined", cause="")
    every = await world.gateway.events()
    assert [event.subject_id for event in every] == ["j-0", "j-1", "j-2", "j-3", "j-4", "node-1"]
    for number, event in enumerate(every):
        assert await world.gateway.events(after=event.cursor) == every[number + 1 :]
    assert await world.gateway.events(limit=2) == every[:2]
    assert await world.gateway.events(newest=True, limit=2) == every[-2:]
    assert await world.gateway.events(newest=True, limit=9, after=every[3].cursor) == every[4:]
    assert await world.gateway.events(tenant="bob") == [every[1], every[3]]
    assert await world.gateway.events(tenant="alice", newest=True, limit=2) == [every[2], every[4]]
    assert await world.gateway.events(tenant="alice", after=every[0].cursor, limit=1) == [every[2]]


async def test_a_reader_among_many_writers_misses_nothing_and_reads_nothing_twice(world: World) -> None:
    lease = await world.lead()
    born = await world.admitted(lease, *(f"j-{number}" for number in range(4)))
    done = asyncio.Event()

    async def write(job: Job) -> None:
        for number in range(12):
            cause = Cause(code=CauseCode.NO_ROOM, numbers={"number": float(number)})
            job = await go(world.scheduler, lease, job, _E.WAITING, at=AT, cause=cause)

    async def submit() -> None:
        for number in range(25):
            await world.gateway.submit(spec(), job_id=f"k-{number}", tenant="bob", key=None, at=AT)

    async def read() -> list[Event]:
        seen: list[Event] = []
        while True:
            last = done.is_set()
            seen += await world.gateway.events(after=seen[-1].cursor if seen else "", limit=7)
            if last and not await world.gateway.events(after=seen[-1].cursor, limit=1):
                return seen
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read()) for _ in range(3)]
        async with asyncio.TaskGroup() as writers:
            for job in born:
                writers.create_task(write(job))
            writers.create_task(submit())
        done.set()
    every = await world.gateway.events()
    assert len(every) == 4 + 4 * 12 + 25
    for reader in readers:
        assert reader.result() == every


async def test_the_documented_history_is_told_alike_by_every_store(world: World) -> None:
    memory = MemoryStore()
    expected = await tell_everything(memory, memory)
    found = await tell_everything(world.gateway, world.scheduler)
    assert [event.message_id for event in found] == [event.message_id for event in expected]
    assert [(event.at, event.tenant, told(event)) for event in found] == [
        (event.at, event.tenant, told(event)) for event in expected
    ]
    assert documents(found) == documents(expected)
    assert await world.gateway.jobs(tenant=None) == await memory.jobs(tenant=None)


# the outbox


async def test_what_was_sent_leaves_the_outbox_and_comes_back_when_asked(world: World) -> None:
    for number in range(4):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT + number)
    every = await world.relay.unsent(limit=10)
    assert every == await world.gateway.events()
    assert await world.relay.unsent(limit=2) == every[:2]
    assert await world.relay.unsent_count() == len(every)
    await world.relay.sent([every[0].id, every[2].id, 999])
    assert await world.relay.unsent(limit=10) == [every[1], every[3]]
    await world.relay.sent([event.id for event in every])
    assert await world.relay.unsent(limit=10) == []
    assert await world.relay.resend(since=AT + 2) == 2
    assert await world.relay.resend(since=AT + 1) == 1  # two are there already
    assert await world.relay.unsent(limit=10) == every[1:]


# tokens


async def test_a_token_gives_access_until_it_is_revoked(world: World) -> None:
    mine, admins, others = (bytes([number]) * 32 for number in (1, 2, 3))
    assert await world.gateway.access(mine, at=AT) is None
    await world.gateway.add_token(mine, tenant="alice", admin=False, label="laptop", at=AT)
    await world.gateway.add_token(others, tenant="alice", admin=False, label="desk", at=AT)
    await world.gateway.add_token(admins, tenant="admin", admin=True, label="laptop", at=AT)
    assert await world.gateway.access(mine, at=AT) == Access(tenant="alice")
    assert await world.gateway.access(admins, at=AT) == Access(tenant="admin", admin=True)
    assert await world.gateway.revoke_tokens(tenant="alice", label="laptop", at=AT) == 1
    assert await world.gateway.revoke_tokens(tenant="alice", label="laptop", at=AT) == 0
    assert await world.gateway.access(mine, at=AT) is None
    assert await world.gateway.access(others, at=AT) == Access(tenant="alice")
    assert await world.gateway.access(admins, at=AT) is not None


async def test_the_same_token_again_changes_nothing(world: World) -> None:
    token = bytes(32)
    await world.gateway.add_token(token, tenant="alice", admin=False, label="a", at=AT)
    await world.gateway.add_token(token, tenant="bob", admin=True, label="b", at=AT)
    assert await world.gateway.access(token, at=AT) == Access(tenant="alice")
    assert await world.gateway.revoke_tokens(tenant="alice", label="a", at=AT) == 1
    await world.gateway.add_token(token, tenant="alice", admin=False, label="a", at=AT)
    assert await world.gateway.access(token, at=AT) is None


# scores


async def test_the_newest_score_of_a_gpu_and_class_wins(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")

    def score(value: float, *, node_id: str = "node-1", gpu: int = 0, job_class: str = "a") -> GpuScore:
        return GpuScore(node_id=node_id, gpu_index=gpu, job_class=job_class, score=value)

    await world.scorer.save_scores([score(1.5, gpu=1), score(1.0), score(2.0, job_class="b")], at=AT + 10)
    await world.scorer.save_scores([score(9.0), score(1.1, node_id="node-9")], at=AT)
    assert await world.scheduler.scores(pool="default") == [score(1.0), score(2.0, job_class="b"), score(1.5, gpu=1)]
    await world.scorer.save_scores([score(1.25)], at=AT + 10)
    assert (await world.scheduler.scores(pool="default"))[0] == score(1.25)
    assert await world.scheduler.scores(pool="other") == []
    await world.scorer.save_scores([], at=AT)


async def test_scores_are_found_by_when_they_were_stored_or_by_their_node(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")

    def score(value: float, *, gpu: int) -> GpuScore:
        return GpuScore(node_id="node-1", gpu_index=gpu, job_class="a", score=value)

    await world.scorer.save_scores([score(1.0, gpu=0)], at=AT)
    await world.scorer.save_scores([score(2.0, gpu=1)], at=AT + 10)
    assert await world.scheduler.scores(pool="default", since=AT + 10) == [score(2.0, gpu=1)]
    assert await world.scheduler.scores(pool="default", since=AT + 11) == []
    everything = await world.scheduler.scores(pool="default", since=AT + 11, nodes=["node-1", "node-9"])
    assert everything == [score(1.0, gpu=0), score(2.0, gpu=1)]


async def test_a_score_is_kept_with_how_sure_it_is_where_it_is_from_and_when_it_was_measured(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")
    measured = GpuScore(node_id="node-1", gpu_index=0, job_class="a", score=1.2, confidence=0.4, source="profile")
    measured = structs.replace(measured, measured_at=AT - 3600.5)
    await world.scorer.save_scores([measured], at=AT)
    assert await world.scheduler.scores(pool="default") == [measured]
    plain = GpuScore(node_id="node-1", gpu_index=0, job_class="a", score=1.0)
    await world.scorer.save_scores([plain], at=AT + 1)
    assert await world.scheduler.scores(pool="default") == [plain]


async def test_a_score_is_kept_with_its_samples_and_until_when_it_counts_as_slow(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")
    slow = GpuScore(
        node_id="node-1", gpu_index=0, job_class="a", score=1.5, source="jobs", samples=40, quarantined_until=AT + 60.25
    )
    await world.scorer.save_scores([slow], at=AT)
    for store in (world.scheduler, world.gateway, world.scorer):
        assert await store.scores(pool="default") == [slow]
    forgiven = structs.replace(slow, score=1.0, samples=41, quarantined_until=None)
    await world.scorer.save_scores([forgiven], at=AT + 1)
    assert await world.scheduler.scores(pool="default") == [forgiven]


# what is learnt of workloads


def learnt(workload: str, job_class: str, *, at: float = AT) -> WorkloadClass:
    return WorkloadClass(workload=workload, job_class=job_class, compute=0.75, memory=0.25, samples=12, at=at)


async def test_the_newest_class_of_a_workload_wins_in_its_pool(world: World) -> None:
    await world.scorer.save_classes([learnt("b", "memory", at=AT + 5.5), learnt("a", "compute")], pool="default")
    await world.scorer.save_classes([learnt("b", "mixed", at=AT + 5)], pool="default")
    await world.scorer.save_classes([learnt("a", "mixed")], pool="other")
    for store in (world.scheduler, world.scorer):
        assert await store.classes(pool="default") == [learnt("a", "compute"), learnt("b", "memory", at=AT + 5.5)]
        assert await store.classes(pool="default", since=AT + 1) == [learnt("b", "memory", at=AT + 5.5)]
        assert await store.classes(pool="other") == [learnt("a", "mixed")]
    await world.scorer.save_classes([learnt("a", "memory")], pool="default")
    assert (await world.scheduler.classes(pool="default"))[0] == learnt("a", "memory")
    await world.scorer.save_classes([], pool="default")


async def test_curves_are_found_by_whose_they_are_and_the_newest_wins(world: World) -> None:
    def curve(subject: str, *speeds: float, pool: str = "default", at: float = AT) -> Curve:
        points = tuple(
            CurvePoint(replicas=number, cpus=2.0 * number, speed=speed, spread=0.125, windows=3, at=at)
            for number, speed in enumerate(speeds, 1)
        )
        return Curve(subject=subject, pool=pool, points=points, at=at)

    await world.scorer.save_curves([curve("job:j-1", 10.0, 18.0, at=AT + 1), curve("workload:w", 9.0)])
    await world.scorer.save_curves([curve("job:j-1", 1.0), curve("job:j-2", 7.0, pool="other"), curve("job:j-3")])
    for store in (world.gateway, world.scorer):
        found = await store.curves(pool="default", subjects=["workload:w", "job:j-1", "job:j-1", "job:j-2"])
        assert found == [curve("job:j-1", 10.0, 18.0, at=AT + 1), curve("workload:w", 9.0)]
        assert await store.curves(pool="default", subjects=["job:j-3"]) == [curve("job:j-3")]
        assert await store.curves(pool="default", subjects=[]) == []
    await world.scorer.save_curves([])


async def test_a_scorer_finds_what_succeeded_of_the_tenants_it_asks_for(world: World) -> None:
    lease = await world.lead()
    jobs = await world.admitted(lease, "j-1", "j-2", "j-3")
    for number, job in enumerate(jobs):
        job = await go(
            world.scheduler, lease, job, _E.PLACED, at=AT + 10, placement=placement(("node-1", number)), progress=None
        )
        job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 11)
        job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 12)
        event = _E.FAILED if job.id == "j-3" else _E.SUCCEEDED
        told_last = {"progress": {"score": 1.5}, "exit_code": 0}
        await go(world.scheduler, lease, job, event, at=AT + 30 - number, **told_last)
    found = await world.scorer.ended_jobs(tenants=["alice", "bob"], since=AT)
    assert [(job.id, job.progress) for job in found] == [("j-2", {"score": 1.5}), ("j-1", {"score": 1.5})]
    assert found == [await world.known("j-2"), await world.known("j-1")]
    assert [job.id for job in await world.scorer.ended_jobs(tenants=["alice"], since=AT + 30)] == ["j-1"]
    assert [job.id for job in await world.scorer.ended_jobs(tenants=["alice"], since=AT, limit=1)] == ["j-2"]
    assert await world.scorer.ended_jobs(tenants=["bob"], since=AT) == []
    assert await world.scorer.ended_jobs(tenants=[], since=AT) == []


# tuning


TUNE = Tune(
    epoch=0,
    ranks=(RankTuning(rank=0, cpus=2.5, memory=3 << 30, egress=2_500_000), RankTuning(rank=1, cpus=0.5)),
    cause=Cause(code=CauseCode.REBALANCED, sentence="rank 1 leaves it unused", numbers={"cpu_throttled": 0.5}),
)


def envelope(job_id: str, *, epoch: int = 0, state: bytes = b'{"tried": []}', pool: str = "default") -> Envelope:
    return Envelope(job_id=job_id, pool=pool, epoch=epoch, state=state)


async def running_job(world: World, lease: Lease, job_id: str, gpu: int = 0) -> Job:
    (job,) = await world.admitted(lease, job_id, replicas=2)
    where = placement(("node-1", gpu), ("node-1", gpu + 1))
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 1, placement=where)
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 2)
    return await go(world.scheduler, lease, job, _E.STARTED, at=AT + 3)


async def test_a_tuning_is_asked_once_until_it_is_done_and_what_the_tuner_knows_goes_with_it(world: World) -> None:
    lease = await world.lead()
    await running_job(world, lease, "j-1")
    await running_job(world, lease, "j-2", gpu=2)
    assert await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT + 10)
    assert not await world.reallocator.ask_tune(envelope("j-1", state=b'{"tried": [1]}'), TUNE, at=AT + 11)
    assert await world.reallocator.ask_tune(envelope("j-2"), TUNE, at=AT + 12)
    first, second = await world.scheduler.asks(pool="default", limit=10)
    assert (first.kind, first.subject_id, first.tune, first.at) == (AskKind.TUNE, "j-1", TUNE, AT + 10)
    assert second.subject_id == "j-2"
    assert [json.loads(one.state) for one in await world.reallocator.envelopes(pool="default")] == [{"tried": []}] * 2
    await world.scheduler.drop_asks(lease, [first.id])
    assert await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT + 13)


async def test_a_tuning_that_is_done_is_stored_with_its_step_and_told(world: World) -> None:
    lease = await world.lead()
    job = await running_job(world, lease, "j-1")
    assert await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT + 10)
    (ask,) = await world.scheduler.asks(pool="default", limit=10)
    assert ask.tune is not None
    assert job.placement is not None
    first, other = job.placement.allocations
    has = structs.replace(
        job.placement,
        allocations=(structs.replace(first, cpus=2.5, egress=2_500_000), structs.replace(other, cpus=0.5)),
    )
    fields = {"placement": has, "cause": ask.tune.cause, "ask": ask.id}
    tuned = await go(world.scheduler, lease, job, _E.TUNED, at=AT + 11, **fields)
    assert (tuned.state, tuned.epoch, tuned.version) == (_S.RUNNING, 0, job.version + 1)
    assert tuned.placement == has
    assert (tuned.since, tuned.started_at, tuned.placed_at) == (job.since, job.started_at, job.placed_at)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    last = (await world.gateway.story("j-1"))[-1]
    assert last.subject == "weft.events.jobs.tuned"
    assert told(last)["cause"]["code"] == "rebalanced"
    assert [one["cpus"] for one in told(last)["placement"]["allocations"]] == [2.5, 0.5]
    # It holds its GPUs as before, once.
    (another,) = await world.admitted(lease, "j-2")
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(another, _E.PLACED, at=AT + 12, placement=placement(("node-1", 1))))
    ended = await go(world.scheduler, lease, tuned, _E.SUCCEEDED, at=AT + 20)
    assert ended.state is _S.SUCCEEDED
    await go(world.scheduler, lease, another, _E.PLACED, at=AT + 21, placement=placement(("node-1", 1)))


async def test_only_a_job_that_runs_in_that_epoch_and_pool_can_be_asked_to_be_tuned(world: World) -> None:
    lease = await world.lead()
    (waiting,) = await world.admitted(lease, "j-0")
    assert not await world.reallocator.ask_tune(envelope(waiting.id), TUNE, at=AT)
    job = await running_job(world, lease, "j-1")
    assert not await world.reallocator.ask_tune(envelope("j-9"), TUNE, at=AT)
    assert not await world.reallocator.ask_tune(envelope("j-1", epoch=1), TUNE, at=AT)
    assert not await world.reallocator.ask_tune(envelope("j-1", pool="other"), TUNE, at=AT)
    await go(world.scheduler, lease, job, _E.STOPPING, at=AT + 4)
    assert not await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    assert await world.reallocator.envelopes(pool="default") == []


async def test_what_a_tuner_knows_is_remembered_until_its_job_is_over(world: World) -> None:
    lease = await world.lead()
    job = await running_job(world, lease, "j-1")
    await running_job(world, lease, "j-2", gpu=2)
    await world.reallocator.save_envelope(envelope("j-2"), at=AT)
    await world.reallocator.save_envelope(envelope("j-1"), at=AT)
    await world.reallocator.save_envelope(envelope("j-1", epoch=3, state=b'{"best": 1.5}'), at=AT + 1)
    first, second = await world.reallocator.envelopes(pool="default")
    assert (first.job_id, first.epoch, json.loads(first.state)) == ("j-1", 3, {"best": 1.5})
    assert second.job_id == "j-2"
    assert await world.reallocator.envelopes(pool="other") == []
    assert await world.reallocator.drop_envelopes(pool="default") == 0
    await go(world.scheduler, lease, job, _E.SUCCEEDED, at=AT + 20)
    assert [one.job_id for one in await world.reallocator.envelopes(pool="default")] == ["j-2"]
    assert await world.reallocator.drop_envelopes(pool="other") == 0
    assert await world.reallocator.drop_envelopes(pool="default") == 1
    assert await world.reallocator.drop_envelopes(pool="default") == 0


# how long, and by what


async def test_how_long_a_job_held_its_gpus_is_counted_over_all_its_epochs(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    assert (job.placed_at, job.attained_seconds) == (None, 0.0)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 10.25, placement=placement(("node-1", 0)))
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 20)
    job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 30)
    assert (job.placed_at, job.attained_seconds) == (AT + 10.25, 0.0)
    job = await go(world.scheduler, lease, job, _E.STOPPING, at=AT + 40)
    job = await go(world.scheduler, lease, job, _E.REQUEUED, at=AT + 50.123456)
    assert (job.placed_at, job.attained_seconds) == (None, 39.873456)
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 100.1, placement=placement(("node-1", 0)))
    job = await go(world.scheduler, lease, job, _E.FAILED, at=AT + 100.4)
    assert (job.placed_at, job.attained_seconds) == (None, 40.173456)


async def test_by_what_a_pool_is_led_is_what_its_leader_said_last(world: World) -> None:
    assert await world.gateway.policy(pool="default") == ""
    lease = await world.lead()
    assert await world.gateway.policy(pool="default") == ""
    await world.scheduler.lead_by(lease, "las+weft-best+easy")
    assert await world.gateway.policy(pool="default") == "las+weft-best+easy"
    assert await world.gateway.policy(pool="other") == ""
    other = await world.lead(holder="other")
    with pytest.raises(LeaseLostError):
        await world.scheduler.lead_by(lease, "fifo+packed+none")
    await world.scheduler.lead_by(other, "fifo+packed+easy")
    assert await world.gateway.policy(pool="default") == "fifo+packed+easy"


# only where there are transactions


async def test_a_number_that_no_column_holds_is_a_mistake_and_leaves_no_lock_behind(real: postgres.Stores) -> None:
    with pytest.raises(UnlawfulError, match="out of int64 range"):
        await real.gateway.jobs(tenant=None, before=2**63)
    await real.clear()  # needs every table alone
    assert await real.gateway.jobs(tenant=None) == []


async def test_a_write_that_waits_too_long_for_a_lock_is_not_known_to_have_happened(real: postgres.Stores) -> None:
    lease = await real.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    connection = await real.server.connect("scheduler")
    try:
        async with connection.transaction():
            await connection.execute("SELECT must_hold('default', 'me', 1)")
            with pytest.raises(StoreUnavailableError, match="lock"):
                await real.scheduler.renew_lease(lease)
        assert await real.scheduler.renew_lease(lease) is not None
    finally:
        await connection.close()


async def test_the_database_itself_refuses_what_is_no_step(real: postgres.Stores) -> None:
    world = World(real.gateway, real.scheduler, real.scheduler, real.scorer, real.reallocator)
    await world.admitted(await world.lead(), "j-1")
    await real.gateway.submit(spec(), job_id="j-2", tenant="alice", key=None, at=AT)
    connection = await real.server.connect("scheduler")
    try:
        for statement in (
            "UPDATE jobs SET state = 'running', last_event = 'started', version = 2",
            "UPDATE jobs SET state = 'cancelled', version = 2",  # not by `submitted`
            "UPDATE jobs SET last_event = 'waiting'",
            "UPDATE jobs SET last_event = 'waiting', version = 3",
            "UPDATE jobs SET last_event = 'waiting', version = 2, epoch = 1",
            "UPDATE jobs SET last_event = 'placed', state = 'placed', version = 2",
            "UPDATE jobs SET last_event = 'lost', state = 'nowhere', version = 2",
            "INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since, placement)"
            " VALUES ('j-2', 'alice', 'default', 'running', 'started', 0, 1, 0, now(), '{}')",
            "INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since)"
            " VALUES ('j-2', 'alice', 'default', 'queued', 'submitted', 5, 1, 0, now())",
        ):
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.execute(statement)
        await connection.execute("UPDATE jobs SET last_event = 'waiting', version = 2")
    finally:
        await connection.close()


class Writers:
    """Transactions that each record one event when they are told to, and end when they are told to."""

    def __init__(self, real: postgres.Stores, stack: AsyncExitStack) -> None:
        self._real = real
        self._stack = stack
        self._count = 0
        self._open: dict[int, tuple[asyncpg.Connection[Any], Any]] = {}
        self._pool: list[asyncpg.Connection[Any]] = []
        self.committed: set[str] = set()
        self._told: dict[int, list[str]] = {}

    async def write(self, number: int) -> None:
        if number not in self._open:
            connection = self._pool.pop() if self._pool else await self._real.server.connect("scheduler")
            self._stack.push_async_callback(connection.close)
            transaction = connection.transaction()
            await transaction.start()
            self._open[number], self._told[number] = (connection, transaction), []
        self._count += 1
        subject = f"n-{self._count}"
        await self._open[number][0].execute(
            "INSERT INTO events (topic, event, subject_id, version, at, data)"
            " VALUES ('nodes', 'changed', $1, 1, now(), '{}')",
            subject,
        )
        self._told[number].append(subject)

    async def end(self, number: int, *, commit: bool) -> None:
        if number in self._open:
            connection, transaction = self._open.pop(number)
            await (transaction.commit() if commit else transaction.rollback())
            self.committed.update(self._told.pop(number) if commit else ())
            self._pool.append(connection)


acts = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3)),
    st.tuples(st.sampled_from(["commit", "commit", "rollback"]), st.integers(0, 3)),
    st.tuples(st.just("read"), st.integers(1, 3)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(acts, max_size=30))
async def test_no_event_is_skipped_however_transactions_interleave(
    real: postgres.Stores, script: list[tuple[str, int]]
) -> None:
    await real.clear()
    seen: list[Event] = []

    async def read(limit: int) -> int:
        found = await real.gateway.events(after=seen[-1].cursor if seen else "", limit=limit)
        seen.extend(found)
        return len(found)

    async with AsyncExitStack() as stack:
        writers = Writers(real, stack)
        for act, number in script:
            if act == "write":
                await writers.write(number)
            elif act == "read":
                await read(number)
            else:
                await writers.end(number, commit=act == "commit")
        for number in range(4):
            await writers.end(number, commit=True)
    while await read(100):
        pass
    assert sorted(event.subject_id for event in seen) == sorted(writers.committed)
    assert seen == await real.gateway.events()


# after() against the database's own statement

numbers = st.dictionaries(st.sampled_from(["step", "loss"]), st.floats(-1e6, 1e6), max_size=2)
causes = st.builds(
    Cause,
    code=st.sampled_from(CauseCode),
    sentence=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    by=st.sampled_from(["", "node-1"]),
    numbers=numbers,
)
moments = st.integers(0, 10**9).map(lambda micros: AT + micros / 1e6)
fields = st.fixed_dictionaries(
    {"at": moments, "cause": causes},
    optional={
        "priority": st.integers(-1000, 1000),
        "attempts": st.integers(0, 5),
        "not_before": moments | st.just(0.0),
        "exit_code": st.integers(0, 255),
        "progress": numbers,
    },
)
tries = st.tuples(
    st.sampled_from([event for event in _E if event is not _E.SUBMITTED]),
    fields,
    st.integers(0, 3),  # which GPU, or how the step is spoilt
    st.sampled_from(["legal", "legal", "legal", "legal", "stale", "to", "epoch"]),
)


def attempt(job: Job, drawn: tuple[JobEvent, dict[str, Any], int, str]) -> Step:
    """A step from `drawn`: legal where it can be, or wrong in the way that was drawn."""
    event, with_fields, number, way = drawn
    legal = sorted(known for state, known in STEPS if state is job.state)
    if way != "to" and event not in legal:
        event = legal[number % len(legal)]
    where: dict[str, Any] = {"placement": placement(("n", number))} if event is _E.PLACED else {}
    return Step(
        job_id=job.id,
        version=job.version - (way == "stale"),
        event=event,
        to=list(_S)[number] if way == "to" else STEPS[job.state, event],
        epoch=job.epoch + (event is _E.REQUEUED) + (way == "epoch"),
        **with_fields,
        **where,
    )


async def outcome(store: MemoryStore | PostgresStore, lease: Lease, made: Step) -> Any:
    try:
        return await store.take(lease, [made])
    except UnlawfulError:
        return "illegal"
    except DoubleAllocationError:
        return "double"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(tries, max_size=25))
async def test_any_steps_make_the_same_job_in_memory_and_in_postgres(
    real: postgres.Stores, script: list[tuple[JobEvent, dict[str, Any], int, str]]
) -> None:
    await real.clear()
    memory = MemoryStore()
    stores: tuple[MemoryStore | PostgresStore, ...] = (memory, real.scheduler)
    for gateway in (memory, real.gateway):
        for job_id in ("j-0", "j-1"):
            await gateway.submit(spec(), job_id=job_id, tenant="alice", key=None, at=AT)
    leases: list[Lease] = []
    for store in stores:
        lease = await store.take_lease("default", holder="me", seen=None)
        assert lease is not None
        await store.admit(lease, pool="default", limit=10)
        leases.append(lease)
    for number, drawn in enumerate(script):
        job = await memory.job(f"j-{number % 2}")
        assert job is not None
        made = attempt(job, drawn)
        found = [await outcome(store, lease, made) for store, lease in zip(stores, leases, strict=True)]
        assert found[0] == found[1], made
        assert await memory.jobs(tenant=None) == await real.gateway.jobs(tenant=None)
    for job_id in ("j-0", "j-1"):
        in_memory, in_postgres = await memory.story(job_id), await real.gateway.story(job_id)
        assert [told(event) for event in in_memory] == [told(event) for event in in_postgres]


async def test_a_token_ends_by_itself_when_it_was_said_to(world: World) -> None:
    token = bytes([4]) * 32
    await world.gateway.add_token(token, tenant="alice", admin=False, label="ci", at=AT, expires_at=AT + 10)
    assert await world.gateway.access(token, at=AT + 9.9) == Access(tenant="alice")
    assert await world.gateway.access(token, at=AT + 10) is None
    assert await world.gateway.access(token, at=AT + 9.9) is not None


async def test_a_token_tells_when_it_was_used_and_no_oftener_than_it_is_asked_to(world: World) -> None:
    token, other = (bytes([number]) * 32 for number in (5, 6))
    await world.gateway.add_token(token, tenant="alice", admin=False, label="ci", at=AT)
    await world.gateway.add_token(other, tenant="bob", admin=True, label="ci", at=AT)
    seen = []
    for at in (AT + 5, AT + 64, AT + 66, AT + 1):
        await world.gateway.token_used(token, at=at, not_within=60)
        seen.append([each.used_at for each in await world.gateway.tokens(tenant="alice")])
    assert seen == [[AT + 5], [AT + 5], [AT + 66], [AT + 66]]
    assert [each.used_at for each in await world.gateway.tokens(tenant="bob")] == [None]


async def test_tokens_are_listed_the_newest_first_with_all_that_is_known_of_them(world: World) -> None:
    for number, (tenant, label) in enumerate([("alice", "a"), ("bob", "b"), ("alice", "c")]):
        await world.gateway.add_token(
            bytes([number]) * 32,
            tenant=tenant,
            admin=number == 1,
            label=label,
            at=AT + number,
            expires_at=AT + 99 if label == "c" else None,
        )
    assert await world.gateway.revoke_tokens(tenant="alice", label="a", at=AT + 7) == 1
    assert await world.gateway.tokens() == [
        TokenKept(tenant="alice", label="c", admin=False, created_at=AT + 2, expires_at=AT + 99),
        TokenKept(tenant="bob", label="b", admin=True, created_at=AT + 1),
        TokenKept(tenant="alice", label="a", admin=False, created_at=AT, revoked_at=AT + 7),
    ]
    assert [each.label for each in await world.gateway.tokens(tenant="alice", limit=1)] == ["c"]


# history


def record(number: int, *, begins: bool = False, size: int = 10, at: float = AT, epoch: int = 1) -> Record:
    body = bytes([number]) * size
    return Record(epoch=epoch, number=number, format=1, begins=begins, at=at, until=at + 1, turns=2, steps=3, body=body)


async def numbers(world: World, **fields: Any) -> list[int]:
    return [one.number for one in await world.gateway.history(pool="default", **fields)]


async def test_a_history_is_kept_in_order_and_read_page_by_page(world: World) -> None:
    lease = await world.lead()
    for number in (1, 2, 4, 5, 3):  # one was long on its way
        await world.scheduler.record(lease, record(number, begins=number == 1, at=AT + number / 4))
    await world.scheduler.record(lease, record(1, begins=True, epoch=2))
    first, second = await world.gateway.history(pool="default", limit=2)
    assert first == record(1, begins=True, at=AT + 0.25)
    assert second == record(2, at=AT + 0.5)
    assert await numbers(world, after=(1, 2)) == [3, 4, 5, 1]
    assert await numbers(world, after=(1, 5)) == [1]
    assert await numbers(world, after=(2, 1)) == []
    assert await numbers(world, bytes_max=21) == [1, 2, 3]
    assert await numbers(world, bytes_max=20) == [1, 2]
    assert await numbers(world, bytes_max=1) == [1]
    assert await world.gateway.history(pool="other") == []


async def test_steps_and_what_they_were_decided_from_are_stored_together_or_not_at_all(world: World) -> None:
    lease = await world.lead()
    first, second = await world.admitted(lease, "j-1", "j-2")
    fits = Cause(code=CauseCode.FITS)
    placed = step(first, _E.PLACED, at=AT, cause=fits, placement=placement(("node-1", 0)))
    assert await world.scheduler.take(lease, [placed], record=record(1)) == [True]
    assert await numbers(world) == [1]
    twice = step(second, _E.PLACED, at=AT, cause=fits, placement=placement(("node-1", 0)))
    with pytest.raises(DoubleAllocationError):
        await world.scheduler.take(lease, [twice], record=record(2))
    assert await numbers(world) == [1]
    assert await world.scheduler.take(lease, [placed], record=record(2)) == [False]  # it was decided all the same
    assert await numbers(world) == [1, 2]


async def test_who_lost_the_lease_writes_no_history(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    for number in (1, 2):
        await world.scheduler.record(lease, record(number, begins=True))
    await world.lead(holder="another")
    with pytest.raises(LeaseLostError):
        await world.scheduler.record(lease, record(3))
    with pytest.raises(LeaseLostError):
        await world.scheduler.take(lease, [step(job, _E.CANCELLED, at=AT)], record=record(3))
    with pytest.raises(LeaseLostError):
        await world.scheduler.trim_history(lease, before=AT, bytes_max=0)
    assert await numbers(world) == [1, 2]


@pytest.mark.parametrize(
    ("before", "bytes_max", "left"),
    [
        (AT, 1000, [1, 2, 3, 4, 5, 6, 7]),
        (AT + 3.5, 1000, [3, 4, 5, 6, 7]),  # what follows the last beginning that is too old may be younger
        (AT + 100, 1000, [6, 7]),
        (AT, 60, [3, 4, 5, 6, 7]),
        (AT, 49, [6, 7]),
        (AT, 0, [6, 7]),  # there is always something to begin with
        (AT + 100, 60, [6, 7]),
    ],
)
async def test_what_is_left_of_a_history_begins_with_a_beginning(
    world: World, before: float, bytes_max: int, left: list[int]
) -> None:
    lease = await world.lead()
    other = await world.lead("other")
    await world.scheduler.record(other, record(1, begins=True))
    for number in range(1, 8):
        await world.scheduler.record(lease, record(number, begins=number in (1, 3, 6), at=AT + number))
    dropped = await world.scheduler.trim_history(lease, before=before, bytes_max=bytes_max)
    assert (dropped, await numbers(world)) == (7 - len(left), left)
    assert await world.scheduler.trim_history(lease, before=before, bytes_max=bytes_max) == 0
    assert len(await world.gateway.history(pool="other")) == 1


async def test_trimming_a_history_that_is_not_there_is_nothing(world: World) -> None:
    assert await world.scheduler.trim_history(await world.lead(), before=AT, bytes_max=0) == 0


async def test_what_was_told_until_a_moment_is_alike_in_every_store(world: World) -> None:
    """At each event of the documented history, by its time and by its cursor: of open jobs all, of nodes the last."""
    memory = MemoryStore()
    expected = await tell_everything(memory, memory)
    found = await tell_everything(world.gateway, world.scheduler)
    for mine, its in zip(found, expected, strict=True):
        for ours, theirs in (
            (Moment(at=mine.at), Moment(at=its.at)),
            (Moment(cursor=mine.cursor), Moment(cursor=its.cursor)),
        ):
            told_here = await world.gateway.told_until(ours)
            told_there = await memory.told_until(theirs)
            assert [event.message_id for event in told_here] == [event.message_id for event in told_there]
    last = await world.gateway.told_until(Moment())
    assert [event.message_id for event in last] == ["nodes/node-1/6"]  # every job is over
    assert await world.gateway.told_until(Moment(at=1.0)) == []


async def test_jobs_are_found_by_their_ids_in_the_order_of_submission(world: World) -> None:
    for job_id in ("j-2", "j-1", "j-3"):
        await world.gateway.submit(spec(), job_id=job_id, tenant="alice", key=None, at=AT)
    assert [job.id for job in await world.gateway.jobs_of(["j-3", "j-2", "j-9"])] == ["j-2", "j-3"]
    assert await world.gateway.jobs_of([]) == []
