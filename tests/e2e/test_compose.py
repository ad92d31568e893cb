"""`docker compose up`, as the README says it, on a real engine: a job comes in by HTTP and runs in its container."""

import asyncio
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec
import nats
import pytest

from tests.support.cluster import until
from tests.support.engine import need_compose, need_engine
from weft.client import Client
from weft.credentials import inbox_prefix
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import FINAL, JobState
from weft.messages.events import CloudEvent
from weft.messages.images import ImageView

ROOT = Path(__file__).parents[2]
JOB_IMAGE = os.environ.get("WEFT_JOB_IMAGE_SMALL", "busybox:stable")

GPUS_MEASURED = 2  # of 4: the scorer takes its time

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]


class Compose:
    """One project of its own: nothing it makes has the name of anything else on this host."""

    def __init__(self, home: Path) -> None:
        self.project = f"weft-test-{secrets.token_hex(4)}"
        self.port, self.nats_port = _free_port(), _free_port()
        published = home / "published.yml"
        published.write_text(
            f'services:\n  nats:\n    networks: [control, edge]\n    ports: ["127.0.0.1:{self.nats_port}:4222"]\n'
        )
        self._files = ["-f", str(ROOT / "docker-compose.yml"), "-f", str(published)]
        self._environment = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.project,
            "WEFT_PORT": str(self.port),
            "WEFT_ROUTER_PORT": str(_free_port()),
            "WEFT_HOME": str(home / "weft"),
            "WEFT_BACKUPS": str(home / "backups"),
            "WEFT_EMULATED_GPUS": "2",
            "DOCKER_BUILDKIT": "0",
        }

    async def run(self, *arguments: str, seconds_max: float = 300) -> str:
        return await _docker("compose", *self._files, *arguments, environ=self._environment, seconds_max=seconds_max)

    def lay_over(self, file: Path, **settings: str) -> None:
        """Other settings for the executor."""
        lines = "".join(f'      {name}: "{value}"\n' for name, value in settings.items())
        file.write_text(f"services:\n  executor:\n    environment:\n{lines}")
        self._files += ["-f", str(file)]

    async def secret(self, path: str) -> str:
        return (await self.run("run", "--rm", "--no-deps", "admin-token", "cat", f"/secrets/{path}")).strip()

    async def left(self) -> list[str]:
        """Whatever of this project the engine still has, the containers and networks of its jobs too."""
        found: list[str] = []
        for what, label in (
            ("ps --all", f"label=com.docker.compose.project={self.project}"),
            ("ps --all", f"label=weft.cluster={self.project}"),
            ("volume ls", f"label=com.docker.compose.project={self.project}"),
            ("network ls", f"label=com.docker.compose.project={self.project}"),
            ("network ls", f"label=weft.cluster={self.project}"),
        ):
            kind = what.split()
            found += (await _docker(*kind, "--quiet", "--filter", label)).split()
        return found


