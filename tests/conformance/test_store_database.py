"""What only a database can promise, or refuse; and that the store in one process does to a job what it does."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import postgres
from tests.support.builders import node, spec
from tests.support.doubles.store import MemoryStore
from tests.support.steps import changes_of, placement
from tests.support.stores import AT, told, world_of
from tests.support.tier import examples
from weft.domain.job import NEW_EPOCH, STEPS, Cause, CauseCode, Job, JobEvent, JobState, Loan, Revision, Step
from weft.domain.lease import Lease
from weft.messages.events import Event
from weft.store import DoubleAllocationError, LoadedSinceError, StoreUnavailableError, UnlawfulError
from weft.store.postgres import PostgresStore
from weft.store.sql import QUERIES

_E, _S = JobEvent, JobState

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


async def test_a_load_waits_for_an_admission_under_way_and_then_finds_its_jobs(real: postgres.Stores) -> None:
    lease = await real.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    load = await real.scheduler.lead_by(lease, "")
    await real.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
    connection = await real.server.connect("scheduler")
    try:
        async with connection.transaction():
            (born,) = await connection.fetch(QUERIES["admit"], "default", "me", 1, load, "default", 10, 1 << 20)
            loading = asyncio.create_task(real.scheduler.lead_by(lease, ""))
            await asyncio.wait([loading], timeout=0.5)
            assert not loading.done()
            assert await real.scheduler.open_jobs(pool="default") == []  # a load that did not wait would miss it
        assert await loading == load + 1
        assert [job.id for job in await real.scheduler.open_jobs(pool="default")] == [born["id"]] == ["j-1"]
    finally:
        await connection.close()


async def test_an_admission_makes_no_job_of_a_submission_that_it_did_not_see_and_so_would_not_tell_of(
    real: postgres.Stores,
) -> None:
    """What is stored while it waits for its lease comes with the next one, though it is another tenant's turn."""
    lease = await real.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    load = await real.scheduler.lead_by(lease, "")
    for number in range(3):
        await real.gateway.submit(spec(), job_id=f"j-{number}", tenant="bob", key=None, at=AT)
    connection = await real.server.connect("scheduler")
    try:
        async with connection.transaction():
            assert await connection.fetchval(QUERIES["lead_by"], "default", "me", 1, "", 0.0, 0) == load + 1
            admitting = asyncio.create_task(real.scheduler.admit(lease, load=load + 1, pool="default", limit=2))
            await asyncio.wait([admitting], timeout=0.5)
            assert not admitting.done()
            await real.gateway.submit(spec(), job_id="j-late", tenant="alice", key=None, at=AT)
    finally:
        await connection.close()
    told_of = [job.id for job in await admitting]
    assert told_of == ["j-0", "j-1"]
    assert [job.id for job in await real.scheduler.open_jobs(pool="default")] == told_of
    late = await real.scheduler.admit(lease, load=load + 1, pool="default", limit=9)
    assert [job.id for job in late] == ["j-2", "j-late"]


async def test_an_admission_waits_for_a_load_that_begins_and_is_then_refused(real: postgres.Stores) -> None:
    lease = await real.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    load = await real.scheduler.lead_by(lease, "")
    await real.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
    connection = await real.server.connect("scheduler")
    try:
        async with connection.transaction():
            assert await connection.fetchval(QUERIES["lead_by"], "default", "me", 1, "", 0.0, 0) == load + 1
            admitting = asyncio.create_task(real.scheduler.admit(lease, load=load, pool="default", limit=10))
            await asyncio.wait([admitting], timeout=0.5)
            assert not admitting.done()
        with pytest.raises(LoadedSinceError):
            await admitting
        assert await real.scheduler.open_jobs(pool="default") == []
        assert len(await real.scheduler.admit(lease, load=load + 1, pool="default", limit=10)) == 1
    finally:
        await connection.close()


async def test_a_specification_of_a_later_version_is_admitted_and_read_by_every_service(real: postgres.Stores) -> None:
    """While a cluster is upgraded, the gateway may be of the new version, and the scheduler of this one."""
    lease = await real.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    load = await real.scheduler.lead_by(lease, "")
    wanted = spec("chat", kind="inference", service={"ready": "/healthz"}, checkpoints={"every": "10m"})
    await real.gateway.submit(wanted, job_id="j-1", tenant="alice", key=None, at=AT)
    later = json.loads(msgspec.json.encode(wanted))
    for part in (later, later["service"], later["checkpoints"], *later["roles"].values()):
        part["later"] = {"of": ["a", "later", "version"]}
    await real.owner.execute("UPDATE submissions SET spec = $1::text::json", json.dumps(later))
    (admitted,) = await real.scheduler.admit(lease, load=load, pool="default", limit=10)
    (loaded,) = await real.scheduler.open_jobs(pool="default")
    (shown,) = await real.gateway.jobs(tenant="alice")
    assert admitted.spec == loaded.spec == shown.spec == wanted
    assert [one.rules for one in await real.router.open_services()] == [wanted.service]


