"""OpenSSH's own clients and rsync, with a home of their own and the configuration that `weft ssh-config` writes."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.person import WEFT, Ended, Person, ended
from tests.support.routers import free_port

SECONDS_MAX = 60.0
PROGRAMS = ("ssh", "scp", "sftp", "rsync")
LISTENS = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print("listeningOn==%d==" % listening.getsockname()[1], flush=True)
while True:
    connection, _ = listening.accept()
    while data := connection.recv(1000):
        connection.sendall(data.upper())
    connection.close()
"""


def need_openssh() -> None:
    """Skip the test where a program is missing; where all have been promised (WEFT_CI_OPENSSH=1), fail it."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        reason = f"no {', '.join(missing)} here (Debian: apt-get install openssh-client rsync)"
        if os.environ.get("WEFT_CI_OPENSSH") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


class OpenSsh(Struct, frozen=True):
    """The SSH clients of a person."""

    person: Person
    home: Path

    @property
    def keys(self) -> Path:
        return self.home / ".config" / "weft" / "ssh"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in self.person.environment.items() if name != "XDG_CONFIG_HOME"}
        return {**kept, "HOME": str(self.home)}

    async def configures(self, *typed: str) -> Ended:
        return await self.runs(*WEFT, "ssh-config", *typed)

    async def types(self, program: str, *typed: str, stdin: bytes = b"") -> Ended:
        return await self.runs(program, *self.config, *typed, stdin=stdin)

    async def runs(self, *command: str, stdin: bytes = b"") -> Ended:
        process = await self.begins(*command)
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        return await ended(process)

    async def begins(self, *command: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment
        )

    @property
    def config(self) -> tuple[str, str]:
        """OpenSSH looks in the home of the user's account, whatever HOME says."""
        return "-F", str(self.home / ".ssh" / "config")


@asynccontextmanager
async def forwarding(ssh: OpenSsh, *typed: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await ssh.begins("ssh", *ssh.config, *typed)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            with suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.05)


async def listening_on(process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS_MAX):
        while line := await process.stdout.readline():
            if found := re.search(rb"listeningOn==(\d+)==", line):
                return int(found[1])
    raise AssertionError("it ended")


async def edits(ssh: OpenSsh, host: str, folder: Path, python: str) -> None:
    """The steps of VS Code: one connection with a SOCKS proxy, whose shell reads a script that puts a server in place,
    starts it in the background, prints its port and stays."""
    proxy = free_port()
    script = f"""
uname -sm
mkdir -p {folder} && cat >{folder}/server.py <<'PROGRAM'
{LISTENS}
PROGRAM
nohup {python} -u {folder}/server.py >{folder}/log 2>&1 </dev/null &
echo $! >{folder}/pid
until grep -s listeningOn {folder}/log; do sleep 0.1; done
cat >/dev/null
"""
    async with forwarding(ssh, "-T", "-D", str(proxy), host, "sh") as process:
        assert process.stdin is not None
        process.stdin.write(script.encode())
        port = await listening_on(process)
        reader, writer = await connected(proxy)
        writer.write(b"\x05\x01\x00")
        assert await reader.readexactly(2) == b"\x05\x00"
        writer.write(b"\x05\x01\x00\x03\x09localhost" + port.to_bytes(2, "big"))
        assert (await reader.readexactly(10))[1] == 0
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"HELLO"
        writer.close()
