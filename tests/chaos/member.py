"""One service of the cluster: kept running, and done to it what a machine may do to a process."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from msgspec import Struct

from services.cli.local.plan import Service
from services.cli.local.ports import PortClaim
from services.cli.local.process import environment, says_ready
from tests.chaos.clock import boot_clock

AGAIN_SECONDS = 0.2
AGAIN_SECONDS_MAX = 3.0
STEADY_SECONDS = 5.0
END_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.05
LAST_BYTES = 16_384  # of a log, in which the reason of an end is sought


class Exit(Struct, frozen=True, kw_only=True):
    """A process that ended and was not told to. `crashed`: by a mistake of its own, not because a server was away."""

    name: str
    at: float  # boot seconds
    status: int
    crashed: bool
    words: str = ""  # the last that it logged of it


class Member:
    """At most one process of one service, started again when it ends, unless it is held down."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.name = service.name
        self.pid: int | None = None
        self.starts = 0
        self.exits: list[Exit] = []  # that nobody asked for
        self._told_to_end = False
        self._admin_port = 0
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=self.name)

    async def ready(self, seconds_max: float) -> None:
        async with asyncio.timeout(seconds_max):
            while not (self.pid and await says_ready(self._admin_port)):  # noqa: ASYNC110 -- another process
                await asyncio.sleep(LOOK_SECONDS)

    def send(self, number: signal.Signals) -> None:
        """Nothing happens to one that is down."""
        if self.pid is not None:
            self._told_to_end |= number in (signal.SIGKILL, signal.SIGTERM)
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def hold(self) -> None:
        """Once it has ended it stays down until it is released."""
        self._may_run.clear()

    def release(self) -> None:
        self._may_run.set()

    async def stop(self) -> None:
        """End it for good: asked first, then killed."""
        self.hold()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS_MAX):
                while self.pid is not None:  # noqa: ASYNC110 -- another process
                    await asyncio.sleep(LOOK_SECONDS)
        await self.end_now()

    async def end_now(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = AGAIN_SECONDS
        while True:
            await self._may_run.wait()
            began = loop.time()
            await self._run()
            pause = AGAIN_SECONDS if loop.time() - began > STEADY_SECONDS else min(2 * pause, AGAIN_SECONDS_MAX)
            await asyncio.sleep(pause)

    async def _run(self) -> None:
        """Its port stays claimed: an executor leaves it for a moment when its bus is another one."""
        with PortClaim(0) as claim:
            self._admin_port = claim.port
            await self._run_once()

    async def _run_once(self) -> None:
        self._told_to_end = False
        with open(self.service.log, "ab") as log:  # noqa: ASYNC230 -- a local file, once for each start
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self.service.module),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.service.log.parent,
                env=environment(os.environ, self.service, self._admin_port),
                start_new_session=True,
            )
        self.pid = process.pid
        self.starts += 1
        try:
            status = await process.wait()
            if not self._told_to_end:
                self.exits.append(_exit(self.service, status))
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            self.pid = None


def _exit(service: Service, status: int) -> Exit:
    """Every service logs `… crashed` for a mistake, and `… has to end` where a server is away."""
    with open(service.log, "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - LAST_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    last = next((line for line in reversed(lines) if " crashed" in line or "has to end" in line), "")
    crashed = status < 0 or " crashed" in last
    return Exit(
        name=service.name, at=boot_clock(), status=status, crashed=crashed, words=last[:200] + last[200:][-2000:]
    )
