"""OpenSSH's own clients and rsync, with a home of their own and the configuration that `weft ssh-config` writes."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.person import WEFT, Ended, Person, ended

PROGRAMS = ("ssh", "scp", "sftp", "rsync")


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
