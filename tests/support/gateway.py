"""A gateway within the test, over a real Postgres and a real NATS, each with the rights that a cluster gives it."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, structs

from tests.support.builders import node
from tests.support.postgres import Server, Stores, stores
from weft.bus import NoAnswerError
from weft.bus.nats import NatsBus
from weft.client import Client
from weft.credentials import Credentials, provision
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.domain.lease import Lease
from weft.messages.asks import SubmitAnswered
from weft.messages.files import Area, DeleteFiles, FileRead, FilesDeleted, FilesListed, JobFile, ListFiles, ReadFile
from weft.messages.nodes import LogRead, ProgressSeen, ReadLog, RunProgressed
from weft.servers import temporary
from weft.service.keys import ServerCertificate
from weft.store import GatewayStore, StoreUnavailableError
from weft.store.migrate import ROLES
from weftd.gateway import service
from weftd.gateway.api.tokens import ADMIN_TENANT
from weftd.gateway.settings import GatewaySettings

ADMIN_TOKEN = "weft_the-token-of-the-administrator"
WAIT_SECONDS_MAX = 60.0
LEASE = "scheduler/default"
HEARTBEAT_SECONDS = 0.2


class Place(Struct, frozen=True):
    """The servers that a gateway needs, and who may speak with them."""

    credentials: Credentials
    nats_url: str
    stores: Stores

    @asynccontextmanager
    async def bus(self, user: str) -> AsyncIterator[NatsBus]:
        async with NatsBus.connect(
            self.nats_url, name=user, user=user, password=self.credentials.nats_password(user)
        ) as bus:
            yield bus


@asynccontextmanager
async def place(folder: Path, nodes: Sequence[str] = ("node-1", "node-2")) -> AsyncIterator[Place]:
    credentials = provision(folder / "credentials", nodes=list(nodes))
    async with temporary(folder / "home", credentials=credentials) as servers:
        passwords = {role: credentials.postgres_password(role) for role in ("owner", *ROLES)}
        async with stores(Server(dsn=servers.pg_dsn, passwords=passwords)) as opened:
            yield Place(credentials, servers.nats_url, opened)


class Outage:
    """A store that can be made to be away, or to make a mistake in the method that `broken` names."""

    def __init__(self, store: GatewayStore) -> None:
        self.away = False
        self.broken = ""
        self._store = store

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any, **named: Any) -> Any:
            if self.away:
                raise StoreUnavailableError("connection refused")
            if self.broken == name:
                raise ZeroDivisionError("a mistake: division by zero")
            return await getattr(self._store, name)(*arguments, **named)

        return ask


class RunningGateway:
    """One gateway, that can be stopped and started again on its port."""

    def __init__(
        self,
        place: Place,
        *,
        settings: GatewaySettings | None = None,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        certificate: ServerCertificate | None = None,
        oidc_secret: str = "",
    ) -> None:
        self._oidc_secret = oidc_secret
        self.store = Outage(place.stores.gateway)
        self._place = place
        self._settings = settings or GatewaySettings()
        self._heartbeat_seconds = heartbeat_seconds
        self._certificate = certificate
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http{'s' if self._certificate else ''}://127.0.0.1:{self.port}"

    def client(self, token: str = ADMIN_TOKEN, *, retry_seconds: float = 20.0, ca_file: str = "") -> Client:
        return Client(self.url, token, retry_seconds=retry_seconds, ca_file=ca_file)

    async def start(self) -> None:
        self._stop = asyncio.Event()
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._task = running = asyncio.create_task(self._run(listening))
        await until(lambda: listening.done() or running.done())
        if running.done():
            await running
        self.port = await listening

    async def stop(self) -> None:
        if self._task is not None:
            self._stop.set()
            await self._task
            self._task = None

    async def _run(self, listening: "asyncio.Future[int]") -> None:
        async with self._place.bus("gateway") as bus:
            await service.run(
                structs.replace(self._settings, port=self.port),
                bus=bus,
                store=cast(GatewayStore, self.store),
                stop=self._stop,
                now=time.time,
                clock=time.monotonic,
                characters=lambda count: secrets.token_hex(count)[:count],
                tokens={ADMIN_TENANT: ADMIN_TOKEN},
                heartbeat_seconds=self._heartbeat_seconds,
                certificate=self._certificate,
                oidc_secret=self._oidc_secret,
                listens_on=listening.set_result,
            )


async def submit_on_nats(bus: NatsBus, body: bytes, headers: Mapping[str, str]) -> SubmitAnswered:
    """A request on `weft.submit`. A gateway opens its port a moment before it listens there: wait for that."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            answer = await bus.request_raw("weft.submit", body, headers=headers, seconds_max=WAIT_SECONDS_MAX)
        except NoAnswerError as error:
            if "nobody listens" not in str(error) or time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return msgspec.json.decode(answer, type=SubmitAnswered)


