"""A gateway over a real Postgres and a real NATS, two tenants, an administrator and two nodes."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from tests.support.builders import spec
from tests.support.gateway import (
    ADMIN_TOKEN,
    FakeExecutor,
    Place,
    RunningGateway,
    add_nodes,
    admitted,
    executors,
)
from tests.support.steps import go, placement
from weft.client import Client
from weft.domain.job import Job, JobEvent
from weft.domain.lease import Lease
from weft.messages.asks import Ask
from weft.messages.http import ErrorView
from weftd.gateway.settings import GatewaySettings

SECONDS_MAX = 60.0
SETTINGS = GatewaySettings(
    volumes_allowed=("/srv/data",), shares=True, webhooks_networks=("127.0.0.0/8",), tenant_priority_max=100
)


class World(msgspec.Struct):
    """A gateway, its servers, and the tests' own ways around it."""

    place: Place
    gateway: RunningGateway
    lease: Lease
    nodes: dict[str, FakeExecutor]
    http: aiohttp.ClientSession
    alice: Client
    bob: Client
    admin: Client
    tokens: dict[str, str]

    async def stored(self) -> list[int]:
        """How much there is of all that the gateway writes."""
        rows = await self.place.stores.owner.fetch(
            "SELECT (SELECT count(*) FROM submissions), (SELECT count(*) FROM asks), (SELECT count(*) FROM events),"
            " (SELECT count(*) FROM outbox), (SELECT count(*) FROM tokens), (SELECT count(*) FROM tenants)"
        )
        return list(rows[0])

    async def ask(self, method: str, path: str, *, token: str = "alice", **options: Any) -> tuple[int, bytes, Any]:
        headers = {"Authorization": f"Bearer {self.tokens[token]}", **options.pop("headers", {})}
        url = f"{self.gateway.url}{path}"
        async with self.http.request(method, url, headers=headers, **options) as response:
            return response.status, await response.read(), response.headers

    async def refuses(self, path: str, body: bytes, field: str) -> None:
        """A POST of this body is one error of status 400 that names `field`, is short, and changes nothing stored."""
        before = await self.stored()
        status, answer, _ = await self.ask("POST", path, data=body)
        assert status == 400, answer
        found, reason = error_of(answer)
        assert found == field, (found, reason)
        assert reason
        assert len(answer) < 1500
        assert await self.stored() == before

    async def submitted(self, **fields: Any) -> Job:
        """A job of alice's, as the scheduler has it."""
        submitted = await self.alice.submit(spec(**fields))
        return await admitted(self.place, self.lease, submitted.id)

    async def go(self, job: Job, *events: JobEvent, **fields: Any) -> Job:
        for event in events:
            job = await go(self.place.stores.scheduler, self.lease, job, event, at=time.time(), **fields)
            fields = {}
        return job

    async def take_asks(self) -> list[Ask]:
        """All asks, the oldest first, done as the scheduler does them: what another tenant asked of the same subject
        comes once the earlier ask is done."""
        store, taken = self.place.stores.scheduler, list[Ask]()
        while asks := await store.asks(pool="default", limit=100):
            taken += asks
            await store.drop_asks(self.lease, [ask.id for ask in asks])
        return sorted(taken, key=lambda ask: ask.id)

    async def running(self, **fields: Any) -> Job:
        """A job of alice's that runs on the first GPU of node-1."""
        where = fields.pop("placement", placement(("node-1", 0)))
        job = await self.go(await self.submitted(**fields), JobEvent.PLACED, placement=where)
        return await self.go(job, JobEvent.STARTING, JobEvent.STARTED)


@asynccontextmanager
async def opened(
    servers: Place, settings: GatewaySettings = SETTINGS, *, oidc_secret: str = "", port: int = 0
) -> AsyncIterator[World]:
    """Emptied before; the gateway ends with it. `port`: where it listens; 0: at any."""
    await servers.stores.clear()
    lease = await add_nodes(servers)
    gateway = RunningGateway(servers, settings=settings, oidc_secret=oidc_secret)
    gateway.port = port
    await gateway.start()
    async with (
        executors(servers, "node-1", "node-2") as nodes,
        aiohttp.ClientSession() as http,
        gateway.client() as admin,
    ):
        made = [await admin.make_token(tenant, "test") for tenant in ("alice", "bob")]
        tokens = {"admin": ADMIN_TOKEN, **{each.tenant: each.token for each in made}}
        async with gateway.client(tokens["alice"]) as alice, gateway.client(tokens["bob"]) as bob:
            yield World(servers, gateway, lease, nodes, http, alice, bob, admin, tokens)
    await gateway.stop()


def error_of(body: bytes) -> tuple[str, str]:
    error = msgspec.json.decode(body, type=ErrorView).error
    return error.field, error.reason
