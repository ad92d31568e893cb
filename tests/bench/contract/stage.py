"""A cluster of one node with emulated GPUs, whose jobs run the programs as processes or as containers."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tests.bench.contract.frameworks import packages
from tests.bench.elastic import CONTAINERS
from tests.bench.nearchus.image import base, remove_network
from tests.support.cluster import Cluster
from weft.client import Client, Refused
from weft.domain.job import JobState
from weft.messages.http import JobView, Submitted
from weftd.cli.local import Options, running

PROGRAMS = Path(__file__).with_name("programs")
GPUS = 12
CPUS = 16.0
MEMORY = 24 << 30
SECONDS_MAX = 300.0
LOOK_SECONDS = 0.2


class BrokenError(Exception):
    """A clause does not hold; says what was seen."""


class Stage(Struct, frozen=True, kw_only=True):
    """`image`: of the containers; empty: jobs are processes. `frameworks`: the folder of the virtual environment."""

    cluster: Cluster
    frameworks: Path
    image: str = ""

    @property
    def python(self) -> str:
        return "python3" if self.image else str(self.frameworks / "bin/python")

    def runs(self, *words: str) -> list[str]:
        """The command of a program, or of a module with `-m`; a program is found by the name of its file."""
        return [self.python, *(str(PROGRAMS / word) if word.endswith(".py") else word for word in words)]

    async def submit(
        self, name: str, command: Sequence[str], *, gpus: int = 0, replicas: int = 1, cpus: float = 1.0, **fields: Any
    ) -> Submitted:
        env = {"PYTHONWARNINGS": "ignore", **fields.pop("env", {})}
        role = {"gpus": gpus, "replicas": {"want": replicas}, "cpus": cpus, "memory": "3GiB"}
        body: dict[str, Any] = {"name": name, "command": list(command), "roles": {"worker": role}, **fields}
        if self.image:
            body["image"] = self.image
            env["PYTHONPATH"] = str(packages(self.frameworks))
            sources = (str(PROGRAMS), env["PYTHONPATH"])
            body["volumes"] = [{"source": source, "target": source, "read_only": True} for source in sources]
        try:
            return await self.cluster.client.submit(msgspec.json.encode({**body, "env": env}))
        except Refused as error:
            raise BrokenError(f"the submission of {name} is refused: {error}") from error

    async def log(self, job: str, *, replicas: int = 1) -> str:
        """The output of its ranks so far, one after the other."""
        parts: list[str] = []
        for rank in range(replicas):
            try:
                parts.append((await self.cluster.client.read_log(job, rank=rank)).decode(errors="replace"))
            except Refused:
                continue  # this rank has no log yet
        return "\n".join(parts)

    async def says(self, job: str, words: str, *, replicas: int = 1) -> None:
        """Wait until its log has these words. Raises BrokenError if it ends before."""
        async with asyncio.timeout(SECONDS_MAX):
            while words not in await self.log(job, replicas=replicas):
                view = await self.cluster.client.job(job)
                if view.state.final:
                    raise BrokenError(f"it {view.state} without {words!r}: {await self.last_lines(job)}")
                await asyncio.sleep(LOOK_SECONDS)

    async def ended(self, job: str) -> JobView:
        return await self.cluster.ended(job, seconds_max=SECONDS_MAX)

    async def succeeds(self, job: str, *, replicas: int = 1) -> str:
        """Its log, once it has succeeded. Raises BrokenError if it ends otherwise."""
        view = await self.ended(job)
        if view.state is not JobState.SUCCEEDED:
            raise BrokenError(f"it {view.state}: {await self.last_lines(job, replicas=replicas)}")
        return await self.log(job, replicas=replicas)

    async def cancel(self, job: str) -> str:
        """Its log, once it has ended after a cancellation."""
        await self.cluster.client.cancel(job)
        await self.ended(job)
        return await self.log(job)

    async def last_lines(self, job: str, *, replicas: int = 1) -> str:
        return " / ".join((await self.log(job, replicas=replicas)).strip().splitlines()[-4:])[-500:] or "an empty log"


@asynccontextmanager
async def opened(frameworks: Path, *, contained: bool) -> AsyncIterator[Stage]:
    folders = f"{PROGRAMS},{frameworks}"
    settings = {"EXECUTOR_VOLUMES_ALLOWED": folders, "GATEWAY_VOLUMES_ALLOWED": folders}
    with (
        tempfile.TemporaryDirectory(prefix="weft-bench-", ignore_cleanup_errors=True) as folder,
        ExitStack() as leaving,
    ):
        home = Path(folder)
        if contained:
            os.chmod(home, 0o711)  # so that Postgres' own user reaches its folder
            settings |= {**CONTAINERS, "EXECUTOR_CLUSTER": home.name}
            leaving.callback(remove_network, f"{home.name}-alone")
        options = Options(nodes=1, emulated_gpus=GPUS, cpus=CPUS, memory=MEMORY, port=0, settings=settings)
        async with running(home / "home", options, erase=True) as local, Client(local.url, local.token) as client:
            yield Stage(cluster=Cluster(local, client), frameworks=frameworks, image=base() if contained else "")
