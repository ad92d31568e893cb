"""What is asked often is answered by an index, however much a cluster has stored in its life."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

from tests.support import postgres
from tests.support.builders import spec
from tests.support.filled import SPEC, fill_ended, fill_queued
from tests.support.postgres import Stores
from weft.domain.job import JobState
from weft.domain.selection import Selection
from weft.store import ASKS_BYTES_MAX, LISTED_BYTES_MAX, UNSENT_BYTES_MAX
from weft.store.accounts import Moment
from weft.store.asking import Asking
from weft.store.postgres.events import ROUNDED_SECONDS
from weft.store.rows import selection_columns
from weft.store.sql import QUERIES

DAY = 86400.0
ENDED, QUEUED = 10_000, 500
LARGE = {"jobs", "events", "submissions"}
LAST = 2**62


@pytest.fixture(scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stores]:
    async with (
        postgres.embedded(tmp_path_factory.mktemp("size")) as server,
        postgres.stores(server) as stores,
    ):
        now = time.time()
        await fill_ended(stores.owner, ENDED, began=now - 200 * DAY, lasting=190 * DAY)
        await fill_queued(stores.owner, QUEUED, at=now - 60)
        await stores.owner.execute("VACUUM ANALYZE", timeout=60)
        yield stores


def asked_often(now: float) -> dict[str, tuple[Any, ...]]:
    """Statements that are asked every second or for every request, with arguments as they have."""
    statuses = ["queued", "placed", "starting", "running", "stopping"]
    return {
        "job": ("old-7",),
        "jobs_of": (["old-7", "old-8"], 0, 500, 1 << 20),
        "jobs": ("beta", [], "", LAST, 100, LISTED_BYTES_MAX),
        "jobs_open": ("beta", statuses, "", LAST, 100, LISTED_BYTES_MAX),
        "holding_jobs": ("default", 0, 500, 1 << 20),
        "first_queued_versions": ("default", 100),
        "open_services": (None,),
        "story_after": ("old-7", 0, 0, 1000, 1 << 20, []),
        "story_newest": ("old-7", LAST, LAST, 1000, 1 << 20, []),
        "submitted_before": ("alpha", "old-key-7"),
        "events_after": (0, 0, 100, 1 << 20),
        "events_newest": (0, 0, 100, 1 << 20, LAST, LAST),
        "events_of_tenant_after": (0, 0, 100, 1 << 20, "quiet"),
        "events_of_tenant_newest": (0, 0, 100, 1 << 20, LAST, LAST, "quiet"),
        "time_of": (LAST, LAST),
        "ended_jobs": (["alpha", "weft"], now - 60, now, "weft/benchmark"),
        "ended_last": ("default", now - 60, 500),
        "unsent": (100, UNSENT_BYTES_MAX),
        "jobs_between": (now - 60, 1000),
        "accounts": (int((now - 60) * 1e6), int(now * 1e6), [f"old-{number}" for number in range(2000)]),
        "node_stories": (int((now - 60) * 1e6), int(now * 1e6)),
        "envelopes": ("default",),
        "asks": ("default", 100, ASKS_BYTES_MAX),
    }


async def scanned(stores: Stores, query: str, arguments: tuple[Any, ...]) -> set[str]:
    """The tables that the statement reads from the first row to the last."""
    rows = await stores.owner.fetch(f"EXPLAIN (FORMAT JSON) {QUERIES[query]}", *arguments)
    found: set[str] = set()

    def look(node: dict[str, Any]) -> None:
        if node["Node Type"] == "Seq Scan":
            found.add(node["Relation Name"])
        for child in node.get("Plans", ()):
            look(child)

    look(json.loads(rows[0][0])[0]["Plan"])
    return found


@pytest.mark.parametrize("query", asked_often(0.0))
async def test_what_is_asked_often_reads_no_large_table_whole(filled: Stores, query: str) -> None:
    assert await scanned(filled, query, asked_often(time.time())[query]) & LARGE == set()


async def test_a_moment_just_now_is_told_without_reading_a_large_table_whole(filled: Stores) -> None:
    now = time.time()
    assert await scanned(filled, "told_until", (now, LAST, LAST, now, ROUNDED_SECONDS)) & LARGE <= {"submissions"}
    told = await filled.gateway.told_until(Moment(at=now))
    assert len({event.subject_id for event in told}) == QUEUED


async def test_of_the_past_exactly_the_jobs_that_were_not_over_are_told(filled: Stores) -> None:
    at = time.time() - 100 * DAY
    expected = await filled.owner.fetch(
        "SELECT id FROM all_jobs"
        " WHERE submitted_at <= to_timestamp($1::float8) AND ended_at > to_timestamp($1::float8)",
        at,
    )
    told = await filled.gateway.told_until(Moment(at=at))
    assert {event.subject_id for event in told} == {row["id"] for row in expected}


async def test_thousands_that_wait_are_admitted_by_an_index_though_few_waited_when_that_was_planned(
    filled: Stores,
) -> None:
    """A session plans what it asks again and again only once, and then the table `asks` may have been empty."""
    owner, count = filled.owner, 0

    async def submit(jobs: int) -> None:
        nonlocal count
        first, count = count, count + jobs
        await owner.execute(
            "WITH made AS (INSERT INTO submissions (id, tenant, pool, name, spec, spec_hash, submitted_at)"
            " SELECT 'wait-' || n, 'alpha', 'waits', 'synthetic', $1::text::json, sha256('{}'), now()"
            " FROM generate_series($2::int, $3::int) n RETURNING id)"
            " INSERT INTO asks (kind, pool, subject_id, tenant, at)"
            " SELECT 'submit', 'waits', id, 'alpha', now() FROM made",
            SPEC,
            first,
            count - 1,
        )

    async def read_whole() -> int:
        """How many rows were read by reading a table from its first row to the last."""
        await connection.execute("SELECT pg_stat_force_next_flush()")
        found = await owner.fetchval(
            "SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname IN ('asks', 'submissions', 'jobs')"
        )
        return int(found)

    lease = await filled.scheduler.take_lease("waits", holder="me", seen=None)
    assert lease is not None
    load = await filled.scheduler.lead_by(lease, "fifo")
    connection = await filled.server.connect("scheduler")
    admit = (QUERIES["admit"], lease.name, lease.holder, lease.epoch, load, "waits", 50, 1 << 20)
    try:
        await owner.execute("VACUUM ANALYZE asks")
        for _ in range(8):  # after five times Postgres keeps a plan for all arguments
            await submit(1)
            assert len(await connection.fetch(*admit)) == 1
        await submit(5_000)
        before = await read_whole()
        assert len(await connection.fetch(*admit)) == 50
        assert await read_whole() - before < 100
    finally:
        await connection.close()


def listed_for_a_tenant(tenant: str) -> dict[str, tuple[Any, ...]]:
    """The statements that list what one tenant has."""
    states = [state.value for state in JobState]
    return {
        "jobs": (tenant, [], "", LAST, 100, LISTED_BYTES_MAX),
        "jobs_apart": (tenant, [], "", LAST, 100, LISTED_BYTES_MAX),
        "jobs_selected": (tenant, states, LAST, 100, *selection_columns(Selection()), LISTED_BYTES_MAX),
        "ids_beginning": (tenant, "old-", 10),
        "events_of_tenant_after": (0, 0, 100, 1 << 20, tenant),
        "events_of_tenant_newest": (0, 0, 100, 1 << 20, LAST, LAST, tenant),
    }


@pytest.mark.parametrize("query", listed_for_a_tenant(""))
async def test_what_one_tenant_lists_reads_no_row_of_another(filled: Stores, query: str) -> None:
    """A session that plans for all tenants at once goes through what the largest have: a small one then read
    everything, for a second of a core."""
    arguments = listed_for_a_tenant("has-nothing")[query]

    owner, server = filled.owner, filled.server

    async def rows_read() -> int:
        await asking.pool.execute("SELECT pg_stat_force_next_flush()")
        found = await owner.fetchval(
            "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables WHERE relname = ANY ($1::text[])",
            list(LARGE),
        )
        return int(found)

    async def believe(how: str) -> None:
        for table in ("submissions", "events"):
            await owner.execute(f"ALTER TABLE {table} ALTER COLUMN tenant {how}")
            await owner.execute(f"ANALYZE {table}")

    await believe("SET (n_distinct = 1)")
    try:
        async with Asking.connect(
            server.dsn, user="weft_gateway", password=server.passwords["gateway"], connections=1
        ) as asking:
            before = await rows_read()
            for _ in range(8):  # after five times Postgres keeps a plan for all arguments
                assert await asking.rows(query, *arguments) == []
            assert await rows_read() - before < 100
    finally:
        await believe("RESET (n_distinct)")


async def test_a_slow_submission_keeps_none_of_its_tenant_waiting(filled: Stores) -> None:
    """Not even those that would count in the same part: with 17 connections, two of them would."""
    insert = (
        "INSERT INTO submissions (id, tenant, pool, name, spec, spec_hash, submitted_at)"
        " VALUES ($1, 'slow', 'default', 'slow', '{}', sha256('x'), now())"
    )
    async with AsyncExitStack() as stack:
        by_part: dict[int, list[asyncpg.Connection[asyncpg.Record]]] = {}
        while max(map(len, by_part.values()), default=0) < 2:
            connection = await filled.server.connect("gateway")
            stack.push_async_callback(connection.close)
            by_part.setdefault(connection.get_server_pid() % 16, []).append(connection)
        slow, quick = next(pair for pair in by_part.values() if len(pair) == 2)
        async with slow.transaction():
            await slow.execute(insert, "slow-1")
            await quick.execute(insert, "slow-2")
        used = await filled.owner.fetchval("SELECT sum(jobs) FROM tenant_use WHERE tenant = 'slow'")
        assert used == 2


async def test_old_jobs_are_deleted_beside_submissions_that_do_not_wait(filled: Stores) -> None:
    lease = await filled.scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    kept = 190 * DAY
    slow = await filled.server.connect("gateway")
    try:
        async with slow.transaction():  # a submission that takes its time
            await slow.execute(
                "INSERT INTO submissions (id, tenant, pool, name, spec, spec_hash, submitted_at)"
                " VALUES ('slow', 'alpha', 'default', 'slow', '{}', sha256('x'), now())"
            )
            deleted = await filled.scheduler.forget_jobs(lease, before=time.time(), kept_seconds=kept, limit=100)
            assert deleted == 100
            await filled.gateway.submit(spec(), job_id="quick", tenant="alpha", key="old-key-1", at=time.time())
    finally:
        await slow.close()
    assert await filled.gateway.job("old-1") is None
    assert await filled.gateway.job("old-101") is not None


async def test_a_moment_just_now_costs_nothing_of_the_jobs_that_ended_shortly_before(filled: Stores) -> None:
    """Their events were read one by one, for seconds, as an hour was taken off for clocks that may differ."""

    async def asked_now() -> tuple[list[str], int]:
        """The job of each event that the query returns for the present moment, and how many events Postgres read."""
        before, now = await read(), time.time()
        found = await connection.fetch(QUERIES["told_until"], now, LAST, LAST, now, ROUNDED_SECONDS)
        await connection.execute("SELECT pg_stat_force_next_flush()")
        return [row["subject_id"] for row in found], await read() - before

    async def read() -> int:
        query = "SELECT idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'events'"
        return int(await filled.owner.fetchval(query))

    connection = await filled.server.connect("gateway")
    try:
        found, cost = await asked_now()
        await fill_ended(filled.owner, 2_000, began=time.time() - 1800, lasting=1700, name="late")
        await filled.owner.execute("VACUUM ANALYZE jobs, events, submissions", timeout=60)
        found_after, cost_after = await asked_now()
    finally:
        await connection.close()
    assert found_after == found
    assert QUEUED < cost_after < cost + 500
