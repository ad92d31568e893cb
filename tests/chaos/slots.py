"""GPU-seconds by another way than Weft's: from every change of the rows of `gpu_slots`, which a trigger writes down.

The trigger is the test's own. It notes the version that the job had with the change; the time is that of the event of
this version. Nothing else of an event is read: no placement, no order of steps.
"""

from collections import defaultdict
from collections.abc import Iterable

import asyncpg
from msgspec import Struct

from weft.client import Client
from weft.messages.accounts import UsageGrouping
from weft.messages.series import UsageView

INSTALL = """
CREATE TABLE IF NOT EXISTS noted_slots (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, job_id text NOT NULL, version integer NOT NULL,
    part integer NOT NULL
);
CREATE OR REPLACE FUNCTION note_slot() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO noted_slots (job_id, version, part)
        SELECT OLD.job_id, version, -OLD.part FROM jobs WHERE id = OLD.job_id;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO noted_slots (job_id, version, part)
        SELECT NEW.job_id, version, NEW.part FROM jobs WHERE id = NEW.job_id;
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER note_slot AFTER INSERT OR UPDATE OR DELETE ON gpu_slots
    FOR EACH ROW EXECUTE FUNCTION note_slot();
"""
NOTED = """
SELECT noted.job_id, noted.part, (extract(epoch FROM told.at) * 1000000)::bigint AS at
  FROM noted_slots noted
       LEFT JOIN events told ON told.topic = 'jobs' AND told.subject_id = noted.job_id AND told.version = noted.version
 ORDER BY noted.job_id, noted.version, noted.number
"""
NANO = 10**9  # thousandths of a GPU times microseconds in a GPU-second


class Accounted(Struct, frozen=True, kw_only=True):
    """GPU-seconds in thousandths of a GPU times microseconds, by job: as Weft accounts for them, and by the rows of
    `gpu_slots`. `capacity`: how far its parts are from its sum, in GPU-seconds."""

    by_weft: dict[str, int]
    by_slots: dict[str, int]
    capacity: float = 0.0

    @property
    def apart(self) -> dict[str, int]:
        """By how much they differ, job by job."""
        jobs = self.by_weft.keys() | self.by_slots.keys()
        found = {job: self.by_weft.get(job, 0) - self.by_slots.get(job, 0) for job in jobs}
        return {job: by for job, by in sorted(found.items()) if by}


async def note_slots(connection: asyncpg.Connection) -> None:
    """To be called by the owner of the database, once, before anything is held."""
    await connection.execute(INSTALL)


async def slot_seconds(connection: asyncpg.Connection, begins: int, ends: int) -> dict[str, int]:
    """What each job held between two times in microseconds, by the noted changes."""
    return added_up(await connection.fetch(NOTED), begins, ends)


def added_up(rows: Iterable[asyncpg.Record], begins: int, ends: int) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    last: dict[str, int] = {}
    for row in rows:
        job = row["job_id"]
        at = last[job] = max(last.get(job, 0), row["at"])  # a clock that goes back
        found[job] += row["part"] * (ends - min(ends, max(begins, at)))
    return {job: amount for job, amount in found.items() if amount}


async def accounted(client: Client, connection: asyncpg.Connection, *, seconds: int, until: float) -> Accounted:
    """Both accounts of one time."""
    view = await client.usage(by=UsageGrouping.JOB, seconds=seconds, until=until, limit=100_000)
    by_weft = {row.key: round(row.gpu_seconds_held * NANO) for row in view.rows if row.gpu_seconds_held}
    by_slots = await slot_seconds(connection, round(view.begins * 1e6), round(view.ends * 1e6))
    return Accounted(by_weft=by_weft, by_slots=by_slots, capacity=_apart(view))


def _apart(view: UsageView) -> float:
    whole = view.capacity[0]
    parts = whole.held + whole.idle + whole.planned + whole.drained + whole.down
    return round(parts - whole.capacity - whole.gone, 6)
