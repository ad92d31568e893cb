"""The cluster that chaos is made with: real servers, all services as processes, a link to each server that can fail."""

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
from msgspec.structs import replace

from tests.chaos import disk
from tests.chaos.engine import Engine, EngineMissingError, own_engine
from tests.chaos.failover import FailoverStores
from tests.chaos.member import Member
from tests.chaos.rogue import NODE as ROGUE
from tests.chaos.sick import note_health
from tests.chaos.slots import note_slots
from tests.chaos.stores import Stores
from tests.support.proxy import Proxy
from weft.credentials import Credentials, provision
from weft.servers import ServersError
from weft.store.migrate import ROLES, migrate
from weftd.cli.local import ClusterHome, Options
from weftd.cli.local.cluster import has_caddy
from weftd.cli.local.leftovers import end_guards, kill_runs
from weftd.cli.local.plan import Addresses, Service, services
from weftd.cli.local.ports import free_port
from weftd.executor.runtime.limits import cgroup

NODES, GPUS = 4, 4
ENGINE_POOL = "engine"  # the pool of the one node whose runs are containers
CONTAINED = Path(__file__).with_name("contained.sh")
READY_SECONDS_MAX = 60.0
REMOVED_SECONDS_MAX = 60

FENCE, GRACE, DRIFT, LEASE = 4.0, 1.0, 2.0, 9.0
TIMES = {
    "EXECUTOR_FENCE_SECONDS": f"{FENCE:g}",
    "EXECUTOR_FENCE_GRACE_MAX": f"{GRACE:g}",
    "EXECUTOR_DRIFT_SECONDS": f"{DRIFT:g}",
    "EXECUTOR_LEASE_SECONDS": f"{LEASE:g}",
    "EXECUTOR_SYNC_SECONDS": "0.5",
    "EXECUTOR_STOP_JOBS_ON_EXIT": "",
    "SCHEDULER_LEASE_SECONDS": f"{LEASE:g}",
    "SCHEDULER_LEADER_SECONDS": "2",
    "SCHEDULER_START_SECONDS": "20",
    "SCHEDULER_PATIENCE_SECONDS": "20",
    "SCHEDULER_PREEMPTION_AFTER_SECONDS": "2",
    "ROUTER_DRAIN_SECONDS": "3",
    "SCHEDULER_HEALTH_CLEAN_SECONDS": "2",  # a GPU that was reset comes back while the run lasts
    "SCHEDULER_HEALTH_SUSPECT_SECONDS": "5",
    "SCHEDULER_HEALTH_PROBATION_SECONDS": "5",
    "SCHEDULER_HEALTH_LONGEST_SECONDS": "10",
    "SCHEDULER_HEALTH_OFFENCES_SECONDS": "10",
}
LOCAL_PORT = re.compile(r"127\.0\.0\.1:(\d+)")
UNFENCED = {"EXECUTOR_FENCING": "0"}


class Cable:
    """The links of one client to all servers of one kind, by the servers' ports. They fail together."""

    def __init__(self, links: dict[int, Proxy]) -> None:
        self.links = links

    def cut(self) -> None:
        for link in self.links.values():
            link.cut()

    def end_all(self) -> None:
        """Every connection ends, and none is taken."""
        for link in self.links.values():
            link.refuse()
            link.reset()

    def mend(self) -> None:
        for link in self.links.values():
            link.mend()


