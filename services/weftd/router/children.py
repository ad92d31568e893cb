"""A supervised program: restarted when it ends, and ended by the kernel when this process ends."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from weft.service.start import PR_SET_PDEATHSIG, STATUS_SETTINGS

logger = logging.getLogger(__name__)

STEADY_SECONDS = 10.0  # a program that lived this long did not fail at its start
AGAIN_SECONDS_MAX = 5.0


class SettingsRefusedError(Exception):
    """The program reports wrong settings, so another start would change nothing."""


class Child:
    """`handed`: inherited descriptors, with the same numbers as here."""

    def __init__(self, name: str, command: Sequence[str], *, environ: Mapping[str, str], handed: Sequence[int]) -> None:
        self.name = name
        self.pid: int | None = None
        self.starts = 0
        self._command, self._environ, self._handed = command, environ, handed
        self._process: asyncio.subprocess.Process | None = None
        self._ending = asyncio.Event()

    async def keep(self) -> None:
        """Run the program until `end`. Raises SettingsRefusedError, or OSError if the program cannot be started."""
        failures, now = 0, asyncio.get_running_loop().time
        while not self._ending.is_set():
            began = now()
            self._process = await self._start()
            status = await self._process.wait()
            self.pid = None
            if self._ending.is_set():
                return
            if status == STATUS_SETTINGS:
                raise SettingsRefusedError(self.name)
            failures = 0 if now() - began > STEADY_SECONDS else failures + 1
            wait = min(0.05 * 2.0 ** max(0, failures - 1), AGAIN_SECONDS_MAX)
            logger.error("%s ended with status %d; again in %.2f s", self.name, status, wait)
            await asyncio.sleep(wait)

    async def _start(self) -> asyncio.subprocess.Process:
        self.starts += 1
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            env=self._environ,
            pass_fds=self._handed,
            start_new_session=True,  # Ctrl-C reaches the router alone, which ends it in order
            preexec_fn=_ended_with(os.getpid()) if sys.platform.startswith("linux") else None,
        )
        self.pid = process.pid
        return process

    async def end(self, *, seconds: float) -> None:
        """SIGTERM, and after `seconds` SIGKILL."""
        self._ending.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await process.wait()
                return


def _ended_with(parent: int) -> Callable[[], None]:
    """Ask the kernel to kill this program when the process `parent` ends, even if that has already happened."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask
