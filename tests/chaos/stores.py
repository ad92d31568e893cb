"""The servers of one home under faults: killed, stopped, set back to an older copy, and always had running again."""

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from weft import servers
from weft.credentials import Credentials
from weft.servers import nats, postgres
from weft.servers.process import wait_until, working_in

LOOK_SECONDS = 0.3
ENDED_SECONDS_MAX = 20.0


class Stores:
    """NATS and Postgres. `hold` keeps one down that has ended, until it is released."""

    def __init__(self, home: Path, credentials: Credentials) -> None:
        self.home = home
        self._credentials = credentials
        self._held: set[str] = set()
        self._frozen: dict[str, list[int]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    async def start(self) -> servers.Servers:
        up = await servers.up(self.home, credentials=self._credentials)
        self._keeper = asyncio.create_task(self._keep())
        return up

    async def stop(self) -> None:
        """Also the data go."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        for name in list(self._frozen):
            self.thaw(name)
        await servers.erase(self.home)

    async def pid(self, name: str) -> int | None:
        state = await servers.status(self.home)
        server = state.nats if name == "nats" else state.postgres
        return server.pid if server else None

    async def folder(self, name: str) -> Path:
        state = await servers.status(self.home)
        server = state.nats if name == "nats" else state.postgres
        assert server is not None, "it has been started once"
        return server.folder

    def hold(self, name: str) -> None:
        self._held.add(name)

    async def release(self, name: str) -> None:
        """Have it running before this returns, where it can."""
        self._held.discard(name)
        await self._have_running()

    async def send(self, name: str, number: signal.Signals) -> None:
        if (pid := await self.pid(name)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def end(self, name: str, number: signal.Signals) -> None:
        """Send it and return when nothing of the server is left."""
        folder = await self.folder(name)
        await self.send(name, number)

        def gone() -> bool:
            if name == "postgres":
                return postgres.running(folder) is None and not working_in(postgres.data_of(folder))
            return nats.running_pid(folder) is None

        if not await asyncio.to_thread(wait_until, gone, ENDED_SECONDS_MAX):
            raise TimeoutError(f"{name} did not end within {ENDED_SECONDS_MAX:g} s of {number.name}")

    async def freeze(self, name: str) -> None:
        """All processes of it."""
        pid = await self.pid(name)
        pids = [pid] if pid else []
        if name == "postgres":
            pids += [child for child in working_in(postgres.data_of(await self.folder(name))) if child != pid]
        self._frozen[name] = pids
        _send_all(pids, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        _send_all(self._frozen.pop(name, []), signal.SIGCONT)

    async def lose_stream(self) -> None:
        """To be called while NATS is down."""
        await asyncio.to_thread(shutil.rmtree, await self.folder("nats") / "jetstream", ignore_errors=True)

    async def back_up(self) -> None:
        """A cold copy: Postgres is stopped in order for it. To be called while it is held."""
        await self.end("postgres", signal.SIGINT)
        folder = await self.folder("postgres")
        async with self._changing:
            await asyncio.to_thread(_copy, postgres.data_of(folder), self._backup(folder))

    async def restore(self) -> None:
        """Set Postgres back to the copy, of which there is one, while it is down."""
        folder = await self.folder("postgres")
        async with self._changing:
            await asyncio.to_thread(_copy, self._backup(folder), postgres.data_of(folder))

    def _backup(self, folder: Path) -> Path:
        return folder / "backup"

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(servers.ServersError):  # the next look tries again
                await self._have_running()

    async def _have_running(self) -> None:
        """Start what is down and not held."""
        async with self._changing:
            state = await servers.status(self.home)
            for name, server in (("nats", state.nats), ("postgres", state.postgres)):
                if name not in self._held and name not in self._frozen and (server is None or server.pid is None):
                    await servers.up(
                        self.home,
                        credentials=self._credentials,
                        nats_url=None if name == "nats" else "elsewhere",
                        pg_dsn=None if name == "postgres" else "elsewhere",
                    )


def _send_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _copy(source: Path, target: Path) -> None:
    """With its owners, which `shutil.copytree` forgets."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target, symlinks=True)
    for path in (source, *source.rglob("*")):
        found = path.lstat()
        os.chown(target / path.relative_to(source), found.st_uid, found.st_gid, follow_symlinks=False)
