"""One service of the cluster: kept running, and done to it what a machine may do to a process."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from tests.chaos.clock import boot_clock
from tests.hosts.host import Host, child_of
from weftd.cli.local.plan import Service
from weftd.cli.local.ports import PortClaim
from weftd.cli.local.process import environment, says_ready

AGAIN_SECONDS = 0.2
AGAIN_SECONDS_MAX = 3.0
STEADY_SECONDS = 5.0
END_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.05
LAST_BYTES = 16_384  # of a log, in which the reason of an end is sought
MISTAKE = "a decision failed"  # a scheduler or a reallocator logs it, and goes on


class Exit(Struct, frozen=True, kw_only=True):
    """A process that ended and was not told to. `crashed`: by a mistake of its own, not because a server was away."""

    name: str
    at: float  # boot seconds
    status: int
    crashed: bool
    words: str = ""  # the last that it logged of it


class Member:
    """At most one process of one service, started again when it ends, unless it is held down.

    `host`: of the laboratory, where it runs; None: on this machine.
    """

    def __init__(self, service: Service, host: Host | None = None) -> None:
        if host is not None:
            at = {service.admin_setting.replace("_PORT", "_HOST"): host.address}
            service = replace(service, settings={**service.settings, **at})
        self.service = service
        self._host = host
        self._address = host.address if host else "127.0.0.1"
        self.name = service.name
        self.pid: int | None = None
        self.starts = 0
        self.exits: list[Exit] = []  # that nobody asked for
        self._told_to_end = False
        self._admin_port = 0
        self._held: set[str] = set()  # by what
        self._may_run = asyncio.Event()
        self._may_run.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=self.name)

    async def ready(self, seconds_max: float) -> None:
        async with asyncio.timeout(seconds_max):
            while not (self.pid and await says_ready(self._admin_port, host=self._address)):  # noqa: ASYNC110 -- another process
                await asyncio.sleep(LOOK_SECONDS)

    def send(self, number: signal.Signals) -> None:
        """Nothing happens to one that is down."""
        if self.pid is not None:
            self._told_to_end |= number in (signal.SIGKILL, signal.SIGTERM)
            with suppress(ProcessLookupError, FileNotFoundError, IndexError):  # it has ended, or not yet begun
                if self._host is not None:
                    os.kill(child_of(self.pid), number)
                if self._host is None or number is signal.SIGCONT:  # nsenter stops itself when its child is stopped
                    os.kill(self.pid, number)

    def hold(self, by: str = "") -> None:
        """Once it has ended it stays down until it is released by all that hold it."""
        self._held.add(by)
        self._may_run.clear()

    def release(self, by: str = "") -> None:
        self._held.discard(by)
        if not self._held:
            self._may_run.set()

    def expect_end(self) -> None:
        """Its host is about to be switched off."""
        self._told_to_end = True

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
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.service.log.parent,
                env=self._environment(),
                start_new_session=True,
            )
        self.pid = process.pid  # on a host: of its parent, outside
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

    def mistakes(self) -> list[Exit]:
        """The mistakes that it logged and went on after, each like an end by a mistake; read from its whole log."""
        with open(self.service.log, encoding="utf-8", errors="replace") as log:
            told = [line for line in log if f'message="{MISTAKE}"' in line]
        return [Exit(name=self.name, at=boot_clock(), status=0, crashed=True, words=line[:2000]) for line in told]

    def _command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", self.service.module]
        return command if self._host is None else self._host.inside(*command)

    def _environment(self) -> dict[str, str]:
        """Of no process outside its host it knows the number, not even of its parent."""
        made = environment(os.environ, self.service, self._admin_port)
        return made if self._host is None else {**made, "WEFT_EXIT_WITH_PARENT": "1"}


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
