"""Real servers, real schedulers and a real gateway, each a process; emulated nodes in a few more."""

import asyncio
import json
import os
import secrets
import socket
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tests.bench import cpu
from tests.bench.hosts.nodes import Count
from tests.support.gateway_process import GatewayProcess, gateway_process
from tests.support.postgres import Server, Stores, stores
from weft.client import Client
from weft.credentials import Credentials, provision
from weft.servers import erase, status, up
from weft.servers.find import find_nats
from weft.store.migrate import ROLES

START_SECONDS_MAX, STOP_SECONDS_MAX, ANSWER_SECONDS_MAX = 60.0, 20.0, 30.0
MIB = 1 << 20


class Nats:
    """A NATS server without users, of which 10,000 nodes would need 20,000. It tells what it carries."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._log = folder / "log"
        port, self._monitor = _free_ports(2)
        self.url = f"nats://127.0.0.1:{port}"
        self._config = folder / "nats.conf"
        self._config.write_text(
            f"listen: 127.0.0.1:{port}\nhttp: 127.0.0.1:{self._monitor}\nmax_payload: 8MB\n"
            f'jetstream {{ store_dir: "{folder / "jetstream"}" }}\n'
        )
        self._process: asyncio.subprocess.Process | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Nats"]:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(find_nats().path), "-c", str(self._config), stdout=log, stderr=log
            )
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                while "Server is ready" not in self._log.read_text():  # noqa: ASYNC110 -- it writes a file
                    await asyncio.sleep(0.02)
            yield self
        finally:
            await ended(self._process)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def carried(self) -> dict[str, int]:
        """Messages and bytes since it started, to it and from it."""
        url = f"http://127.0.0.1:{self._monitor}/varz"
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())
        told = json.loads(answer)
        return {name: told[name] for name in ("in_msgs", "out_msgs", "in_bytes", "out_bytes")}


class Emulated:
    """One process of emulated nodes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._turn = asyncio.Lock()

    async def count(self) -> Count:
        return msgspec.json.decode(await self._ask("count"), type=Count)

    async def silence(self, *nodes: str) -> None:
        await self._ask(" ".join(("silence", *nodes)))

    async def _ask(self, line: str) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        async with self._turn, asyncio.timeout(ANSWER_SECONDS_MAX):
            self.process.stdin.write(line.encode() + b"\n")
            answer = await self.process.stdout.readline()
        assert answer, "a process of emulated nodes ended"
        return answer


class Used(Struct, frozen=True, kw_only=True):
    """At one moment. CPU in seconds since each process began; messages and bytes since NATS began."""

    at: float
    cpu: dict[str, float]
    carried: dict[str, int]


class World:
    def __init__(
        self, stack: AsyncExitStack, folder: Path, nats: Nats, stores: Stores, credentials: Credentials, postgres: int
    ) -> None:
        self.stores, self.nats = stores, nats
        self.schedulers: dict[str, asyncio.subprocess.Process] = {}
        self.emulated: list[Emulated] = []
        self.gateway: GatewayProcess | None = None
        self.client: Client | None = None
        self.profiles: Path | None = None  # where each scheduler leaves a profile of its processor time
        self._stack, self._folder, self._credentials, self._postgres = stack, folder, credentials, postgres

    async def schedule(self, name: str, settings: Mapping[str, str]) -> None:
        """A scheduler with these settings."""
        log = (self._folder / f"{name}.log").open("wb")
        self._stack.callback(log.close)
        profiled = () if self.profiles is None else ("-m", "cProfile", "-o", str(self.profiles / f"{name}.prof"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(*profiled, "-m", "weftd.scheduler"),
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "WEFT_EXIT_WITH_PARENT": "1",
                "WEFT_NATS_URL": self.nats.url,
                "WEFT_PG_DSN": self.stores.server.dsn.replace("weft_owner", "weft_scheduler"),
                "WEFT_PG_PASSWORD_FILE": str(self._credentials.postgres_password_file("scheduler")),
                **settings,
            },
        )
        self.schedulers[name] = process
        self._stack.push_async_callback(ended, process)

    async def serve(self) -> None:
        """A gateway, and a client of its administrator."""
        self.gateway = await self._stack.enter_async_context(
            gateway_process(
                self._folder / "gateway.log",
                self._credentials,
                nats_url=self.nats.url,
                pg_dsn=self.stores.server.dsn,
                WEFT_EXIT_WITH_PARENT="1",
            )
        )
        token = self._credentials.admin_token_file.read_text().strip()
        self.client = await self._stack.enter_async_context(Client(self.gateway.url, token))

    async def add_nodes(self, pools: Sequence[str], count: int, *, gpus: int, sync: float, runs: float) -> None:
        """A process with so many nodes of each pool; its runs last `runs` seconds."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.bench.hosts.nodes", self.nats.url, str(sync), str(runs), str(gpus)),
            *(f"{pool}:{count}" for pool in pools),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=64 * MIB,
        )
        self._stack.push_async_callback(ended, process)
        self.emulated.append(Emulated(process))

    async def count(self) -> Count:
        """Of all emulated nodes since the last count, in one."""
        counts = await asyncio.gather(*(one.count() for one in self.emulated))
        whole: dict[str, Any] = {
            name: sum(getattr(count, name) for count in counts) for name in Count.__struct_fields__ if name != "seconds"
        }
        return Count(**whole, seconds=sorted(taken for count in counts for taken in count.seconds))

    @property
    def pids(self) -> dict[str, int]:
        found = {"nats": self.nats.pid, "postgres": self._postgres}
        found |= {name: one.pid for name, one in self.schedulers.items() if one.returncode is None}
        if self.gateway is not None:
            found["gateway"] = self.gateway.process.pid
        return found | {f"emulated nodes {n}": one.process.pid for n, one in enumerate(self.emulated, 1)}

    async def used(self) -> Used:
        now = asyncio.get_running_loop().time()
        return Used(at=now, cpu=cpu.used_by(self.pids), carried=await self.nats.carried())

    def memory(self) -> dict[str, float]:
        """MiB of each process' own memory, and of Postgres with its children; what they share counts once."""
        return {name: _private_mib(pid) for name, pid in self.pids.items()}

    async def value(self, query: str, *arguments: object) -> Any:
        return await self.stores.owner.fetchval(query, *arguments)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    credentials = provision(folder / "credentials", nodes=[])
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(Nats(folder / "nats").running())
        home = folder / "home"
        stack.push_async_callback(erase, home)
        servers = await up(home, credentials=credentials, nats_url=nats.url)
        passwords = {role: credentials.postgres_password(role) for role in ("owner", *ROLES)}
        opened = await stack.enter_async_context(stores(Server(dsn=servers.pg_dsn, passwords=passwords)))
        postgres = (await status(home)).postgres
        assert postgres is not None
        assert postgres.pid is not None
        yield World(stack, folder, nats, opened, credentials, postgres.pid)


async def ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def job_id() -> str:
    return f"j-{secrets.token_hex(5)}"


def _private_mib(pid: int) -> float:
    family, found = [pid], 0
    for one in family:
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            family += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except OSError:
            continue
        found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found / 1024


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
