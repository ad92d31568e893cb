"""The executor as a process, a NATS server and an engine: from a changed order to the limit in force."""

import asyncio
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.support.control_plane import ControlPlane
from tests.support.engine import need_images
from tests.support.executors import executor
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from weft.messages.nodes import RunSeen
from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits.groups import find_groups, read_limits

pytestmark = pytest.mark.docker

IMAGE = "weft-job-busybox:local"
MIB = 1 << 20
APPLIED_SECONDS_MAX = 2.0
KEEPS = """
exec 3>/dev/shm/kept
dd if=/dev/zero bs=1048576 count=48 >&3 2>/dev/null || exit 1
echo kept
while :; do sleep 1; done
"""


class Engine:
    """What the engine has of one cluster; all of it is removed at the end."""

    def __init__(self) -> None:
        self.cluster = f"test-{uuid.uuid4().hex[:8]}"
        self.client = docker.from_env()

    def only(self) -> tuple[str, int]:
        """The one container's id, and its first process."""
        (container,) = self.client.containers.list(filters={"label": [f"weft.cluster={self.cluster}", "weft.job"]})
        return str(container.id), int(container.attrs["State"]["Pid"])

    def erase(self) -> None:
        for container in self.client.containers.list(all=True, filters={"label": f"weft.cluster={self.cluster}"}):
            container.remove(force=True)
        for network in self.client.networks.list(names=[f"{self.cluster}-alone"]):
            network.remove()
        self.client.close()

    @property
    def settings(self) -> dict[str, str]:
        return {"EXECUTOR_RUNTIME": "docker", "EXECUTOR_CLUSTER": self.cluster, "EXECUTOR_PULL": "0"}


@pytest.fixture
def engine() -> Iterator[Engine]:
    need_images(IMAGE)
    made = Engine()
    yield made
    made.erase()


async def said(control: ControlPlane, key: RunKey, text: str) -> RunSeen:
    """What the node tells of a run, once `text` is in why its limits are not applied; no text: once they are."""
    async with asyncio.timeout(30):
        while (text not in control.seen[key].not_applied) if text else control.seen[key].not_applied:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return control.seen[key]


async def rate_in_force(pid: int) -> str:
    process = await asyncio.create_subprocess_exec(
        *("nsenter", "-t", str(pid), "-n", "tc", "qdisc", "show", "dev", "eth0"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode()


async def test_a_changed_order_is_in_force_within_moments_and_survives_the_executor(
    server: NatsServer, control: ControlPlane, engine: Engine, tmp_path: Path
) -> None:
    home, key = tmp_path / "home", RunKey("job-1", 1, 0)
    asked = {"command": ("sh", "-c", KEEPS), "image": IMAGE, "cpus": 1.0, "memory": 256 * MIB}
    async with executor(server, home, keeping=True, **engine.settings) as process:
        await control.want(order(**asked))
        await control.hears(key, "running")
        await until(lambda: b"kept" in (home / "logs" / f"{key}.log").read_bytes())
        container, pid = engine.only()
        groups = find_groups(pid, container)
        if not groups:
            pytest.skip("the containers' control groups are out of reach here")
        took = []
        for cpus in (0.5, 0.25, 1.5, 0.75):
            asked["cpus"] = cpus
            begun = time.monotonic()
            await control.want(order(**asked))
            await until(lambda cpus=cpus: read_limits(groups).cpus == cpus, every=0.001)
            took.append(time.monotonic() - begun)
            await asyncio.sleep(0.2)
        assert max(took) < APPLIED_SECONDS_MAX
        await control.want(order(**asked, egress=1_000_000))
        if "egress" not in control.reports[-1].not_enforced and shutil.which("tc") and shutil.which("nsenter"):
            async with asyncio.timeout(30):
                while "tbf" not in (found := await rate_in_force(pid)):  # noqa: ASYNC110 - bounded
                    await asyncio.sleep(0.01)
            assert "rate 8Mbit" in found
        tight = {**asked, "memory": 48 * MIB, "egress": 1_000_000}
        await control.want(order(**tight))
        await said(control, key, f"memory {48 * MIB}: it uses")
        assert read_limits(groups).memory == 256 * MIB
        process.kill()
        await process.wait()
    async with executor(server, home, **engine.settings):
        await control.want(order(**{**tight, "memory": 128 * MIB}))
        await until(lambda: read_limits(groups).memory == 128 * MIB)
        await said(control, key, "")
        assert read_limits(groups).cpus == 0.75
        assert engine.only() == (container, pid)  # never restarted
        assert "running" in control.seen[key].state


async def test_a_limit_that_somebody_changed_by_hand_is_put_right(
    server: NatsServer, control: ControlPlane, engine: Engine, tmp_path: Path
) -> None:
    async with executor(server, tmp_path / "home", **engine.settings):
        await control.want(order(command=("sleep", "60"), image=IMAGE, cpus=0.5))
        await control.hears(RunKey("job-1", 1, 0), "running")
        container, pid = engine.only()
        groups = find_groups(pid, container)
        if not groups:
            pytest.skip("the containers' control groups are out of reach here")
        await asyncio.to_thread(engine.client.api.update_container, container, cpu_quota=200_000)
        await until(lambda: read_limits(groups).cpus == 2.0)
        await until(lambda: read_limits(groups).cpus == 0.5)
