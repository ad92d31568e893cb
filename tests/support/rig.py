"""The runtimes that are held to one suite: the fake, processes with and without cgroups, and containers."""

import asyncio
import os
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.simulation.machine import Engine, SimRuntime
from tests.simulation.place import Place
from tests.support.doubles.runtime import FakeHost, FakeRuntime, Program
from tests.support.engine import need_images
from tests.support.runs import in_state, order
from tests.support.virtual_time import Process
from weft.domain.cluster import Gpu
from weft.messages.nodes import RunState, StartRun
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts
from weftd.executor.machine.volumes import OwnedVolume
from weftd.executor.runs import Runtime
from weftd.executor.runtime.limits.cgroup import NoCgroups, find_cgroups
from weftd.executor.runtime.process.runtime import ProcessRuntime

IMAGE = "weft-job-busybox:local"
IMAGE_WITH_PYTHON = "weft-job-python:local"
MEBIBYTE = 1 << 20

# What a run does: for a shell, and for the fake.
BEHAVIOURS: dict[str, tuple[str, Program]] = {
    "ends well": ("echo out; echo err >&2", Program(output=b"out\nerr\n", seconds=0.0)),
    "fails with 3": ("echo so far; exit 3", Program(output=b"so far\n", seconds=0.0, exit_code=3)),
    "stays": ("echo up; exec sleep 60", Program(output=b"up\n")),
    "finishes on SIGTERM": (
        "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done",
        Program(output=b"up\n", on_term=0),
    ),
    "ignores SIGTERM": (
        "trap '' TERM; echo up; while :; do sleep 0.05; done",
        Program(output=b"up\n", on_term=None),
    ),
    "writes much": (
        "i=0; while [ $i -lt 20000 ]; do echo line $i of a log that must be whole; i=$((i+1)); done; exit 7",
        Program(
            output=b"".join(b"line %d of a log that must be whole\n" % i for i in range(20000)),
            seconds=0.0,
            exit_code=7,
        ),
    ),
    "uses too much memory": (
        "echo up; exec tail /dev/zero",
        Program(output=b"up\n", seconds=0.0, exit_code=137, oom=True),
    ),
}


class Rig(Struct):
    """One runtime, how to open it anew on the same host, and what it cannot show."""

    name: str
    runtime: Runtime
    reopen: Callable[[], Awaitable[Runtime]]
    node: NodeFacts
    home: Home
    lacks: frozenset[str] = frozenset()

    @property
    def docker(self) -> bool:
        return self.name.startswith("docker")

    def order(self, behaviour: str, **fields: Any) -> StartRun:
        command = ("sh", "-c", BEHAVIOURS[behaviour][0])
        return self.shell(command, name=behaviour.replace(" ", "-").lower(), **fields)

    def shell(self, command: tuple[str, ...], **fields: Any) -> StartRun:
        image = IMAGE if self.docker else None
        job_id = f"job-{uuid.uuid4().hex[:8]}"
        return order(**{"job_id": job_id, "command": command, "image": image, **fields})

    def checkpoints(self, asked: StartRun) -> Path:
        """The folder that the run finds in WEFT_CHECKPOINT_DIR, on this host."""
        return Path(self.node.checkpoints) / asked.job_id

    def needs(self, *abilities: str) -> None:
        """Skip what this runtime cannot do on this host; it says so in `not_enforced` where users must know."""
        missing = sorted(self.lacks.union(self.runtime.not_enforced).intersection(abilities))
        if missing:
            pytest.skip(f"{self.name} does not do {', '.join(missing)} here")


def _fake_program(asked: StartRun) -> Program:
    names = {behaviour.replace(" ", "-").lower(): program for behaviour, (_, program) in BEHAVIOURS.items()}
    return names[asked.name]


def _gpus(node_id: str) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(index=index, uuid=f"EMULATED-{node_id}-{index}", model="Emulated GPU", memory=1 << 34, emulated=True)
        for index in range(2)
    )


