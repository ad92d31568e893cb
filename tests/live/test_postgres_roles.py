"""What Postgres itself holds: each role's rights, migrations that run once, and a store that outlasts its server."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec import Struct

from tests.support import postgres
from tests.support.builders import node, spec
from tests.support.postgres import Server, Stores
from weft.credentials import Credentials, provision
from weft.domain.job import Cause, CauseCode
from weft.domain.lease import Lease
from weft.messages.asks import RankTuning, Scale, Tune
from weft.messages.events import Event
from weft.servers import erase, up
from weft.store import StoreUnavailableError, Unsent
from weft.store.asking import ACQUIRE_SECONDS_MAX, COMMAND_SECONDS_MAX, CONNECT_SECONDS_MAX
from weft.store.migrate import ROLES, MigrationError, migrate
from weft.store.postgres import PostgresStore
from weft.store.tuning import Envelope

AT = 1_700_000_000.0
TUNE = Tune(epoch=0, ranks=(RankTuning(rank=0, cpus=1.0),), cause=Cause(code=CauseCode.UPSCALED))
ANSWER_SECONDS_MAX = ACQUIRE_SECONDS_MAX + COMMAND_SECONDS_MAX + CONNECT_SECONDS_MAX

# Who may write what; everything else is refused. `table.column` where only that column may be changed.
MAY_WRITE = {
    "gateway": {
        "INSERT": {
            *{"tenants", "tokens", "submissions", "asks", "events", "outbox", "tenant_submitted"},
            *{"webhooks", "duties", "quotas", "secrets", "contexts", "context_pieces", "sign_ins", "people"},
            *{"schedules", "join_tokens"},
        },
        "UPDATE": {
            "quotas",
            "tokens.revoked_at",
            "tokens.used_at",
            "sign_ins.used_at",
            "sign_ins.ended_at",
            "people.name",
            "people.tenant",
            "people.role",
            "people.signed_in_at",
            "people.disabled_at",
            "tenants.jobs_open_max",
            "tenants.spec_bytes_max",
            "tenants.priority_max",
            "tenants.may_be_unpreemptible",
            "tenants.idle_seconds_max",
            "tenant_submitted",
            "webhooks",
            "schedules",
            "secrets",
            "contexts",
            "duties",
            "join_tokens",
        },
        "DELETE": {"tokens", "sign_ins", "quotas", "webhooks", "schedules", "secrets", "contexts", "join_tokens"},
    },
    "scheduler": {
        "INSERT": {
            *{"leases", "leaderships", "jobs", "gpu_slots", "nodes", "events", "outbox", "decisions", "policies"},
            "event_stream",
            "tenant_ended",
            "revisions",
        },
        "UPDATE": {"leases", "jobs", "nodes", "outbox", "event_stream", "policies", "tenant_ended"},
        "DELETE": {"asks", "gpu_slots", "leaderships", "nodes", "outbox", "decisions", "revisions"},
    },
    "scorer": {
        "INSERT": {"gpu_scores", "workload_classes", "curves", "class_slowdowns", "workload_penalties"},
        "UPDATE": {"gpu_scores", "workload_classes", "curves", "class_slowdowns", "workload_penalties"},
        "DELETE": {"gpu_scores", "workload_classes", "curves", "class_slowdowns", "workload_penalties"},
    },
    "reallocator": {
        "INSERT": {"envelopes", "restart_costs"},
        "UPDATE": {"envelopes", "restart_costs"},
        "DELETE": {"envelopes", "restart_costs"},
    },
    "router": {},
}
OF_GATEWAYS = {"webhooks", "schedules", "duties", "secrets", "contexts", "context_pieces", "audit", "join_tokens"}
SIGN_INS = {"sign_ins", "people"}  # a router looks sessions up, too
MAY_NOT_READ = {
    "gateway": {
        *{"leases", "leaderships", "job_steps", "outbox", "event_stream", "migrations", "rungs", "restart_costs"},
        "revisions",
    },
    "scheduler": {
        *OF_GATEWAYS,
        *SIGN_INS,
        "tenants",
        "tokens",
        "migrations",
        "envelopes",
        "rungs",
        "restart_costs",
        "retention",
        "event_offset",
        "tenant_submitted",
    },
    "scorer": {
        *OF_GATEWAYS,
        *SIGN_INS,
        *{
            "quotas",
            "revisions",
            "tenants",
            "tokens",
            "asks",
            "leases",
            "leaderships",
            "policies",
            "decisions",
            "job_steps",
            "gpu_slots",
            "events",
            "outbox",
            "migrations",
            "envelopes",
            "rungs",
            "restart_costs",
            "retention",
            "event_offset",
            "event_stream",
            "tenant_submitted",
            "tenant_ended",
        },
    },
    "reallocator": {
        *OF_GATEWAYS,
        *SIGN_INS,
        *{"tenants", "tokens", "asks", "leases", "leaderships", "policies", "decisions", "job_steps", "outbox"},
        "migrations",
        "retention",
        "class_slowdowns",
        "revisions",
        "event_offset",
        "event_stream",
        "tenant_submitted",
        "tenant_ended",
    },
    "router": {
        *OF_GATEWAYS,
        "revisions",
        *{"asks", "leases", "leaderships", "policies", "decisions", "job_steps", "outbox", "migrations", "retention"},
        *{
            "quotas",
            "event_offset",
            "event_stream",
            "tenant_submitted",
            "tenant_ended",
            "submissions",
            "jobs",
            "gpu_slots",
            "events",
        },
        *{"envelopes", "rungs", "restart_costs", "gpu_scores", "workload_classes", "curves", "class_slowdowns"},
        "workload_penalties",
    },
}
MAY_NOT_DO = (
    "CREATE TABLE mine (id int)",
    "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE OR REPLACE FUNCTION job_step_is_legal() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
    "ALTER TABLE jobs DISABLE TRIGGER ALL",
    "DROP TABLE jobs",
    "SET session_replication_role = replica",
    "SET ROLE weft_owner",
    "CREATE ROLE mine",
    "COPY (SELECT 1) TO PROGRAM 'true'",
    "CREATE TEMP TABLE job_steps (from_state text, event text, to_state text)",
    "CREATE TEMP VIEW leases AS SELECT 'default' AS name",
    "CREATE FUNCTION pg_temp.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "SELECT lo_create(0)",
    "SELECT lo_creat(-1)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT lo_import('/etc/hostname')",
    "SELECT continue_events()",
)


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    async with postgres.embedded(tmp_path_factory.mktemp("roles")) as server:
        await server.migrate()
        yield server


async def columns(server: Server) -> dict[str, list[str]]:
    """The columns of every table."""
    connection = await server.connect()
    rows = await connection.fetch(
        "SELECT table_name, column_name FROM information_schema.columns JOIN information_schema.tables"
        " USING (table_schema, table_name) WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
    )
    await connection.close()
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["table_name"], []).append(row["column_name"])
    return found


def database_of(server: Server) -> str:
    return urlsplit(server.dsn).path.removeprefix("/")


async def refused(connection: asyncpg.Connection, statement: str) -> bool:
    """Whether the role may not do it; whatever it may do is undone."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    except asyncpg.IntegrityConstraintViolationError:
        return False
    finally:
        await transaction.rollback()
    return False


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_writes_what_is_its_own_and_nothing_else(server: Server, role: str) -> None:
    may = MAY_WRITE[role]
    tables = await columns(server)
    assert len(tables) == 40
    connection = await server.connect(role)
    wrong: list[str] = []
    for table, of_table in tables.items():
        checks = [
            (f"INSERT INTO {table} DEFAULT VALUES", table in may.get("INSERT", ())),
            (f"DELETE FROM {table} WHERE false", table in may.get("DELETE", ())),
            (f"TRUNCATE {table}", False),
            (f"SELECT FROM {table} WHERE false", table not in MAY_NOT_READ[role]),
        ]
        for column in of_table:
            allowed = {table, f"{table}.{column}"} & may.get("UPDATE", set())
            checks.append((f"UPDATE {table} SET {column} = DEFAULT WHERE false", bool(allowed)))
        wrong += [statement for statement, allowed in checks if await refused(connection, statement) == allowed]
    await connection.close()
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
async def test_no_role_changes_the_law(server: Server, role: str) -> None:
    connection = await server.connect(role)
    allowed = [statement for statement in MAY_NOT_DO if not await refused(connection, statement)]
    await connection.close()
    assert allowed == []