async def _docker(*arguments: str, environ: Mapping[str, str] | None = None, seconds_max: float = 60) -> str:
    process = await asyncio.create_subprocess_exec(
        "docker",
        *arguments,
        env=environ,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(seconds_max):
        out, errors = await process.communicate()
    assert process.returncode == 0, f"docker {' '.join(arguments)}: {errors.decode()[-3000:]}"
    return out.decode()


async def _built(project: Compose) -> None:
    """The image of this tree. An engine that gets no base images skips the test, but not in CI."""
    try:
        await project.run("build", "--quiet", "setup", seconds_max=500)
    except AssertionError as error:
        if os.environ.get("WEFT_CI_DOCKER") == "1":
            raise
        pytest.skip(f"no base images (deploy/local-images makes some): {str(error)[-200:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def compose(tmp_path: Path) -> AsyncIterator[Compose]:
    need_engine()
    need_compose()
    project = Compose(tmp_path)
    await _built(project)
    try:
        await project.run("--profile", "two-nodes", "up", "--detach", "--wait", "--no-build")
        yield project
    finally:
        await project.run("--profile", "two-nodes", "--profile", "tools", "down", "--volumes", "--timeout", "30")
    assert await project.left() == []


async def test_a_job_submitted_by_http_runs_in_its_container_and_tells_its_events_on_nats(compose: Compose) -> None:
    assert "by the settings here: on: " in await compose.run("logs", "setup")
    token = await compose.secret("admin-token")
    bus = await nats.connect(
        f"nats://127.0.0.1:{compose.nats_port}",
        user="operator",
        password=await compose.secret("nats/operator"),
        inbox_prefix=inbox_prefix("operator").encode(),
    )
    async with Client(f"http://127.0.0.1:{compose.port}", token) as client:
        nodes = await client.nodes()
        assert {node.id for node in nodes.nodes} == {"node-1", "node-2"}
        assert all(gpu.emulated for node in nodes.nodes for gpu in node.gpus)

        until_told = "trap 'echo bye; exit' USR1; while :; do sleep 0.2; done"
        submitted = await client.submit(_spec("seen", f"echo hello from $WEFT_JOB_ID; {until_told}"))
        await until(client, submitted.id, lambda job: job.state is JobState.RUNNING, seconds_max=60)
        names = await _docker("ps", "--filter", f"label=weft.job={submitted.id}", "--format", "{{.Names}}")
        assert names.split() == [f"weft-{submitted.id}-0-0"]
        inspected = json.loads(await _docker("inspect", names.strip()))[0]
        assert inspected["HostConfig"]["Privileged"] is False
        assert inspected["HostConfig"]["CapDrop"] == ["ALL"]
        assert "no-new-privileges:true" in inspected["HostConfig"]["SecurityOpt"]

        await until(client, submitted.id, lambda job: any(run.use is not None for run in job.runs), seconds_max=30)
        await _docker("kill", "--signal", "USR1", names.strip())
        done = await until(client, submitted.id, lambda job: job.state in FINAL, seconds_max=60)
        assert done.state is JobState.SUCCEEDED, await client.story(submitted.id)
        assert await client.read_log(submitted.id) == f"hello from {submitted.id}\nbye\n".encode()

        gang = await client.submit(_spec("gang", "echo rank $RANK of $WORLD_SIZE, master $MASTER_ADDR", replicas=4))
        ended = await until(client, gang.id, lambda job: job.state in FINAL, seconds_max=90)
        assert ended.state is JobState.SUCCEEDED, await client.story(gang.id)

        stored = await _pushed(JOB_IMAGE, url=f"http://127.0.0.1:{compose.port}", token=token)
        own = await client.submit(_spec("own", "echo from the registry", image=stored))
        ran = await until(client, own.id, lambda job: job.state in FINAL, seconds_max=90)
        assert ran.state is JobState.SUCCEEDED, await client.story(own.id)
        name, _, digest = (ran.spec.image or "").removeprefix("weft.internal/").partition("@")
        await _docker("image", "rm", f"127.0.0.1:{compose.port}/{name.partition(':')[0]}@{digest}")

        refused = await client.submit(_spec("fails", "exit 7"))
        failed = await until(client, refused.id, lambda job: job.state in FINAL, seconds_max=60)
        assert (failed.state, failed.exit_code) == (JobState.FAILED, 7)
        await _measured(client, GPUS_MEASURED)

    stream = bus.jetstream()
    reader = await stream.pull_subscribe("weft.events.jobs.>", stream="WEFT_EVENTS")
    told = [msgspec.json.decode(message.data, type=CloudEvent) for message in await reader.fetch(1000, timeout=5)]
    await bus.close()
    of_first = [event.type for event in told if event.subject == submitted.id]
    assert of_first == [f"weft.jobs.{name}" for name in ("submitted", "placed", "starting", "started", "succeeded")]


@pytest.mark.nightly
async def test_nothing_is_left_after_down_not_even_of_a_job_that_ran(tmp_path: Path) -> None:
    need_engine()
    need_compose()
    compose = Compose(tmp_path)
    await _built(compose)
    try:
        await compose.run("up", "--detach", "--wait", "--no-build")
        async with Client(f"http://127.0.0.1:{compose.port}", await compose.secret("admin-token")) as client:
            running = await client.submit(_spec("endless", "sleep 1000"))
            await until(client, running.id, lambda job: job.state is JobState.RUNNING, seconds_max=60)
    finally:
        await compose.run("--profile", "tools", "down", "--volumes", "--timeout", "30")
    assert await compose.left() == []


@pytest.mark.nightly
async def test_no_job_runs_on_when_the_executors_container_was_killed_for_good(tmp_path: Path) -> None:
    """The executor's own guard dies with its container: the one in a container of its own ends the job."""
    need_engine()
    need_compose()
    compose = Compose(tmp_path)
    await _built(compose)
    compose.lay_over(tmp_path / "short.yml", EXECUTOR_FENCE_SECONDS="10", EXECUTOR_FENCE_GRACE_MAX="2")
    try:
        await compose.run("up", "--detach", "--wait", "--no-build")
        async with Client(f"http://127.0.0.1:{compose.port}", await compose.secret("admin-token")) as client:
            running = await client.submit(_spec("endless", "trap '' TERM; while :; do sleep 1; done"))
            await until(client, running.id, lambda job: job.state is JobState.RUNNING, seconds_max=60)
            live = ("ps", "--quiet", "--filter", f"label=weft.job={running.id}")
            assert await _docker(*live)
            await compose.run("kill", "executor")
            async with asyncio.timeout(60):
                while await _docker(*live):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
            await client.cancel(running.id)
            await compose.run("up", "--detach", "--wait", "--no-build")
            await until(client, running.id, lambda job: job.state in FINAL, seconds_max=60)
    finally:
        await compose.run("--profile", "tools", "down", "--volumes", "--timeout", "30")
    assert await compose.left() == []


async def _measured(client: Client, gpus: int) -> None:
    """Until so many emulated GPUs have a score from a benchmark, which ran in a container of Weft's own image."""
    async with asyncio.timeout(120):
        while True:
            found = (await client.gpus()).gpus
            if sum(any(score.source == "benchmark" for score in gpu.scores) for gpu in found) >= gpus:
                return
            await asyncio.sleep(1)


async def _pushed(image: str, *, url: str, token: str) -> str:
    """The name in the registry of an image of this engine."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weftd.cli", "image", "push", image, "--json"),
        env={**os.environ, "WEFT_URL": url, "WEFT_TOKEN": token},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    assert process.returncode == 0
    kept = msgspec.json.decode(out, type=ImageView)
    return f"{kept.name}:{kept.tags[0]}"


def _spec(name: str, script: str, *, replicas: int = 1, image: str = JOB_IMAGE) -> bytes:
    spec = {
        "name": name,
        "image": image,
        "command": ["/bin/sh", "-c", script],
        "grace": "2s",
        "roles": {"worker": {"gpus": 1, "cpus": 0.1, "memory": "64MiB", "replicas": {"want": replicas}}},
    }
    body = msgspec.json.encode(spec)
    decode_spec(body)
    return body


@pytest.mark.nightly
async def test_a_cluster_is_backed_up_and_restored_as_the_how_to_says(compose: Compose) -> None:
    token, key = await compose.secret("admin-token"), "/secrets/nats/gateway"
    kept = _spec("kept", "true")
    async with Client(f"http://127.0.0.1:{compose.port}", token) as client:
        job = (await client.submit(kept)).id
        await until(client, job, lambda view: view.state in FINAL, seconds_max=120)
        said = await compose.run("run", "--rm", "backup", "weft", "backup", "/backups/b", "--key-file", key)
        (counted,) = re.findall(r"\d+ jobs?, ", said)  # with the benchmarks that ran meanwhile
        lost = (await client.submit(kept)).id
    await compose.run("stop", "gateway", "scheduler", "scorer", "reallocator", "router")
    restore = ("weft", "restore", "/backups/b", "--key-file", key)
    assert "is whole" in await compose.run("run", "--rm", "backup", *restore, "--check")
    assert counted in await compose.run("run", "--rm", "backup", *restore, "--replace")
    await compose.run("--profile", "two-nodes", "up", "--detach", "--wait", "--no-build")
    assert await compose.secret("admin-token") == token
    async with Client(f"http://127.0.0.1:{compose.port}", token) as client:
        assert [view.id for view in (await client.jobs(benchmarks=False)).jobs] == [job]
        assert lost != job
