"""A person who types `weft`, each command a process of its own, with pipes or on a terminal."""

import asyncio
import os
import pty
import signal
import sys
import termios

from msgspec import Struct

from tests.support.cluster import Cluster

SECONDS_MAX = 60.0
WEFT = (sys.executable, "-m", "weftd.cli")


class Ended(Struct, frozen=True):
    status: int
    out: str
    err: str


def heed_ctrl_c() -> None:
    """Who runs these tests in the background has its children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Person(Struct, frozen=True):
    """Types at a terminal whose output goes to a pipe."""

    cluster: Cluster
    token: str

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "WEFT_URL": self.cluster.local.url, "WEFT_TOKEN": self.token}

    async def begins(self, *typed: str, stdin: bytes | None = None) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(*WEFT, *typed),
            stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
            preexec_fn=heed_ctrl_c,
        )
        if process.stdin is not None and stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        return process

    async def types(self, *typed: str, stdin: bytes | None = None) -> Ended:
        return await ended(await self.begins(*typed, stdin=stdin))

    async def runs(self, *typed: str) -> str:
        """The id of a new job."""
        submitted = await self.types("run", "--no-notes", *typed)
        assert (submitted.status, submitted.err) == (0, "")
        return submitted.out.strip()


async def ended(process: asyncio.subprocess.Process) -> Ended:
    try:
        async with asyncio.timeout(SECONDS_MAX):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


class Terminal:
    """A terminal with `weft` on it."""

    def __init__(self, person: Person, *typed: str) -> None:
        self.ours, self._theirs = pty.openpty()
        termios.tcsetwinsize(self._theirs, (30, 120))
        self.before = termios.tcgetattr(self._theirs)
        self._begun = (person, typed)
        self.seen = b""

    async def begin(self) -> None:
        person, typed = self._begun
        environment = {**person.environment, "TERM": "xterm-256color"}
        self.process = await asyncio.create_subprocess_exec(
            *(*WEFT, *typed), stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, env=environment
        )
        asyncio.get_running_loop().add_reader(self.ours, self._read)

    def _read(self) -> None:
        self.seen += os.read(self.ours, 65536)

    def types(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self._theirs, (rows, columns))
        self.process.send_signal(signal.SIGWINCH)  # from the kernel only where the terminal is the process's own

    async def shows(self, text: bytes) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while text not in self.seen:  # noqa: ASYNC110 -- a screen is no event
                await asyncio.sleep(0.02)

    async def ends(self, *, key: bytes = b"", sent: signal.Signals | None = None) -> int:
        os.write(self.ours, key)
        if sent is not None:
            self.process.send_signal(sent)
        async with asyncio.timeout(SECONDS_MAX):
            status = await self.process.wait()
        assert termios.tcgetattr(self._theirs) == self.before
        asyncio.get_running_loop().remove_reader(self.ours)
        os.close(self.ours)
        os.close(self._theirs)
        return status