async def test_a_temporary_table_stands_before_no_table_of_the_law(server: Server) -> None:
    """The attack, by a role that may make temporary tables: as it was before, and may be where the owner is another."""
    owner = await server.connect()
    await owner.execute("TRUNCATE leases, submissions CASCADE")
    scheduler = await server.connect("scheduler")
    try:
        async with postgres.stores(server) as stores:
            lease = await stores.scheduler.take_lease("default", holder="me", seen=None)
            assert lease is not None
            await stores.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT)
            await stores.scheduler.admit(lease, load=0, pool="default", limit=1)
        await owner.execute(f"GRANT TEMPORARY ON DATABASE {database_of(server)} TO weft_scheduler")
        await scheduler.execute("CREATE TEMP TABLE job_steps (from_state text, event text, to_state text)")
        await scheduler.execute("INSERT INTO job_steps VALUES ('queued', 'started', 'running')")
        with pytest.raises(asyncpg.CheckViolationError, match="is no step"):
            await scheduler.execute(
                "UPDATE jobs SET state = 'running', last_event = 'started', version = 2, placement = '{}'"
            )
        await scheduler.execute("CREATE TEMP TABLE leases (name text, holder text, epoch bigint, seq bigint)")
        await scheduler.execute("INSERT INTO leases VALUES ('default', 'nobody', 99, 0)")
        with pytest.raises(asyncpg.PostgresError, match="is no longer held by"):
            await scheduler.execute("SELECT must_hold('default', 'nobody', 99)")
    finally:
        await owner.execute(f"REVOKE TEMPORARY ON DATABASE {database_of(server)} FROM weft_scheduler")
        await scheduler.close()
        await owner.close()


