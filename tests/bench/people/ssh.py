"""OpenSSH's client in a job: first prompt, echo of keys, and rsync beside a plain SSH server on this machine."""

import asyncio
import os
import pty
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import asyncssh

from tests.bench.figures import Aim
from tests.support.builders import spec
from tests.support.cluster import embedded_cluster
from tests.support.openssh import PROGRAMS, OpenSsh
from tests.support.person import Person
from weft.domain.job import JobState

PROMPTS, KEYS, FILE_BYTES, TURNS = 10, 200, 1 << 30, 3
QUICK_PROMPTS, QUICK_KEYS, QUICK_FILE_BYTES, QUICK_TURNS = 3, 50, 64 << 20, 2
PROMPT_SECONDS, ECHO_MS, RSYNC_PART = 1.0, 25.0, 0.7
SECONDS_MAX = 60.0
HOST = "train.weft"


async def measure(home: Path, *, quick: bool, seed: int) -> dict[str, Aim]:
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise SystemExit(f"no {', '.join(missing)} here (Debian: apt-get install openssh-client rsync)")
    dice = Random(seed)
    async with embedded_cluster(home / "cluster", nodes=1, gpus=1) as cluster:
        job = await cluster.client.submit(spec("train", command=["sh", "-c", "while :; do sleep 1; done"]))
        await cluster.state(job.id, JobState.RUNNING)
        ssh = OpenSsh(Person(cluster, cluster.local.token), home)
        configured = await ssh.configures()
        assert configured.status == 0, configured.err
        prompts = [await _prompt(ssh) for _ in range(QUICK_PROMPTS if quick else PROMPTS)]
        echoes = await _echoes(ssh, QUICK_KEYS if quick else KEYS, dice)
        part = await _rsync(ssh, home, QUICK_FILE_BYTES if quick else FILE_BYTES, QUICK_TURNS if quick else TURNS, dice)
    return {
        "SSH, first prompt p50, s": Aim(value=round(statistics.median(prompts), 3), aim=PROMPT_SECONDS),
        "SSH, echo of a key p50, ms": Aim(value=round(1000 * statistics.median(echoes), 2), aim=ECHO_MS),
        "rsync beside plain SSH": Aim(value=round(part, 3), aim=RSYNC_PART, at_least=True),
    }


class _Terminal:
    """`ssh -tt` on a terminal of its own."""

    def __init__(self) -> None:
        self.ours, self._theirs = pty.openpty()
        self._came = asyncio.Event()
        self.seen = b""

    async def begin(self, ssh: OpenSsh) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *("ssh", *ssh.config, "-tt", HOST),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=ssh.environment,
        )
        asyncio.get_running_loop().add_reader(self.ours, self._read)

    def _read(self) -> None:
        self.seen += os.read(self.ours, 65536)
        self._came.set()

    async def until(self, wanted: bytes) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while wanted not in self.seen:
                self._came.clear()
                await self._came.wait()

    async def end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.ours)
        self.process.terminate()
        await self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)


@asynccontextmanager
async def _terminal(ssh: OpenSsh) -> AsyncIterator[_Terminal]:
    terminal = _Terminal()
    await terminal.begin(ssh)
    try:
        await terminal.until(b"# " if os.getuid() == 0 else b"$ ")
        yield terminal
    finally:
        await terminal.end()


async def _prompt(ssh: OpenSsh) -> float:
    began = time.perf_counter()
    async with _terminal(ssh):
        return time.perf_counter() - began


async def _echoes(ssh: OpenSsh, count: int, dice: Random) -> list[float]:
    """The seconds until each key is shown. The keys are of a line that is never sent."""
    took = []
    async with _terminal(ssh) as terminal:
        os.write(terminal.ours, b": ")
        await terminal.until(b": ")
        for _ in range(count):
            key = dice.choice(b"abcdefghijklmnopqrstuvwxyz").to_bytes()
            terminal.seen = b""
            began = time.perf_counter()
            os.write(terminal.ours, key)
            await terminal.until(key)
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
    return took


async def _rsync(ssh: OpenSsh, home: Path, size: int, turns: int, dice: Random) -> float:
    """The speed of rsync to the job as a part of that to a plain server: the best of each, in turns."""
    source = home / "file"
    with source.open("wb") as file:
        for _ in range(size >> 20):
            file.write(dice.randbytes(1 << 20))
    took: dict[str, list[float]] = {"job": [], "plain": []}
    async with _plain_server(home) as plain:
        ways = {"job": (f"ssh {' '.join(ssh.config)}", HOST), "plain": (" ".join(plain), "127.0.0.1")}
        for _ in range(turns):
            for name, (shell, host) in ways.items():
                copy = home / f"copy-{name}"
                began = time.perf_counter()
                done = await ssh.runs("rsync", "-W", "-e", shell, str(source), f"{host}:{copy}")
                took[name].append(time.perf_counter() - began)
                assert done.status == 0, done.err
                assert copy.stat().st_size == size
                copy.unlink()
    best = {name: min(seconds) for name, seconds in took.items()}
    speeds = ", ".join(f"{name} {size / seconds / 1e6:.0f} MB/s" for name, seconds in best.items())
    print(f"rsync of {size >> 20} MiB: {speeds}; the plain server is {_server_name()}")
    return best["plain"] / best["job"]


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


def _server_name() -> str:
    return "OpenSSH's" if _sshd() else "asyncssh's: there is no sshd here"


@asynccontextmanager
async def _plain_server(home: Path) -> AsyncIterator[Sequence[str]]:
    """The SSH client's command for a server on this machine: OpenSSH's, or asyncssh's where there is none."""
    mine, theirs = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    key, host_key, allowed = home / "plain-key", home / "plain-host-key", home / "plain-allowed"
    mine.write_private_key(str(key))
    theirs.write_private_key(str(host_key))
    mine.write_public_key(str(allowed))
    for path in (key, host_key):
        path.chmod(0o600)
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes")
    client = ("ssh", "-F", "none", "-i", str(key), *(f"-o{option}" for option in options))
    sshd = _sshd()
    if sshd is None:
        listening = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[str(host_key)],
            authorized_client_keys=str(allowed),
            process_factory=_runs,
            encoding=None,
        )
        try:
            yield (*client, "-p", str(listening.get_port()))
        finally:
            listening.close()
            await listening.wait_closed()
        return
    inetd = f"{sshd} -i -f /dev/null -h {host_key} -oAuthorizedKeysFile={allowed} -oStrictModes=no -oUsePAM=no"
    yield (*client, f"-oProxyCommand={inetd}")


async def _runs(process: "asyncssh.SSHServerProcess[bytes]") -> None:
    """A server's part: what the client asks for runs in a shell."""
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_shell(process.command or "sh", stdin=pipe, stdout=pipe, stderr=pipe)
    await process.redirect(stdin=running.stdin, stdout=running.stdout, stderr=running.stderr)
    process.exit(await running.wait())
