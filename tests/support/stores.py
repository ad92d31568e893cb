"""Every kind of store, empty, as each of those who use it sees it."""

import asyncio
import json
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec import Struct

from tests.simulation.database import Database, SimStore
from tests.simulation.history import History
from tests.simulation.place import Place
from tests.support import postgres
from tests.support.builders import spec
from tests.support.doubles.store import MemoryStore
from tests.support.steps import changes_of
from tests.support.virtual_time import Process
from weft.domain.job import Job, Step
from weft.domain.lease import Lease
from weft.messages.events import Event
from weft.store import GatewayStore, RelayStore, ReviewStore, RouterStore, SchedulerStore, ScorerStore

AT = 1_700_000_000.0

REAL = ("embedded", pytest.param("container", marks=pytest.mark.docker))
# The tests of what only a gateway keeps, which the store in memory does without.
ONLY_POSTGRES = pytest.mark.parametrize("world", REAL, indirect=True)


class World(Struct):
    """One empty store, as each of those who use it sees it."""

    gateway: GatewayStore
    scheduler: SchedulerStore
    relay: RelayStore
    scorer: ScorerStore
    reallocator: ReviewStore
    router: RouterStore

    async def lead(self, pool: str = "default", *, holder: str = "me") -> Lease:
        lease = await self.scheduler.take_lease(pool, holder=holder, seen=await self.scheduler.lease(pool))
        assert lease is not None
        return lease

    async def admitted(self, lease: Lease, *job_ids: str, **fields: Any) -> list[Job]:
        for job_id in job_ids:
            await self.gateway.submit(spec(**fields), job_id=job_id, tenant="alice", key=None, at=AT)
        born = await self.scheduler.admit(lease, load=0, pool=lease.name, limit=1000)
        assert [job.id for job in born] == list(job_ids)
        return born

    async def take(self, lease: Lease, *steps: Step) -> list[bool]:
        jobs = await self.gateway.jobs(tenant=None, limit=1000)
        return await self.scheduler.take(lease, changes_of(jobs, steps))

    async def known(self, job_id: str) -> Job:
        job = await self.gateway.job(job_id)
        assert job is not None
        return job


def world_of(stores: postgres.Stores) -> World:
    """The stores of a real server, each with its role's rights."""
    return World(stores.gateway, stores.scheduler, stores.scheduler, stores.scorer, stores.reallocator, stores.router)


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


def simulated() -> Any:
    """The store of the simulation, while nothing is wrong with it."""
    loop = asyncio.get_running_loop()
    database = Database(MemoryStore(), loop, random.Random(1), History(loop, trace=False))
    return SimStore(database, Place(Process("test", loop), loop))


def told(event: Event) -> dict[str, Any]:
    """What an event says, with its numbers as numbers."""
    found: dict[str, Any] = json.loads(bytes(event.data))
    return found


def names(events: list[Event]) -> list[str]:
    return [event.event for event in events]
