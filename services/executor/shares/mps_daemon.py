"""One MPS daemon. Its control program starts it, asks it and ends it; every command of that has a bounded wait.

The daemon of a GPU has a pipe folder of its own, never the default one, and sees that GPU alone. It outlives the
executor that started it; who knows its pipe folder knows the daemon.
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from libs.sharing.places import make_own

PIPE_VARIABLE, LOG_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
SAY_SECONDS_MAX = 3.0
BEGIN_SECONDS_MAX = 10.0
LOOK_SECONDS = 0.05
BEGIN_LOG = "begin.log"  # what the control program said when it started the daemon
SAID_BYTES_MAX = 200
PID_DIGITS_MAX = 10
INHERITED = ("PATH", "LANG", "HOME", "LD_LIBRARY_PATH")

Clients = Mapping[int, frozenset[int]]
"""The clients of each server of a daemon, by pid."""


class DaemonSilentError(Exception):
    """The daemon does not run, or does not answer."""


class DaemonGoneError(DaemonSilentError):
    """It does not run."""


class MpsDaemon:
    """`command`: the control program. `gpu`: the UUID of its GPU. `pipe`, `log`: its folders."""

    def __init__(self, command: Sequence[str], *, gpu: str, pipe: Path, log: Path) -> None:
        self._command, self.pipe, self._log = tuple(command), pipe, log
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        self._env = {**inherited, PIPE_VARIABLE: str(pipe), LOG_VARIABLE: str(log), "CUDA_VISIBLE_DEVICES": gpu}

    async def begin(self) -> None:
        """Start it; returns once it answers. Raises DaemonSilentError, also if one runs there that does not answer."""
        try:
            make_own(self.pipe.parent)
            make_own(self.pipe)
            self._log.mkdir(mode=0o700, parents=True, exist_ok=True)
            err = os.open(self._log / BEGIN_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DaemonSilentError(f"cannot be started: {error}") from error
        try:
            process = await asyncio.create_subprocess_exec(
                *(*self._command, "-d"),
                stdin=subprocess.DEVNULL,
                stdout=err,  # never a pipe: the daemon may keep it open
                stderr=err,
                cwd="/",
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            raise DaemonSilentError(f"cannot be started: {error}") from error
        finally:
            os.close(err)
        await self._ended(process, BEGIN_SECONDS_MAX)
        if process.returncode:
            raise DaemonSilentError(f"cannot be started: {self._complaint() or f'status {process.returncode}'}")
        deadline = asyncio.get_running_loop().time() + SAY_SECONDS_MAX
        while True:
            try:
                await self.clients()
            except DaemonSilentError:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(LOOK_SECONDS)
            else:
                return

    async def clients(self) -> Clients:
        """Its clients now. Raises DaemonSilentError."""
        servers = await self._pids("get_server_list")
        return {server: await self._pids(f"get_client_list {server}") for server in servers}

    async def end(self) -> None:
        """End it, if it runs, and whatever its clients have on the GPU. Raises DaemonSilentError if it hangs."""
        await self._say("quit")

    def _complaint(self) -> str:
        try:
            return (self._log / BEGIN_LOG).read_bytes()[-SAID_BYTES_MAX:].decode(errors="replace").strip()
        except OSError:
            return ""

    async def _pids(self, command: str) -> frozenset[int]:
        said = (await self._say(command)).split()
        if not all(word.isdecimal() and len(word) <= PID_DIGITS_MAX for word in said):
            raise DaemonSilentError(f"said to {command}: {' '.join(said)[:SAID_BYTES_MAX]}")
        return frozenset(map(int, said))

    async def _say(self, command: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            raise DaemonSilentError(f"cannot be asked: {error}") from error
        said = await self._ended(process, SAY_SECONDS_MAX, f"{command}\n".encode())
        if process.returncode:
            raise DaemonGoneError("does not run")
        return said.decode(errors="replace")

    async def _ended(self, process: asyncio.subprocess.Process, seconds_max: float, said: bytes | None = None) -> bytes:
        """What a process wrote till its end. One that goes on for longer is killed."""
        try:
            async with asyncio.timeout(seconds_max):
                return (await process.communicate(said))[0] or b""
        except TimeoutError:
            raise DaemonSilentError(f"did not answer in {seconds_max:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