async def test_every_function_says_where_its_names_are_looked_up(server: Server) -> None:
    owner = await server.connect()
    rows = await owner.fetch(
        "SELECT proname, proconfig FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY proname"
    )
    await owner.close()
    assert len(rows) >= 10
    wanted = "search_path=public, pg_temp"
    assert {row["proname"] for row in rows if wanted not in (row["proconfig"] or [])} == set()


async def test_every_table_has_one_writer_but_for_the_queues_and_the_story() -> None:
    writers: dict[str, set[str]] = {}
    for role, may in MAY_WRITE.items():
        for tables in may.values():
            for table in tables:
                writers.setdefault(table.partition(".")[0], set()).add(role)
    assert {table for table, roles in writers.items() if len(roles) > 1} == {"asks", "events", "outbox"}


async def test_a_store_of_one_role_cannot_write_for_another(server: Server) -> None:
    async with postgres.stores(server) as stores:
        lease = Lease(name="default", holder="me", epoch=1, seq=0)
        for forbidden in (
            stores.gateway.take_lease("default", holder="me", seen=None),
            stores.gateway.save_node(lease, node(), event="joined", cause=""),
            stores.gateway.admit(lease, load=0, pool="default", limit=1),
            stores.gateway.sent(
                [Unsent(entry=1, event=Event(id=1, topic="jobs", event="placed", subject_id="j-1", version=1, at=AT))]
            ),
            stores.scheduler.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT),
            stores.scheduler.access(bytes(32), at=AT),
            stores.scheduler.add_token(bytes(32), tenant="alice", admin=True, label="", at=AT),
            stores.scorer.drop_asks(lease, [1]),
            stores.reallocator.save_scores([], at=AT),
            stores.reallocator.save_classes([], pool="default"),
            stores.scheduler.save_curves([]),
            stores.scheduler.save_envelope(Envelope(job_id="j-1", pool="default", epoch=0, state=b"{}"), at=AT),
            stores.scheduler.save_restart_costs([], pool="default"),
            stores.gateway.restart_costs(pool="default", limit=1),
            stores.scorer.forget_restart_costs(pool="default", before=AT, keep=1),
            stores.gateway.ask_tune(Envelope(job_id="j-1", pool="default", epoch=0, state=b"{}"), TUNE, at=AT),
            stores.gateway.ask_scale(
                Envelope(job_id="j-1", pool="default", epoch=0, state=b"{}"), Scale(size={"worker": 1}), at=AT
            ),
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await forbidden


# migrations


async def migrations(server: Server) -> dict[str, str]:
    connection = await server.connect()
    rows = await connection.fetch("SELECT name, sha256 FROM migrations")
    await connection.close()
    return {row["name"]: row["sha256"] for row in rows}


async def test_migrations_run_once_however_often_and_at_once_they_are_asked_for(server: Server) -> None:
    fresh = await server.make("migrated")
    ran = await asyncio.gather(*(fresh.migrate() for _ in range(6)))
    before = await migrations(fresh)
    assert sorted(ran) == [[], [], [], [], [], sorted(before)]
    assert len(before) >= 1
    assert await fresh.migrate() == []
    assert await migrations(fresh) == before


async def test_functions_and_views_have_the_text_of_this_version_after_every_migrate(server: Server) -> None:
    owner = await server.connect()
    try:
        await owner.execute(
            "CREATE OR REPLACE FUNCTION must_hold(lease_name text, lease_holder text, lease_epoch bigint)"
            " RETURNS void LANGUAGE plpgsql AS 'BEGIN RETURN; END'"
        )
        await server.migrate()
        with pytest.raises(asyncpg.PostgresError, match="is no longer held by"):
            await owner.execute("SELECT must_hold('default', 'nobody', 1)")
    finally:
        await owner.close()


async def test_a_migration_that_changed_after_it_ran_stops_everything(server: Server) -> None:
    fresh = await server.make("changed")
    await fresh.migrate()
    connection = await fresh.connect()
    await connection.execute("UPDATE migrations SET sha256 = 'other' WHERE name = '0001_first'")
    await connection.close()
    before = await migrations(fresh)
    with pytest.raises(MigrationError, match="0001_first was changed"):
        await fresh.migrate()
    assert await migrations(fresh) == before


async def test_a_migration_that_this_version_does_not_know_stops_everything(server: Server) -> None:
    fresh = await server.make("newer")
    connection = await fresh.connect()
    await connection.execute("CREATE TABLE migrations (name text PRIMARY KEY, sha256 text, at timestamptz)")
    await connection.execute("INSERT INTO migrations VALUES ('9999_later', 'x', now())")
    await connection.close()
    with pytest.raises(MigrationError, match="9999_later"):
        await fresh.migrate()
    assert (await columns(fresh)).keys() == {"migrations"}


async def test_a_database_that_was_made_before_the_first_release_is_refused_and_left_as_it_is(server: Server) -> None:
    fresh = await server.make("before_release")
    connection = await fresh.connect()
    await connection.execute("CREATE TABLE migrations (name text PRIMARY KEY, sha256 text, at timestamptz)")
    for name in ("0001_first", "0002_decisions", "0034_outbox_in_turn"):
        await connection.execute("INSERT INTO migrations VALUES ($1, 'x', now())", name)
    await connection.close()
    with pytest.raises(MigrationError, match=r"version before 0\.1\.0 made this database"):
        await fresh.migrate()
    assert (await columns(fresh)).keys() == {"migrations"}


async def test_no_gpu_is_held_beyond_its_time_and_its_memory(server: Server) -> None:
    fresh = await server.make("whole_gpus")
    await fresh.migrate()
    connection = await fresh.connect()
    try:
        await connection.execute("ALTER TABLE gpu_slots DROP CONSTRAINT gpu_slots_job_id_fkey")
        slot = "INSERT INTO gpu_slots (node_id, gpu_index, job_id, epoch, rank"
        await connection.execute(f"{slot}) VALUES ('n', 2, 'j-2', 0, 1)")  # all of it
        for more in ("rank) VALUES ('n', 2, 'j-3', 0, 0)", "rank, part, memory) VALUES ('n', 2, 'j-3', 0, 0, 1, 0)"):
            with pytest.raises(asyncpg.UniqueViolationError, match="GPU 2 of n"):
                await connection.execute(slot.removesuffix("rank") + more)
        await connection.execute(f"{slot}) VALUES ('n', 3, 'j-3', 0, 0)")
    finally:
        await connection.close()


async def test_a_role_gets_its_password_anew(server: Server) -> None:
    changed = {role: f"{server.passwords[role]}-new" for role in ROLES}
    await migrate(server.dsn, user=None, password=server.passwords["owner"], role_passwords=changed)
    try:
        with pytest.raises(asyncpg.InvalidPasswordError):
            await server.connect("scorer")
        await (await Server(dsn=server.dsn, passwords=changed).connect("scorer")).close()
    finally:
        await server.migrate()


