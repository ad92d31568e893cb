"""Keeps one service running: starts it, restarts it when it ends by itself, and stops it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from weft.service.start import STATUS_SETTINGS
from weftd.cli.local.errors import StartFailedError
from weftd.cli.local.plan import Service
from weftd.cli.local.ports import PortClaim

STEADY_SECONDS = 30.0  # a service that lived this long has not failed at its start
AGAIN_SECONDS_MAX = 15.0
TRIES_BEFORE_READY = 3
PROBE_SECONDS = 0.05  # between two
PROBE_SECONDS_MAX = 2.0  # for one


class ServiceProcess:
    """One service, always at most one process of it. `changed` is called when its pid is another."""

    def __init__(
        self,
        service: Service,
        *,
        tell: Callable[[str], None],
        changed: Callable[[], None] = lambda: None,
        command: Sequence[str | Path] = (),
    ) -> None:
        self.service = service
        self.pid: int | None = None
        self._command = command or (sys.executable, "-P", "-m", service.module)
        self._tell = tell
        self._changed = changed
        self._stopping = asyncio.Event()
        self._failures = 0
        self._status: int | None = None  # of the last one that ended
        self._admin_port = 0
        self._patience = 0.0
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=self.service.name)

    async def ready(self) -> None:
        """Return when its probe is ready. Raises StartFailedError if it keeps ending instead."""
        while not (self.pid and await says_ready(self._admin_port)):
            if self._failures >= TRIES_BEFORE_READY or (self._failures and self._status == STATUS_SETTINGS):
                raise StartFailedError(f"{self.service.name} does not start", log=self.service.log)
            await asyncio.sleep(PROBE_SECONDS)

    async def stop(self, *, patience: float, hurry: asyncio.Event) -> None:
        """Send SIGTERM; kill it after `patience` seconds, or at once after a second signal."""
        self._patience, self._hurry = patience, hurry
        self._stopping.set()
        if self._task:
            await self._task

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            status = await self._run()
            if self._stopping.is_set():
                return
            self._failures = 1 if loop.time() - began > STEADY_SECONDS else self._failures + 1
            wait = min(0.25 * 2**self._failures, AGAIN_SECONDS_MAX)
            self._tell(f"{self.service.name} {status}; again in {wait:g} s (see {self.service.log})")
            await happens(self._stopping.wait(), seconds_max=wait)

    async def _run(self) -> str:
        """Run it once, to its end or to the stop; returns how it ended. Its port stays claimed, as it may leave it."""
        try:
            with PortClaim(0) as claim:
                self._admin_port = claim.port
                return await self._live(await self._spawn())
        except OSError as error:
            return f"could not be started: {error}"

    async def _live(self, process: asyncio.subprocess.Process) -> str:
        self._set_pid(process.pid)
        ended, stopping = asyncio.create_task(process.wait()), asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await self._end(process)
            self._status = await ended
            return _in_words(self._status)
        finally:
            stopping.cancel()
            self._set_pid(None)

    async def _spawn(self) -> asyncio.subprocess.Process:
        """Start it in a session of its own: Ctrl-C reaches this process only, which stops the service in order."""
        with opened(self.service.log) as log:
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.service.log.parent,
                env=environment(os.environ, self.service, self._admin_port),
                start_new_session=True,
            )

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """SIGTERM, patience, SIGKILL; nothing if it has ended."""
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        hurry = asyncio.create_task(self._hurry.wait())
        ended = asyncio.create_task(process.wait())
        await asyncio.wait({hurry, ended}, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not ended.done():
            if not self._hurry.is_set():
                self._tell(f"{self.service.name} (pid {process.pid}) is killed: it did not end when asked")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await ended

    def _set_pid(self, pid: int | None) -> None:
        self.pid = pid
        self._changed()


def opened(log: Path) -> IO[bytes]:
    """Open its log, readable by the owner only: it may have private details."""
    return open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))


def environment(ours: Mapping[str, str], service: Service, admin_port: int) -> dict[str, str]:
    """Our environment without Weft's settings: a service gets its own, and ends when this process does."""
    kept = {name: value for name, value in ours.items() if not name.startswith("WEFT_") or name.startswith("WEFT_LOG")}
    parent = {"WEFT_EXIT_WITH_PARENT": str(os.getpid())}
    return {**kept, **service.settings, **parent, service.admin_setting: str(admin_port)}


async def says_ready(port: int, *, host: str = "127.0.0.1") -> bool:
    """True if the service whose probes are on this port answers 200 to /readyz."""
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def happens(event: Awaitable[object], *, seconds_max: float) -> bool:
    """True if the awaitable ends in time."""
    try:
        async with asyncio.timeout(seconds_max):
            await event
    except TimeoutError:
        return False
    return True


def _in_words(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with status {returncode}"