class FakeExecutor:
    """Answers for the logs and files of one node, as an executor would. `logs` is by (job, epoch, rank); `files` has
    one file for each job, of zeros."""

    def __init__(self, bus: NatsBus, node_id: str) -> None:
        self.node_id = node_id
        self.logs: dict[tuple[str, int, int], bytes] = {}
        self.ended: set[tuple[str, int, int]] = set()
        self.files: dict[str, JobFile] = {}
        self.metrics: dict[str, bytes] = {}  # the file of each job
        self.begins: dict[tuple[str, int, int], int] = {}  # how much of its head was dropped
        self.asked = 0
        self._bus = bus
        self._more = asyncio.Condition()

    async def report(self, job_id: str, rows: Sequence[Mapping[str, float]]) -> None:
        """Store what rank 0 of the job reports in its first epoch, and publish the last of it."""
        lines = [msgspec.json.encode((1.8e9 + place, row)) + b"\n" for place, row in enumerate(rows)]
        self.metrics[job_id] = b"".join(lines)
        run = RunProgressed(job_id=job_id, epoch=0, rank=0, progress=dict(rows[-1]))
        await self._bus.publish(ProgressSeen(node_id=self.node_id, runs=(run,)))

    async def write(self, job_id: str, data: bytes, *, epoch: int = 0, rank: int = 0, end: bool = False) -> None:
        key = (job_id, epoch, rank)
        async with self._more:
            self.logs[key] = self.logs.get(key, b"") + data
            if end:
                self.ended.add(key)
            self._more.notify_all()

    async def _read(self, ask: ReadLog) -> LogRead:
        self.asked += 1
        key = (ask.job_id, ask.epoch, ask.rank)
        if key not in self.logs:
            return LogRead(offset=ask.offset, data=b"", missing=True)
        try:
            async with asyncio.timeout(ask.wait), self._more:
                await self._more.wait_for(lambda: len(self.logs[key]) > ask.offset or key in self.ended)
        except TimeoutError:
            pass
        begins, size = self.begins.get(key, 0), len(self.logs[key])
        offset = max(ask.offset, begins)
        data = self.logs[key][offset : offset + ask.limit]
        ended = key in self.ended and offset + len(data) >= size
        return LogRead(offset=offset, data=data, ended=ended, begins=begins, size=size)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator["FakeExecutor"]:
        here = {"node_id": self.node_id}
        subscriptions = [
            await self._bus.answer(ReadLog, self._read, **here),
            await self._bus.answer(ListFiles, self._listed, **here),
            await self._bus.answer(ReadFile, self._file, **here),
            await self._bus.answer(DeleteFiles, self._deleted, **here),
        ]
        yield self
        for subscription in subscriptions:
            await subscription.drain()

    async def _listed(self, ask: ListFiles) -> FilesListed:
        file = self.files.get(ask.job_id)
        return FilesListed(missing=True) if file is None else FilesListed(files=(file,))

    async def _file(self, ask: ReadFile) -> FileRead:
        if ask.path.startswith(f"{Area.METRICS}/"):
            stored = self.metrics.get(ask.job_id, b"")
            end = ask.offset + ask.limit
            return FileRead(data=stored[ask.offset : end], size=len(stored), mark="one", missing=not stored)
        file = self.files.get(ask.job_id)
        if file is None:
            return FileRead(missing=True)
        data = bytes(file.bytes)[ask.offset : ask.offset + ask.limit]
        return FileRead(data=data, size=file.bytes, mark="one", modified_at=file.modified_at)

    async def _deleted(self, ask: DeleteFiles) -> FilesDeleted:
        return FilesDeleted(missing=ask.job_id not in self.files)


async def until(true: Callable[[], object], *, seconds_max: float = WAIT_SECONDS_MAX) -> None:
    """Wait until it is true; fail loudly when it does not become so."""
    async with asyncio.timeout(seconds_max):
        while not true():  # noqa: ASYNC110 - what is waited for comes from afar, and has no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def executors(place: Place, *node_ids: str) -> AsyncIterator[dict[str, FakeExecutor]]:
    async with AsyncExitStack() as stack:
        made = {}
        for node_id in node_ids:
            bus = await stack.enter_async_context(place.bus(f"executor-{node_id}"))
            made[node_id] = await stack.enter_async_context(FakeExecutor(bus, node_id).answering())
        yield made


async def add_nodes(place: Place, *nodes: Node) -> Lease:
    """Nodes as the scheduler stores them; returns the lease to take steps with."""
    lease = await place.stores.scheduler.take_lease(LEASE, holder="test", seen=None)
    assert lease is not None
    for each in nodes or (node("node-1"), node("node-2")):
        seen = structs.replace(each, seen_at=each.seen_at or time.time())
        await place.stores.scheduler.save_node(lease, seen, event="joined", cause="it reported")
    return lease


async def admitted(place: Place, lease: Lease, job_id: str) -> Job:
    """The job once the scheduler has taken it."""
    await place.stores.scheduler.admit(lease, load=0, pool="default", limit=1000)
    job = await place.stores.scheduler.job(job_id)
    assert job is not None
    return job
