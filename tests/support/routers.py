"""A real router, over a real Postgres and a real NATS, with replicas that are HTTP servers of the test's own."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tests.support.builders import spec
from tests.support.gateway import Place, add_nodes, admitted, until
from tests.support.steps import GIB, go
from weft.bus.nats import NatsBus
from weft.domain.job import Allocation, Job, JobEvent, Placement
from weft.domain.lease import Lease
from weft.messages.events import EventTold
from weft.messages.serving import Endpoint, EndpointsSeen, ReplicaEnded, ServicesServed
from weft.store.audit import Actor
from weftd.cli.local.plan import role_dsn

NODE = "node-1"
RANKS = 80
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Replica:
    """One HTTP server. `asked`: every request that reached it; `now`, `most`: how many at once."""

    def __init__(self, rank: int, handler: Handler | None = None) -> None:
        self.rank = rank
        self.port = free_port()
        self.asked: list[web.Request] = []
        self.now = self.most = self.gone = 0
        self._handler = handler
        self._runner: web.AppRunner | None = None

    async def start(self) -> "Replica":
        app = web.Application(client_max_size=1 << 32)
        app.router.add_route("*", "/{path:.*}", self._counted)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=1024).start()
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _counted(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await (self._handler or self._told)(request)
        except asyncio.CancelledError:
            self.gone += 1
            raise
        finally:
            self.now -= 1

    async def _told(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        told = {
            "rank": self.rank,
            "path": request.raw_path,
            "method": request.method,
            "bytes": len(body),
            "headers": dict(request.headers),
        }
        return web.json_response(told)

    def endpoint(self, job: Job, **fields: Any) -> Endpoint:
        made = {"job_id": job.id, "epoch": job.epoch, "rank": self.rank, "port": self.port, "ready": True, **fields}
        return Endpoint(**made)


class Town:
    """The servers, the tenants alice and bob, one node that is scripted, and one router."""

    def __init__(self, place: Place, lease: Lease, node: NatsBus, relay: NatsBus, folder: Path) -> None:
        self.place, self.lease, self.node, self.relay, self.folder = place, lease, node, relay, folder
        self.replicas: list[Replica] = []
        self.port, self.admin_port = free_port(), free_port()
        self.served: list[ServicesServed] = []
        self.tokens: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.process: asyncio.subprocess.Process | None = None
        self.endpoints: tuple[Endpoint, ...] = ()
        self.ended: tuple[ReplicaEnded, ...] = ()
        self._seq = 0

    @property
    def url(self) -> str:
        scheme = "https" if "ROUTER_TLS_CERT_FILE" in self.settings else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        return Path(f"/tmp/weft-router-{os.getuid()}-{self.port}")

    # the cluster

    async def service(self, name: str = "chat", *, ranks: int = RANKS, job_id: str = "", **rules: Any) -> Job:
        """A service of alice's that is placed on the node, with so many ranks."""
        job_id = job_id or f"j-{name}"
        rules = {"public": True, **rules}
        objective = rules.pop("objective", None)
        roles = {"server": {"replicas": {"min": 0, "want": 1, "max": RANKS}}}
        wanted = spec(name, kind="inference", service=rules, roles=roles, objective=objective)
        await self.place.stores.gateway.submit(wanted, job_id=job_id, tenant="alice", key=None, at=time.time())
        job = await admitted(self.place, self.lease, job_id)
        allocations = tuple(
            Allocation(rank=rank, role="server", node_id=NODE, cpus=0.001, memory=GIB >> 10, extra=True)
            for rank in range(ranks)
        )
        placed = Placement(allocations=allocations, master_port=20000, ranks_used=ranks)
        job = await self.step(job, JobEvent.PLACED, placement=placed)
        job = await self.step(job, JobEvent.STARTING)
        job = await self.step(job, JobEvent.STARTED)
        await until(lambda: self.last(job) is not None)
        return job

    async def replica(self, rank: int, handler: Handler | None = None) -> Replica:
        """One that runs as long as the town."""
        made = await Replica(rank, handler).start()
        self.replicas.append(made)
        return made

    async def step(self, job: Job, event: JobEvent, **fields: Any) -> Job:
        """Taken, and told as the relay does, so that the router reads it at once."""
        job = await go(self.place.stores.scheduler, self.lease, job, event, at=time.time(), **fields)
        await self.relay.publish(EventTold(id=f"jobs/{job.id}/{job.version}", type=f"weft.jobs.{event.value}"))
        return job

    async def tell(self, *endpoints: Endpoint, ended: tuple[ReplicaEnded, ...] = ()) -> None:
        """What the node says of its replicas from now on."""
        self.endpoints, self.ended = endpoints, ended
        await self.tell_again()

    async def known(self, job: Job, *ranks: int) -> None:
        """Until the router has told of these replicas, and of no others."""
        await until(lambda: sorted(one.rank for one in getattr(self.last(job), "replicas", ())) == sorted(ranks))

    async def tell_again(self) -> None:
        self._seq += 1
        seen = EndpointsSeen(
            node_id=NODE,
            incarnation=1,
            seq=self._seq,
            at=time.time(),
            endpoints=tuple(self.endpoints),
            ended=self.ended,
        )
        await self.node.publish(seen)

    # the router

    async def start(self, **settings: str) -> None:
        self.settings |= settings
        credentials = self.place.credentials
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("WEFT_")},
            "WEFT_NATS_URL": self.place.nats_url,
            "WEFT_NATS_USER": "router",
            "WEFT_NATS_PASSWORD_FILE": str(credentials.nats_password_file("router")),
            "WEFT_PG_DSN": role_dsn(self.place.stores.server.dsn, "router"),
            "WEFT_PG_PASSWORD_FILE": str(credentials.postgres_password_file("router")),
            "WEFT_EXIT_WITH_PARENT": "1",
            "ROUTER_PORT": str(self.port),
            "ROUTER_ADMIN_PORT": str(self.admin_port),
            "HTTP_PROXY": "http://127.0.0.1:9",
            "http_proxy": "http://127.0.0.1:9",
            **self.settings,
        }
        with (self.folder / "router.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "weftd.router", env=environ, stdout=log, stderr=log
            )

    async def ready(self) -> None:
        """Its probe says so, and a request is answered, whatever the answer."""
        unchecked = aiohttp.TCPConnector(ssl=False)
        async with aiohttp.ClientSession(connector=unchecked) as session, asyncio.timeout(30):
            for url in (f"http://127.0.0.1:{self.admin_port}/readyz", f"{self.url}/"):
                while True:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(url) as answer:
                            if answer.status in (200, 404):
                                break
                    await asyncio.sleep(0.02)

    async def stop(self) -> int:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            return await self.process.wait()

    def children(self) -> dict[str, int]:
        """The pids of Caddy, of the gate, of the relay and of the front for models."""
        assert self.process is not None
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = {}
        for pid in pids:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            known = [part for part in ("relay", "front") if f"weftd.router.{part}".encode() in command]
            name = known[0] if known else "gate"
            found["caddy" if b"caddy" in command.split(b"\0")[0] else name] = int(pid)
        return found

    def log(self) -> str:
        return (self.folder / "router.log").read_text()

    async def hear(self, served: ServicesServed) -> None:
        self.served.append(served)

    def last(self, job: Job) -> Any:
        """What the router told last of this service."""
        for served in reversed(self.served):
            for service in served.services:
                if service.job_id == job.id:
                    return service
        return None

    async def settled(self, job: Job, *, in_flight: int = 0) -> None:
        """Until the router counts so many requests at replicas of this service."""
        await until(lambda: sum(one.in_flight for one in getattr(self.last(job), "replicas", ())) == in_flight)


