"""A cluster of its own for a test, a notebook or an example: `weft up` in a temporary folder."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from weft.client.errors import ClientError
from weft.client.place import CLIENT_FILE, ClientFile

START_SECONDS_MAX = 180.0  # servers and services, on a slow disk
STOP_SECONDS_MAX = 90.0
_READY = b"Weft is up: "
_OF_ANOTHER_CLUSTER = ("WEFT_NATS_URL", "WEFT_PG_DSN", "WEFT_HOME")
_EXPORTED = ("WEFT_URL", "WEFT_TOKEN")
_LINES_KEPT = 20


class Cluster:
    """A cluster on this machine, for as long as the block lasts: `with weft.Cluster.local(gpus=2) as cluster`.

    In the block WEFT_URL and WEFT_TOKEN of this process name the cluster, so `weft.submit` and programs that the block
    starts use it. `url`: the address of its gateway and dashboard. `token`: its administrator's.
    """

    def __init__(self, *, nodes: int, gpus: int) -> None:
        self._options = ["--nodes", str(nodes), "--emulated-gpus", str(gpus)]
        self._home: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._draining: asyncio.Task[None] | None = None
        self._said: list[bytes] = []
        self._before: dict[str, str | None] = {}
        self._ending = asyncio.Lock()
        self.url = ""
        self.token = ""

    @classmethod
    def local(cls, *, nodes: int = 1, gpus: int = 2) -> Self:
        """A cluster with `nodes` nodes of `gpus` emulated GPUs each, on free ports of the loopback interface.

        It needs the extra `embedded` of the package. Entering the block takes some seconds and raises ClientError if
        the cluster does not start; leaving it kills what still runs and removes every file.
        """
        return cls(nodes=nodes, gpus=gpus)

    async def __aenter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix="weft-cluster-"))
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await self._start(self._home)
            left = msgspec.json.decode((self._home / CLIENT_FILE).read_bytes(), type=ClientFile)
        except BaseException as error:
            await self._end()
            if isinstance(error, TimeoutError):
                raise ClientError(f"the local cluster was not up after {START_SECONDS_MAX:g} s") from error
            raise
        self.url, self.token = left.url, left.token
        self._before = {name: os.environ.get(name) for name in _EXPORTED}
        os.environ |= {"WEFT_URL": self.url, "WEFT_TOKEN": self.token}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        await self._end()

    async def _start(self, home: Path) -> None:
        """Return once it is ready."""
        command = (sys.executable, "-m", "weftd.cli", "up", "--home", str(home), "--port", "0", "--router-port", "0")
        environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_CLUSTER}
        self._process = await asyncio.create_subprocess_exec(
            *command,
            *self._options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which ends the cluster itself
        )
        output = self._process.stdout
        assert output is not None
        while line := await output.readline():
            self._said = [*self._said[-_LINES_KEPT:], line]
            if line.startswith(_READY):
                self._draining = asyncio.create_task(_drain(output))
                return
        said = b"".join(self._said).decode(errors="replace").strip()
        raise ClientError(f"the local cluster did not start; `weft up` said:\n{said}")

    async def _end(self) -> None:
        """End the process and its jobs, and remove the data. A second call waits for the first."""
        async with self._ending:
            if self._process is not None:
                await _ended(self._process)
                self._process = None
            if self._draining is not None:
                await self._draining
                self._draining = None
            if self._home is not None:
                from weft import servers  # needs the extra `embedded`

                await servers.erase(self._home)
                await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)
                self._home = None


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it has ended by itself
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)  # a second signal: its jobs get no grace
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _drain(output: asyncio.StreamReader) -> None:
    """Read what the process prints, so that it never waits for a reader."""
    while await output.read(65536):
        pass