# a server that fails


class Failing(Struct):
    """A server that the test may kill, hang and start again."""

    home: Path
    credentials: Credentials
    stores: Stores
    pid: int

    async def start(self) -> None:
        started = await up(self.home, credentials=self.credentials, nats_url="nats://not-wanted")
        assert started.pg_pid is not None
        assert started.pg_dsn == self.stores.server.dsn
        self.pid = started.pg_pid

    def signal(self, number: signal.Signals) -> None:
        """To the postmaster, and with SIGSTOP and SIGCONT to its children too."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in [str(self.pid), *(children if number is not signal.SIGKILL else ())]:
            os.kill(int(pid), number)


@pytest.fixture
async def failing(tmp_path: Path) -> AsyncIterator[Failing]:
    credentials = provision(tmp_path / "credentials", nodes=[])
    home = tmp_path / "home"
    try:
        started = await up(home, credentials=credentials, nats_url="nats://not-wanted")
        passwords = {role: credentials.postgres_password(role) for role in ("owner", *ROLES)}
        assert started.pg_pid is not None
        async with postgres.stores(Server(dsn=started.pg_dsn, passwords=passwords)) as stores:
            yield Failing(home, credentials, stores, started.pg_pid)
    finally:
        await erase(home)


def calls(stores: Stores) -> list[Callable[[], Awaitable[object]]]:
    lease = Lease(name="default", holder="me", epoch=1, seq=0)
    return [
        lambda: stores.gateway.jobs(tenant=None),
        lambda: stores.gateway.submit(spec(), job_id="j-never", tenant="alice", key=None, at=AT),
        lambda: stores.scheduler.renew_lease(lease),
        lambda: stores.scheduler.touch_nodes(lease, [], at=AT),
        lambda: stores.scorer.save_scores([], at=AT),
        lambda: stores.reallocator.holding_jobs(pool="default"),
    ]


async def fails_in_time(call: Callable[[], Awaitable[object]]) -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        await call()
    assert time.monotonic() - began < ANSWER_SECONDS_MAX


async def test_a_store_outlasts_its_server_and_what_was_acknowledged_is_there(failing: Failing) -> None:
    gateway = failing.stores.gateway
    acknowledged: set[str] = set()
    lease = await failing.stores.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    written = asyncio.Event()

    async def submit_until_it_fails(number: int) -> None:
        for count in range(100_000):
            job_id = f"j-{number}-{count}"
            await gateway.submit(spec(), job_id=job_id, tenant="alice", key=None, at=AT)
            acknowledged.add(job_id)
            if len(acknowledged) >= 40:
                written.set()

    writers = [asyncio.ensure_future(submit_until_it_fails(number)) for number in range(8)]
    await written.wait()
    failing.signal(signal.SIGKILL)
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        ended = await asyncio.gather(*writers, return_exceptions=True)
    assert {type(how) for how in ended} == {StoreUnavailableError}
    for _ in range(2):
        await asyncio.gather(*(fails_in_time(call) for call in calls(failing.stores)))
    await failing.start()
    jobs = await gateway.jobs(tenant="alice", limit=100_000)
    assert acknowledged <= {job.id for job in jobs}
    assert await failing.stores.scheduler.renew_lease(lease) is not None
    assert len(await gateway.events(limit=100_000)) == len(jobs)
    for call in calls(failing.stores):
        await call()


async def test_a_server_that_hangs_is_unavailable_and_is_used_again_once_it_goes_on(failing: Failing) -> None:
    lease = await failing.stores.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    failing.signal(signal.SIGSTOP)
    try:
        await asyncio.gather(*(fails_in_time(call) for call in calls(failing.stores)))
    finally:
        failing.signal(signal.SIGCONT)
    assert await failing.stores.scheduler.renew_lease(lease) is not None
    for call in calls(failing.stores)[2:]:
        await call()


async def test_a_server_that_is_not_there_is_unavailable_from_the_start() -> None:
    with pytest.raises(StoreUnavailableError):
        async with PostgresStore.connect("postgresql://weft_gateway@127.0.0.1:1/weft", password="x"):
            pass
