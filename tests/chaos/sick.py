"""GPUs that were out of use, from every change of `nodes.health`, which a trigger writes down.

The trigger is the test's own. It notes the version that the node had with the change; the time is that of the event of
this version, so that it compares with the time of the event that placed a job.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from math import inf

import asyncpg
from msgspec import Struct

from weft.messages.http import EventView

INSTALL = """
CREATE TABLE IF NOT EXISTS noted_health (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, node_id text NOT NULL, version integer NOT NULL,
    closed integer[] NOT NULL
);
CREATE OR REPLACE FUNCTION note_health() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO noted_health (node_id, version, closed)
    SELECT NEW.id, NEW.version, COALESCE(array_agg((one ->> 'gpu')::integer), '{}')
      FROM jsonb_array_elements(NEW.health) AS one
     WHERE one ->> 'state' IN ('quarantined', 'broken') AND one ->> 'gpu' IS NOT NULL;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER note_health AFTER INSERT OR UPDATE OF health ON nodes
    FOR EACH ROW EXECUTE FUNCTION note_health();
"""
NOTED = """
SELECT noted.node_id, noted.closed, extract(epoch FROM told.at)::float8 AS at
  FROM noted_health noted
       JOIN events told ON told.topic = 'nodes' AND told.subject_id = noted.node_id AND told.version = noted.version
 ORDER BY noted.node_id, noted.number
"""


TOLD_SECONDS = 0.001  # the times of events in stories are cut to these


class Closed(Struct, frozen=True, kw_only=True):
    """A GPU that was quarantined or broken from `since` until `until`, in seconds since 1970."""

    node: str
    gpu: int
    since: float
    until: float = inf


class StartedThere(Struct, frozen=True, kw_only=True):
    """A job that was placed on a GPU while it was out of use. `at`: in seconds since 1970."""

    job_id: str
    closed: Closed
    at: float


async def note_health(connection: asyncpg.Connection) -> None:
    """To be called by the owner of the database, once, before any node reports."""
    await connection.execute(INSTALL)


async def closed_gpus(connection: asyncpg.Connection) -> list[Closed]:
    return list(closed_of((row["node_id"], row["at"], row["closed"]) for row in await connection.fetch(NOTED)))


def closed_of(noted: Iterable[tuple[str, float, list[int]]]) -> Iterator[Closed]:
    """From the GPUs of nodes that were out of use, in order of time for each node."""
    since: dict[str, dict[int, float]] = defaultdict(dict)
    for node, at, closed in noted:
        before = since[node]
        for gpu in [gpu for gpu in before if gpu not in closed]:
            yield Closed(node=node, gpu=gpu, since=before.pop(gpu), until=at)
        for gpu in closed:
            before.setdefault(gpu, at)
    for node, left in since.items():
        for gpu, at in left.items():
            yield Closed(node=node, gpu=gpu, since=at)


def started_there(stories: Mapping[str, Iterable[EventView]], closed: Iterable[Closed]) -> Iterator[StartedThere]:
    """Jobs that were placed on a GPU after its quarantine was decided, and before that ended."""
    by_gpu: dict[tuple[str, int], list[Closed]] = defaultdict(list)
    for one in closed:
        by_gpu[one.node, one.gpu].append(one)
    for job_id, story in stories.items():
        for event in story:
            if event.type != "weft.jobs.placed" or event.data.placement is None:
                continue
            at = datetime.fromisoformat(event.time).timestamp()
            places = {(each.node_id, gpu) for each in event.data.placement.allocations for gpu in each.gpus}
            for one in (found for place in places for found in by_gpu.get(place, ())):
                if one.since < at and at + TOLD_SECONDS <= one.until:
                    yield StartedThere(job_id=job_id, closed=one, at=at)
