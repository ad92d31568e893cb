"""The services of the newest release beside those of this tree: their code, and how they would be started.

WEFT_UPGRADE_FROM names another commit than the tag of the newest release.
"""

import asyncio
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from weftd.cli.local.plan import Service

HERE = Path(__file__).parents[2]
SNIPPET_SECONDS_MAX = 60

_PROVISION = """
from weft.credentials import provision
provision(Path(asked["credentials"]), nodes=asked["nodes"])
"""
_MIGRATE = """
import asyncio
from weft.credentials import Credentials
from weft.store.migrate import ROLES, migrate
credentials = Credentials(Path(asked["credentials"]))
passwords = {role: credentials.postgres_password(role) for role in ROLES}
owner = credentials.postgres_password("owner")
said = asyncio.run(migrate(asked["pg_dsn"], user=None, password=owner, role_passwords=passwords))
"""
_PLAN = """
import msgspec
from weft.credentials import Credentials
from weftd.cli.local.home import ClusterHome
from weftd.cli.local.options import Options
from weftd.cli.local.plan import Addresses, services
home = ClusterHome(Path(asked["home"]))
home.make()
ports = {"port": asked["port"], "router_port": asked["router_port"]}
addresses = Addresses(nats_url=asked["nats_url"], pg_dsn=asked["pg_dsn"], **ports)
options = Options(nodes=len(asked["nodes"]), emulated_gpus=4, settings=asked["settings"])
said = msgspec.to_builtins(services(options, home, Credentials(home.credentials), addresses), enc_hook=str)
"""


class NoEarlierVersionError(Exception):
    """Nothing was released, or there is no history here to take a release from."""


class Version:
    """The code in one folder. What it is asked is said by its own code, in a process of its own."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._path = os.pathsep.join(str(tree / folder) for folder in ("libs", "services"))

    async def provision(self, asked: Mapping[str, Any]) -> None:
        await self._run(_PROVISION, asked)

    async def migrate(self, asked: Mapping[str, Any]) -> list[str]:
        """The names of the migrations that ran."""
        return msgspec.convert(await self._run(_MIGRATE, asked), list[str])

    async def services(self, asked: Mapping[str, Any]) -> dict[str, Service]:
        """Every process of the cluster, by name, that runs this code."""
        planned = msgspec.convert(
            await self._run(_PLAN, asked), list[Service], dec_hook=lambda kind, value: kind(value)
        )
        path = {"PYTHONPATH": self._path}
        return {one.name: msgspec.structs.replace(one, settings={**one.settings, **path}) for one in planned}

    async def _run(self, snippet: str, asked: Mapping[str, Any]) -> Any:
        before = (
            "import json, sys\nfrom pathlib import Path\nimport weft.store\nasked, said = json.load(sys.stdin), None\n"
            f"assert weft.store.__file__.startswith({str(self.tree)!r}), weft.store.__file__\n"
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", f"{before}{snippet}\nprint(json.dumps(said))"),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": self._path},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(SNIPPET_SECONDS_MAX):
            said, _ = await process.communicate(msgspec.json.encode(asked))
        assert process.returncode == 0, f"the code in {self.tree} failed"
        return msgspec.json.decode(said)


def this_version() -> Version:
    return Version(HERE)


def earlier_version(folder: Path) -> Version:
    """Unpacked into `folder`. Raises NoEarlierVersionError."""
    commit = os.environ.get("WEFT_UPGRADE_FROM") or newest_release()
    packed = _git("archive", commit, "libs", "services")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # before Python 3.11.4; it is a commit of our own
            archive.extractall(folder)
    return Version(folder)


def newest_release() -> str:
    """The tag of the newest release that this tree follows. Raises NoEarlierVersionError."""
    if not _git("tag", "--list", "v*"):
        raise NoEarlierVersionError("no version is released yet: there is no tag v*")
    return _git("describe", "--tags", "--abbrev=0", "--match", "v*").decode().strip()


def files_of(release: str, folder: str) -> dict[str, str]:
    """The files of a folder in a release, by path. Raises NoEarlierVersionError."""
    paths = _git("ls-tree", "--name-only", release, f"{folder}/").decode().split()
    return {path: _git("show", f"{release}:{path}").decode() for path in paths}


def _git(*arguments: str) -> bytes:
    try:
        return subprocess.run(["git", *arguments], cwd=HERE, check=True, capture_output=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoEarlierVersionError(f"git {arguments[0]}: {getattr(error, 'stderr', b'') or error!r}") from error