class World:
    """Everything that runs, by name: members, links and stores."""

    nodes_in_all = NODES + 1  # the last is the one with an engine

    def __init__(self, root: Path, *, fencing: bool, failover: bool = False) -> None:
        self.home = ClusterHome(root / "home")
        self.folder = root / "seen"
        self.hostile_folder = self.folder / "hostile"  # what the hostile tenant's jobs trace
        self.nats_url = ""
        self._pg_dsn = ""
        self.engine: Engine | None = None
        self.why_no_engine = ""
        self._root = root
        settings = (
            TIMES
            | ({} if fencing else UNFENCED)
            | {
                "GATEWAY_VOLUMES_ALLOWED": str(self.folder),
                "GATEWAY_SHARES": "true",
                "GATEWAY_TENANT_PRIORITY_MAX": "100",
            }
            | ({"SCHEDULER_NATS_REPLICAS": "3"} if failover else {})
        )
        self.options = Options(
            nodes=self.nodes_in_all, emulated_gpus=GPUS, cpus=16, port=free_port(), settings=settings
        )
        self.credentials = Credentials(self.home.credentials)
        self.stores = self._made_stores(failover=failover)
        self.members: dict[str, Member] = {}
        self.links: dict[str, Cable] = {}
        self.small_disk = ""  # the node whose logs are on a disk of their own
        self.url = f"http://127.0.0.1:{self.options.port}"
        self._router_port = free_port() if has_caddy(os.environ) else 0
        self._stack = AsyncExitStack()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that run processes."""
        return tuple(self.options.node_ids[:NODES])

    @property
    def docker_node(self) -> str:
        return self.options.node_ids[NODES]

    @property
    def router_url(self) -> str:
        """Empty where there is no Caddy, and so no router."""
        return f"http://127.0.0.1:{self._router_port}" if self._router_port else ""

    @property
    def token(self) -> str:
        return self.credentials.admin_token()

    async def start(self) -> None:
        for traced in (self.folder, self.hostile_folder):
            for folder in (traced, traced / "traces", traced / "said", traced / "steps"):
                folder.mkdir(mode=0o700)
        self.home.make()
        shutil.copy(CONTAINED, self.folder)
        await self._prepare()
        provision(self.home.credentials, nodes=[*self.options.node_ids, ROGUE])
        up = await self.stores.start()
        self.nats_url = up.nats_url
        passwords = {role: self.credentials.postgres_password(role) for role in ROLES}
        owner = self.credentials.postgres_password("owner")
        await migrate(up.pg_dsn, user=None, password=owner, role_passwords=passwords)
        self._pg_dsn = up.pg_dsn
        async with self.owner() as connection:
            await note_slots(connection)
            await note_health(connection)
        for member in await self._made_members(up.nats_url, up.pg_dsn):
            self.members[member.name] = member
            member.start()
        async with asyncio.TaskGroup() as tasks:
            for member in self.members.values():
                tasks.create_task(member.ready(READY_SECONDS_MAX))

    async def stop(self) -> None:
        """Nothing of it is left, whatever state it is in: each is ended, also when ending another failed."""
        errors: list[Exception] = []
        for end in (self._end_members, self._end_engine, self._end_jobs, self._stack.aclose, self.stores.stop):
            try:
                await end()
            except (OSError, TimeoutError, ServersError, EngineMissingError, subprocess.SubprocessError) as error:
                errors.append(error)
        if self.small_disk:
            await asyncio.to_thread(disk.unmount, self.logs_of(self.small_disk))
        if errors:
            raise ExceptionGroup("what would not end", errors)

    @asynccontextmanager
    async def owner(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection to Postgres as the owner of the database."""
        password = self.credentials.postgres_password("owner")
        connection = await asyncpg.connect(self._pg_dsn, password=password, timeout=10, command_timeout=60)
        try:
            yield connection
        finally:
            await connection.close()

    def logs_of(self, node: str) -> Path:
        return self.home.node(node) / "logs"

    def guard(self, node: str) -> int | None:
        """The pid of this node's guard."""
        try:
            found = re.search(rb'"pid":(\d+)', (self.home.node(node) / "guard").read_bytes())
        except FileNotFoundError:
            return None
        return int(found[1]) if found else None

    def child_of_router(self, name: str) -> int:
        """The pid of its Caddy or of its gate. Raises LookupError if it has none now."""
        parent = self.members["router"].pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split() if parent else []
        for child in children:
            program = Path(f"/proc/{child}/cmdline").read_bytes().partition(b"\0")[0]
            if (b"caddy" in program) == (name == "caddy"):
                return int(child)
        raise LookupError(f"the router has no {name}")

    def _made_stores(self, *, failover: bool) -> Stores | FailoverStores:
        return (FailoverStores if failover else Stores)(self.home.root, self.credentials)

    async def _prepare(self) -> None:
        """What is there before any server."""
        try:
            self.engine = await asyncio.to_thread(own_engine, self._root / "engine")
        except EngineMissingError as error:
            self.why_no_engine = str(error)

    async def _made_members(self, nats_url: str, pg_dsn: str) -> list[Member]:
        if await asyncio.to_thread(disk.mount, self.logs_of(self.nodes[-1])):
            self.small_disk = self.nodes[-1]
        return [Member(service) for service in await self._planned(nats_url, pg_dsn)]

    async def _end_members(self) -> None:
        await asyncio.gather(*(member.stop() for member in self.members.values()), return_exceptions=True)

    async def _end_engine(self) -> None:
        if self.engine is not None:
            await asyncio.to_thread(self.engine.stop)

    async def _end_jobs(self) -> None:
        await asyncio.to_thread(kill_runs, self.home.nodes)
        await asyncio.to_thread(end_guards, self.home.nodes)
        for node in self.options.node_ids:
            await asyncio.to_thread(remove_groups, self.home, node)

    async def _planned(self, nats_url: str, pg_dsn: str) -> list[Service]:
        """As a local cluster has them, but two schedulers, one node with an engine, and links that can fail."""
        addresses = Addresses(
            nats_url=nats_url, pg_dsn=pg_dsn, port=self.options.port or 0, router_port=self._router_port
        )
        made = []
        for service in services(self.options, self.home, self.credentials, addresses):
            if service.name == "scheduler":
                made += [named(service, f"scheduler-{number}", self.home) for number in (1, 2)]
                made += [_in_pool(named(service, "scheduler-engine", self.home))] if self.engine else []
            elif not service.name.endswith(self.docker_node):
                made.append(service)
            elif self.engine is not None:
                made.append(self._contained(_in_pool(service)))
        return [await self._linked(service) for service in made]

    def _contained(self, service: Service) -> Service:
        """Of the node whose runs are containers of our engine."""
        assert self.engine is not None
        prefix = service.name.partition("-")[0].upper()
        settings = {"DOCKER_HOST": self.engine.host, f"{prefix}_RUNTIME": "docker"}
        if prefix == "EXECUTOR":
            settings |= {
                "EXECUTOR_JOB_NETWORK": "host",
                "EXECUTOR_CLUSTER": self._root.name,
                "EXECUTOR_PULL": "0",
                "EXECUTOR_VOLUMES_ALLOWED": str(self.folder),
            }
        return replace(service, settings={**service.settings, **settings})

    async def _linked(self, service: Service) -> Service:
        settings = dict(service.settings)
        kind, _, node = service.name.partition("-")
        if kind in ("executor", "telemetry"):
            settings["WEFT_NATS_URL"] = await self._by_link(f"link-{node}", settings["WEFT_NATS_URL"])
        elif kind in ("gateway", "scheduler"):
            settings["WEFT_NATS_URL"] = await self._by_link(f"bus-{service.name}", settings["WEFT_NATS_URL"])
            settings["WEFT_PG_DSN"] = await self._by_link(f"store-{service.name}", settings["WEFT_PG_DSN"])
        return replace(service, settings=settings)

    async def _by_link(self, name: str, url: str) -> str:
        """The same addresses behind the links of this name."""
        ports = [int(port) for port in LOCAL_PORT.findall(url)]
        assert ports, url
        if name not in self.links:
            links = [await self._stack.enter_async_context(Proxy(port)) for port in ports]
            self.links[name] = Cable(dict(zip(ports, links, strict=True)))
        return LOCAL_PORT.sub(lambda found: f"127.0.0.1:{self.links[name].links[int(found[1])].port}", url)