@asynccontextmanager
async def opened(kind: str, tmp_path: Path) -> AsyncIterator[Rig]:
    """A runtime of this kind on this host, or a skip where it cannot be had; all its runs are ended with it."""
    node_id = f"test-{uuid.uuid4().hex[:8]}"
    allowed, volumes = tmp_path / "allowed", tmp_path / "volumes"
    allowed.mkdir()
    for name in ("sets", "scratch", "of-bob"):
        (volumes / name).mkdir(parents=True)
    node = NodeFacts(
        node_id=node_id,
        gpus=_gpus(node_id),
        checkpoints=str(tmp_path / "checkpoints"),
        results=str(tmp_path / "results"),
        volumes_allowed=(str(allowed),),
        volumes={
            "sets": OwnedVolume(path=str(volumes / "sets"), read_only=True),
            "scratch": OwnedVolume(path=str(volumes / "scratch")),
            "of-bob": OwnedVolume(path=str(volumes / "of-bob"), tenants=("bob",)),
        },
    )
    home = Home(tmp_path / "home")
    made: list[Runtime] = []

    async def reopen() -> Runtime:
        if made:
            await made[-1].close()
        made.append(await open_runtime())
        return made[-1]

    host = FakeHost(_fake_program, now=lambda: 0.0)
    lacks: frozenset[str] = frozenset()
    match kind:
        case "fake":
            lacks = frozenset({"commands", "refusals", "oom"})

            async def open_runtime() -> Runtime:
                return FakeRuntime(host)
        case "simulated":
            lacks = frozenset({"commands", "refusals", "oom"})

            async def open_runtime() -> Runtime:
                loop = asyncio.get_running_loop()
                engine = Engine(host, loop, random.Random(1))
                return SimRuntime(engine, Place(Process("test", loop), loop))
        case "process":
            lacks = frozenset({"oom", "resize", "volumes"})

            async def open_runtime() -> Runtime:
                return await ProcessRuntime.open(home, node, inherited=os.environ, cgroups=NoCgroups())
        case "process-cgroups":
            lacks = frozenset({"volumes"})
            if isinstance(find_cgroups(node_id), NoCgroups):
                pytest.skip("this host lets us make no cgroups")

            async def open_runtime() -> Runtime:
                return await ProcessRuntime.open(home, node, inherited=os.environ, cgroups=find_cgroups(node_id))
        case _:
            need_images(IMAGE, *([IMAGE_WITH_PYTHON] if kind == "docker-beside" else []))
            from weftd.executor.runs import RuntimeUnavailableError
            from weftd.executor.runtime.docker.runtime import DockerRuntime
            from weftd.executor.runtime.docker.settings import ContainerSettings

            settings = ContainerSettings(cluster=node_id, pull=False)
            if kind == "docker-beside":  # the engine's update is not used, and neither are rights of our own
                settings = replace(settings, limits_by="files", egress_by="helper", egress_image=IMAGE_WITH_PYTHON)

            async def open_runtime() -> Runtime:
                return await DockerRuntime.open(home, node, settings)

            try:
                await reopen()
            except RuntimeUnavailableError as error:
                if os.environ.get("WEFT_CI_DOCKER") == "1":
                    raise
                pytest.skip(str(error))
    runtime = made[-1] if made else await reopen()
    rig = Rig(name=kind, runtime=runtime, reopen=reopen, node=node, home=home, lacks=lacks)
    yield rig
    last = rig.runtime = made[-1]
    for run in await last.runs():
        await last.signal(run.key, kill=True)
    for run in await last.runs():
        await in_state(last, run.key, RunState.EXITED)
        await last.remove(run.key)
    await last.close()
    if rig.docker:
        _remove_network(f"{node_id}-alone")


def _remove_network(name: str) -> None:
    import docker

    with_engine = docker.from_env()
    for network in with_engine.networks.list(names=[name]):
        network.remove()
    with_engine.close()