async def test_a_load_waits_for_a_node_that_is_being_stored_and_then_finds_it(real: postgres.Stores) -> None:
    lease = await real.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    load = await real.scheduler.lead_by(lease, "")
    await real.scheduler.save_node(lease, node(), event="joined", cause="", load=load)
    connection = await real.server.connect("scheduler")
    try:
        async with connection.transaction():
            await connection.execute(QUERIES["remove_node"], "default", "me", 1, "node-1", "gone", AT, load)
            loading = asyncio.create_task(real.scheduler.lead_by(lease, ""))
            await asyncio.wait([loading], timeout=0.5)
            assert not loading.done()
            assert len(await real.scheduler.nodes(pool="default")) == 1
        assert await loading == load + 1
        assert await real.scheduler.nodes(pool="default") == []
    finally:
        await connection.close()


async def test_what_is_told_sent_while_events_come_back_takes_none_of_them_out(real: postgres.Stores) -> None:
    await real.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
    before = await real.scheduler.unsent(limit=10)
    connection = await real.server.connect("scheduler")
    try:
        async with connection.transaction():
            assert await connection.fetchval(QUERIES["resend"], AT) == 0  # it waited, and has another entry now
            telling = asyncio.create_task(real.scheduler.sent(before))
            await asyncio.wait([telling], timeout=0.5)
            assert not telling.done()
        await telling
        (again,) = await real.scheduler.unsent(limit=10)
        assert again.event == before[0].event
        async with connection.transaction():
            await connection.execute("DELETE FROM outbox")  # as `sent` does
            returning = asyncio.create_task(real.scheduler.resend(since=AT))
            await asyncio.wait([returning], timeout=0.5)
            assert not returning.done()
        await returning
        assert [unsent.event for unsent in await real.scheduler.unsent(limit=10)] == [again.event]
    finally:
        await connection.close()


async def test_a_relay_of_the_version_before_takes_out_events_by_their_ids(real: postgres.Stores) -> None:
    for number in range(2):
        await real.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT)
    one, two = await real.scheduler.unsent(limit=10)
    connection = await real.server.connect("scheduler")
    try:
        await connection.execute("DELETE FROM outbox WHERE event_id = ANY ($1::bigint[])", [one.event.id, two.event.id])
        again = "INSERT INTO outbox (event_id) SELECT id FROM events WHERE id = $1 ON CONFLICT DO NOTHING"
        await connection.execute(again, two.event.id)
    finally:
        await connection.close()
    (back,) = await real.scheduler.unsent(limit=10)
    assert back.event == two.event
    assert back.entry > two.entry


async def test_a_submission_by_a_clock_that_is_ahead_is_stored_at_the_time_of_the_database(
    real: postgres.Stores,
) -> None:
    ahead = time.time() + 180.0
    await real.gateway.submit(spec("ahead"), job_id="ahead", tenant="alpha", key="ahead", at=ahead)
    await real.gateway.submit(spec("behind"), job_id="behind", tenant="alpha", key="behind", at=AT)
    [stored], [behind] = await real.gateway.story("ahead"), await real.gateway.story("behind")
    assert ahead - 190.0 < stored.at <= time.time()
    assert behind.at == AT


async def test_the_database_itself_refuses_what_is_no_step(real: postgres.Stores) -> None:
    world = world_of(real)
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
            "UPDATE jobs SET last_event = 'requeued', version = 2, epoch = 1",  # it waits already
            "UPDATE jobs SET last_event = 'succeeded', state = 'succeeded', version = 2, ended_at = now()",
            "UPDATE jobs SET last_event = 'cancelled', state = 'failed', version = 2, ended_at = now()",
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


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


# the store in one process against the one in Postgres

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
    where: dict[str, Any] = {}
    match event:
        case _E.PLACED:
            where = {"placement": placement(("n", number))}
        case _E.RESIZED | _E.RESTARTED:
            where = {"placement": placement(("n", number), ("n", number + 4)), "worked": {"worker": number}}
            where |= {"loans": (Loan(lender="j-0", rank=number, gpus=0.5, ranks=1, since=AT),)[:number]}
        case _E.STOPPING if number:
            where = {"next_placement": placement(("n", number), ("n", number + 4))}
        case _E.SCALED:
            where = {"size": {"worker": number}}
        case _E.UPDATED:
            where = {"revisions": (Revision(number=number + 1, image="i:2", env={"A": "1"}, at=AT, back_to=0),)}
    return Step(
        job_id=job.id,
        version=job.version - (way == "stale"),
        event=event,
        to=list(_S)[number] if way == "to" else STEPS[job.state, event],
        epoch=job.epoch + (event in NEW_EPOCH) + (way == "epoch"),
        **with_fields,
        **where,
    )


async def outcome(store: MemoryStore | PostgresStore, lease: Lease, job: Job, made: Step) -> Any:
    try:
        return await store.take(lease, changes_of([job], [made]))
    except UnlawfulError:
        return "illegal"
    except DoubleAllocationError:
        return "double"


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        await store.admit(lease, load=0, pool="default", limit=10)
        leases.append(lease)
    for number, drawn in enumerate(script):
        job = await memory.job(f"j-{number % 2}")
        assert job is not None
        made = attempt(job, drawn)
        found = [await outcome(store, lease, job, made) for store, lease in zip(stores, leases, strict=True)]
        assert found[0] == found[1], made
        assert await memory.jobs(tenant=None) == await real.gateway.jobs(tenant=None)
    for job_id in ("j-0", "j-1"):
        in_memory, in_postgres = await memory.story(job_id), await real.gateway.story(job_id)
        assert [told(event) for event in in_memory] == [told(event) for event in in_postgres]
