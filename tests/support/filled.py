"""A database with as many jobs and events as a cluster has after years, written by the owner in a few statements."""

from typing import Any

import asyncpg

SPEC = (
    '{"name":"synthetic","pool":"default","command":["python3","train.py","--epochs","90"],"priority":0,'
    '"labels":{},"roles":{"worker":{"gpus":1,"cpus":4,"memory":"8GiB","replicas":{"want":1}}}}'
)
CAUSE = '{"code": "exited", "sentence": "every rank ended with status 0"}'
PLACEMENT = (
    '{"allocations": [{"role": "worker", "rank": 0, "node_id": "node-1", "gpus": [0], "cpus": 4.0,'
    ' "memory": 8589934592}], "master_port": 20000}'
)
TENANTS = "CASE WHEN n % 100 = 0 THEN 'beta' ELSE 'alpha' END"
EVENTS_OF = ("submitted", "placed", "starting", "started", "succeeded")


async def fill_ended(
    owner: "asyncpg.Connection[Any]", count: int, *, began: float, lasting: float, name: str = "old"
) -> None:
    """Jobs `old-1`…, or of that name, that ended evenly over `lasting` seconds from `began` on: five events each."""
    await owner.execute(
        f"INSERT INTO submissions (id, tenant, key, pool, name, spec, spec_hash, submitted_at)"
        f" SELECT '{name}-' || n, {TENANTS}, '{name}-key-' || n, 'default', 'synthetic', $1::text::json,"
        f"        sha256('{{}}'),"
        f"        to_timestamp($2::float8 + $3::float8 * n / $4::float8) FROM generate_series(1, $4::int) n",
        SPEC,
        began,
        lasting,
        count,
        timeout=600,
    )
    await owner.execute("ALTER TABLE jobs DISABLE TRIGGER USER")
    await owner.execute(
        f"INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since, placement,"
        f"                  started_at, ended_at, exit_code)"
        f" SELECT '{name}-' || n, {TENANTS}, 'default', 'succeeded', 'succeeded', 0, 5, 0, at,"
        f"        $1::text::jsonb, at, at, 0"
        f"   FROM generate_series(1, $4::int) n,"
        f"        LATERAL (SELECT to_timestamp($2::float8 + $3::float8 * n / $4) AS at) t",
        PLACEMENT,
        began,
        lasting,
        count,
        timeout=600,
    )
    await owner.execute("ALTER TABLE jobs ENABLE TRIGGER USER")
    await owner.execute(
        f"INSERT INTO events (topic, event, subject_id, version, tenant, at, data)"
        f" SELECT 'jobs', ($5::text[])[v], '{name}-' || n, v, {TENANTS},"
        f"        to_timestamp($2::float8 + $3::float8 * n / $4::float8),"
        f"        jsonb_build_object('job_id', '{name}-' || n, 'name', 'synthetic', 'tenant', {TENANTS},"
        f"                           'pool', 'default', 'state', 'running', 'epoch', 0, 'version', v, 'priority', 0,"
        f"                           'cause', $1::text::jsonb)"
        f"   FROM generate_series(1, $4::int) n, generate_series(1, 5) v",
        CAUSE,
        began,
        lasting,
        count,
        list(EVENTS_OF),
        timeout=600,
    )


async def fill_queued(owner: "asyncpg.Connection[Any]", count: int, *, at: float) -> None:
    """Jobs `new-1`… that wait, each with its two events."""
    await owner.execute(
        f"INSERT INTO submissions (id, tenant, pool, name, spec, spec_hash, submitted_at)"
        f" SELECT 'new-' || n, {TENANTS}, 'default', 'synthetic', $1::text::json, sha256('{{}}'),"
        f" to_timestamp($2::float8) FROM generate_series(1, $3::int) n",
        SPEC,
        at,
        count,
        timeout=600,
    )
    await owner.execute(
        f"INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since)"
        f" SELECT 'new-' || n, {TENANTS}, 'default', 'queued', 'submitted', 0, 1, 0, to_timestamp($1::float8)"
        f"   FROM generate_series(1, $2::int) n",
        at,
        count,
        timeout=600,
    )
    await owner.execute(
        f"INSERT INTO events (topic, event, subject_id, version, tenant, at, data)"
        f" SELECT 'jobs', 'submitted', 'new-' || n, 1, {TENANTS}, to_timestamp($2::float8),"
        f"        jsonb_build_object('job_id', 'new-' || n, 'name', 'synthetic', 'tenant', {TENANTS},"
        f"                           'pool', 'default', 'state', 'queued', 'epoch', 0, 'version', 1, 'priority', 0,"
        f"                           'cause', $1::text::jsonb)"
        f"   FROM generate_series(1, $3::int) n",
        CAUSE,
        at,
        count,
        timeout=600,
    )
