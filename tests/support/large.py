"""A large cluster, written by the database's owner in a few statements: nodes full of jobs, and a long queue."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from tests.support.builders import capacity, spec
from tests.support.filled import fill_queued
from tests.support.gateway import Place, RunningGateway
from weft.client import Client

TENANT, OTHER = "alpha", "beta"  # of whom `tests.support.filled` makes every hundredth job


class Large(msgspec.Struct):
    gateway: RunningGateway
    admin: Client
    tokens: dict[str, str]


@asynccontextmanager
async def large(servers: Place, *, nodes: int, queued: int, gpus: int = 8) -> AsyncIterator[Large]:
    await servers.stores.clear()
    owner = servers.stores.owner
    await _nodes(owner, nodes, gpus)
    await _running(owner, nodes, gpus)
    await fill_queued(owner, queued, at=time.time() - 3600)
    await owner.execute("ANALYZE")
    gateway = RunningGateway(servers)
    await gateway.start()
    try:
        async with gateway.client() as admin:
            tokens = {name: (await admin.make_token(name, "test")).token for name in (TENANT, OTHER)}
            yield Large(gateway, admin, tokens)
    finally:
        await gateway.stop()


async def _nodes(owner: "asyncpg.Connection[Any]", count: int, gpus: int) -> None:
    await owner.execute(
        "INSERT INTO nodes (id, pool, address, capacity, runtime, not_enforced, ready, drain, seen_at, version)"
        " SELECT 'n-' || n, 'default', '127.0.0.1', $1::text::jsonb, 'process', '[]', true,"
        "        CASE WHEN n % 97 = 0 THEN '{}'::jsonb END, now(), 1"
        "   FROM generate_series(1, $2::int) n",
        msgspec.json.encode(capacity(gpus=gpus)).decode(),
        count,
    )


async def _running(owner: "asyncpg.Connection[Any]", nodes: int, gpus: int) -> None:
    """On each node one job with all but one of its GPUs."""
    body = msgspec.json.encode(spec("whole-node", gpus=gpus - 1)).decode()
    tenant = f"CASE WHEN n % 10 = 0 THEN '{OTHER}' ELSE '{TENANT}' END"
    await owner.execute(
        f"INSERT INTO submissions (id, tenant, pool, name, spec, spec_hash, submitted_at)"
        f" SELECT 'run-' || n, {tenant}, 'default', 'whole-node', $1::text::json, sha256('{{}}'), now()"
        f"   FROM generate_series(1, $2::int) n",
        body,
        nodes,
    )
    await owner.execute("ALTER TABLE jobs DISABLE TRIGGER USER")
    await owner.execute(
        f"INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since, placement,"
        f"                  started_at)"
        f" SELECT 'run-' || n, {tenant}, 'default', 'running', 'started', 0, 4, 0, now(), jsonb_build_object("
        f"        'allocations', jsonb_build_array(jsonb_build_object('role', 'worker', 'rank', 0,"
        f"        'node_id', 'n-' || n,"
        f"        'gpus', (SELECT jsonb_agg(g) FROM generate_series(0, $2::int - 2) g), 'cpus', 4.0,"
        f"        'memory', 8589934592)), 'master_port', 20000), now()"
        f"   FROM generate_series(1, $1::int) n",
        nodes,
        gpus,
    )
    await owner.execute("ALTER TABLE jobs ENABLE TRIGGER USER")
