"""A long history is trimmed a part at a time, on a real Postgres."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import postgres
from weft.domain.lease import Lease
from weft.store.postgres.leases import TRIM_BYTES, TRIM_RECORDS

POOL = "default"
# Counts what each statement deletes.
WATCH = """
CREATE TABLE IF NOT EXISTS deleted (records bigint, bytes bigint);
CREATE OR REPLACE FUNCTION count_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO deleted SELECT count(*), COALESCE(sum(octet_length(body)), 0) FROM gone;
    RETURN NULL;
END $$;
CREATE TRIGGER watch AFTER DELETE ON decisions REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION count_deleted();
"""
# Every hundredth begins.
FILL = """
INSERT INTO decisions (pool, epoch, number, format, begins, at, until, cycles, steps, body, bytes_until)
SELECT $1::text, 1, number, 2, number % 100 = 1, now(), now(), 1, 1, convert_to(repeat('x', $3::int), 'UTF8'),
       number * $3::bigint
  FROM generate_series(1, $2::int) AS number
"""


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[postgres.Stores]:
    async with postgres.embedded(tmp_path) as server, postgres.stores(server) as made:
        await made.owner.execute(WATCH)
        yield made


async def led(stores: postgres.Stores) -> Lease:
    lease = await stores.scheduler.take_lease(POOL, holder="me", seen=None)
    assert lease is not None
    return lease


async def left(stores: postgres.Stores) -> tuple[int, int]:
    """How many records, and the number of the first."""
    row = await stores.owner.fetchrow("SELECT count(*) AS records, min(number) AS first FROM decisions")
    assert row is not None
    return row["records"], row["first"]


async def test_a_history_of_very_many_records_is_trimmed_a_part_at_a_time(stores: postgres.Stores) -> None:
    lease = await led(stores)
    await stores.owner.execute(FILL, POOL, 30_000, 100, timeout=60)
    dropped = await stores.scheduler.trim_history(lease, before=0.0, bytes_max=500_000)
    assert (dropped, await left(stores)) == (25_000, (5_000, 25_001))
    assert await stores.owner.fetchval("SELECT max(records) FROM deleted") <= TRIM_RECORDS
    assert await stores.scheduler.trim_history(lease, before=0.0, bytes_max=500_000) == 0


async def test_a_history_of_large_records_is_trimmed_a_part_at_a_time(stores: postgres.Stores) -> None:
    lease = await led(stores)
    size = 1 << 20
    await stores.owner.execute(FILL, POOL, 110, size, timeout=60)
    assert await stores.scheduler.trim_history(lease, before=0.0, bytes_max=10 * size) == 100
    assert await stores.owner.fetchval("SELECT max(bytes) FROM deleted") <= TRIM_BYTES + size
    assert await left(stores) == (10, 101)