def remove_groups(home: ClusterHome, node: str) -> None:
    """The cgroups of an executor that was killed before it could."""
    groups = cgroup.find_cgroups(f"{node}-{zlib.crc32(os.fsencode(home.node(node))):08x}")
    for of_run in groups.names().values():
        cgroup.remove(of_run)
    groups.close()


def named(service: Service, name: str, home: ClusterHome) -> Service:
    return replace(service, name=name, log=home.log(name))


def _in_pool(service: Service) -> Service:
    prefix = service.name.partition("-")[0].upper()
    return replace(service, settings={**service.settings, f"{prefix}_POOL": ENGINE_POOL})


@asynccontextmanager
async def world(
    *,
    fencing: bool = True,
    failover: bool = False,
    keep: Path | None = None,
    make: Callable[[Path], World] | None = None,
) -> AsyncIterator[World]:
    """One for as long as the block lasts. `keep`: where the logs of all services and jobs are copied to at the end;
    `make`: how else it is made in its folder."""
    root = Path(tempfile.mkdtemp(prefix="weft-chaos-"))
    os.chmod(root, 0o711)  # so that Postgres' own user reaches its folder
    made = make(root) if make is not None else World(root, fencing=fencing, failover=failover)
    try:
        os.mkdir(made.home.root, 0o711)
        await made.start()
        yield made
    finally:
        await _finish(made, root, keep)


async def _finish(made: World, root: Path, keep: Path | None) -> None:
    try:
        await made.stop()
    finally:
        if keep is not None:
            await asyncio.to_thread(_keep, made, keep)
        await asyncio.to_thread(_remove, root)


def _remove(root: Path) -> None:
    """Some folders in there are deeper than Python recurses."""
    subprocess.run(["rm", "-rf", "--one-file-system", root], check=False, timeout=REMOVED_SECONDS_MAX)


def _keep(made: World, keep: Path) -> None:
    shutil.copytree(made.home.logs, keep / "services", dirs_exist_ok=True)
    shutil.copytree(made.folder, keep / "seen", dirs_exist_ok=True)
    for log in made.home.root.glob("*.log"):
        shutil.copy2(log, keep / "services" / log.name)
