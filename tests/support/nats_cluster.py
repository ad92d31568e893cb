"""Three real NATS servers that are one cluster, from deploy/nats-cluster.conf, over links that may fail."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.support.places import HERE, Place
from tests.support.proxy import Proxy
from weft.credentials import Credentials
from weft.credentials.folder import render_routes
from weft.servers.find import find_nats
from weftd.cli.local.ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
START_SECONDS_MAX = 60.0
READY_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02
PASSWORD = "a-password-of-routes-alone"
# What a server hears of the others from a third one. A server that took it would have a route that no link can cut.
NOWHERE = 'advertise: "127.0.0.1:1"'
SERVERS = 3


class NatsCluster:
    """Numbers are from 0. On this machine every route goes over a link of its own: `links[from, to]`. Elsewhere routes
    go straight to the addresses of the places, whose network may fail by itself."""

    def __init__(
        self,
        folder: Path,
        credentials: Credentials,
        *,
        config: str = "nats-cluster.conf",
        places: Sequence[Place] = (HERE,) * SERVERS,
    ) -> None:
        self.folder = folder
        self.places = places
        self.links: dict[tuple[int, int], Proxy] = {}
        self.ports = [free_port() for _ in range(SERVERS)]
        self.environment: dict[str, str] = {}  # of every server, beside what is its own
        self._routes = [free_port() for _ in range(SERVERS)]
        self._monitors = [free_port() for _ in range(SERVERS)]
        self._credentials = credentials
        self._config = config
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._stack = AsyncExitStack()

    @property
    def route_ports(self) -> list[int]:
        return list(self._routes)

    @property
    def url(self) -> str:
        return ",".join(self.url_of(number) for number in range(SERVERS))

    def url_of(self, number: int) -> str:
        return f"nats://{self.places[number].address}:{self.ports[number]}"

    def pid(self, number: int) -> int | None:
        running = self._running.get(number)
        return running.pid if running is not None and running.poll() is None else None

    def log(self, number: int) -> Path:
        return self.folder / f"nats-{number + 1}.log"

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for here in range(SERVERS):
            for there in range(SERVERS):
                if here != there and self.places[there] is HERE:
                    link = Proxy(self._routes[there])
                    self.links[here, there] = await self._stack.enter_async_context(link)
        for number in range(SERVERS):
            self._configure(number)
        for number in range(SERVERS):
            self.run(number)
        await asyncio.gather(*(self.up(number) for number in range(SERVERS)))

    async def stop(self) -> None:
        for number in list(self._running):
            self.end(number, signal.SIGKILL)
        await self._stack.aclose()

    def run(self, number: int) -> None:
        """Start one that does not run; it may not be ready when this returns."""
        if self.pid(number) is not None:
            return
        place = self.places[number]
        own = {
            "WEFT_NATS_NAME": f"nats-{number + 1}",
            "WEFT_NATS_DATA": str(self._home(number) / "data"),
            "WEFT_NATS_LISTEN": f"{place.address}:{self.ports[number]}",
            "WEFT_NATS_ROUTE_LISTEN": f"{place.address}:{self._routes[number]}",
            "WEFT_NATS_MONITOR": f"127.0.0.1:{self._monitors[number]}",
        }
        with self.log(number).open("ab") as log:
            self._running[number] = place.there(
                lambda: subprocess.Popen(
                    [find_nats().path, "--config", self._home(number) / self._config],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **own, **self.environment},
                    start_new_session=True,
                )
            )

    async def up(self, number: int, *, seconds_max: float = START_SECONDS_MAX) -> None:
        """Return when this server takes connections."""

        def taken() -> bool:
            assert self.pid(number) is not None, self.log(number).read_text()[-2000:]
            return _listens(self.places[number].address, self.ports[number])

        await until(taken, seconds_max=seconds_max)

    def end(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        running = self._running.pop(number, None)
        if running is not None:
            running.send_signal(signal.SIGCONT)
            running.send_signal(how)
            running.wait()

    def lose(self, number: int) -> None:
        """The data of one that does not run."""
        shutil.rmtree(self._home(number) / "data", ignore_errors=True)

    def cut_off(self, number: int, fault: str = "break") -> None:
        """Part one server from the others: its clients reach it, and it reaches no other server.

        `break`: connections end, and none is taken; `cut`: nothing arrives, and neither end is told.
        """
        for (here, there), link in self.links.items():
            if number in (here, there):
                if fault == "cut":
                    link.cut()
                else:
                    link.refuse()
                    link.reset()

    def mend(self) -> None:
        for link in self.links.values():
            link.mend()

    def _home(self, number: int) -> Path:
        return self.folder / f"nats-{number + 1}"

    def _configure(self, number: int) -> None:
        """As docs/failover.md lays the files out, but with routes over the links."""
        secrets = self._home(number) / "secrets"
        secrets.mkdir(parents=True, exist_ok=True)
        shutil.copy(DEPLOY / self._config, self._home(number))
        shutil.copy(self._credentials.nats_users_file, secrets)
        others = [f"127.0.0.1:{link.port}" for (here, _), link in self.links.items() if here == number]
        others += [
            f"{place.address}:{self._routes[there]}"
            for there, place in enumerate(self.places)
            if there != number and place is not HERE
        ]
        (secrets / "nats-routes.conf").write_text(f"{render_routes(others, PASSWORD)}{NOWHERE}\n")


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


async def until(true: Callable[[], object], *, seconds_max: float = READY_SECONDS_MAX) -> None:
    async with asyncio.timeout(seconds_max):
        while not true():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(LOOK_SECONDS)