@asynccontextmanager
async def town(place: Place, folder: Path, **settings: str) -> AsyncIterator[Town]:
    """Emptied before; the router is ready, and ends with it."""
    await place.stores.clear()
    lease = await add_nodes(place)
    async with place.bus(f"executor-{NODE}") as node, place.bus("scheduler") as relay:
        made = Town(place, lease, node, relay, folder)
        for tenant in ("alice", "bob"):
            made.tokens[tenant] = f"weft_token-of-{tenant}"
            await keep_token(place, made.tokens[tenant], tenant)
        heard = await node.subscribe(ServicesServed, made.hear)
        await made.start(**settings)
        try:
            await made.ready()
            yield made
        finally:
            await made.stop()
            for replica in made.replicas:
                await replica.stop()
            await heard.drain()


async def one_time_code(there: Town, tenant: str, job: str, *, code: str = "", seconds: float = 60.0) -> str:
    """A code that opens the service of a job once, made with the tenant's token."""
    import hashlib

    code = code or f"code_{secrets.token_hex(20)}"
    by, digest = (hashlib.sha256(text.encode()).digest() for text in (there.tokens[tenant], code))
    at = time.time()
    made = await there.place.stores.gateway.add_code(
        digest, by=by, job=job, at=at, expires_at=at + seconds, session_ends_at=at + 3600, most=100, actor=Actor()
    )
    assert made is not None
    return code


async def keep_token(place: Place, token: str, tenant: str, *, admin: bool = False) -> None:
    import hashlib

    digest = hashlib.sha256(token.encode()).digest()
    await place.stores.gateway.add_token(digest, tenant=tenant, admin=admin, label="test", at=time.time())


def error_of(body: bytes) -> str:
    return str(msgspec.json.decode(body)["error"]["reason"])
