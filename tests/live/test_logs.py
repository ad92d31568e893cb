"""What a job wrote is there to be read, whatever ended it and whatever died meanwhile: a cluster of real processes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.runs import until
from weft.client import Gap, Refused
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Role
from weft.messages.http import JobView

GRAIN = 1 << 20
SECONDS_MAX = 60.0
SHORT = {  # so that a node is given up within seconds
    "EXECUTOR_FENCE_SECONDS": "4",
    "EXECUTOR_FENCE_GRACE_MAX": "1",
    "EXECUTOR_DRIFT_SECONDS": "2",
    "EXECUTOR_LEASE_SECONDS": "9",
    "SCHEDULER_LEASE_SECONDS": "9",
    "SCHEDULER_PREEMPTION_AFTER_SECONDS": "0",
}
# Lines that number themselves and tell their epoch: a byte too many or too few shows. On SIGTERM it says so and ends.
COUNTING = """
import os, signal, sys, time
out, epoch, stopped = sys.stdout.buffer, int(os.environ["WEFT_EPOCH"]), []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
number, pause, most = 0, float(sys.argv[1]), int(sys.argv[2])
while not stopped and number < most:
    out.write(b"".join(b"epoch %d line %d\\n" % (epoch, n) for n in range(number, number + 100)))
    out.flush()
    number += 100
    time.sleep(pause)
out.write(b"epoch %d saved after %d\\n" % (epoch, number))
out.flush()
sys.exit(143 if stopped else 0)
"""
FOR_EVER = str(10**12)


def counting(name: str, *, pause: float = 0.001, lines: str = FOR_EVER, **fields: object) -> JobSpec:
    role = Role(gpus=1, cpus=0.5, memory="256MiB")
    return JobSpec(
        **{
            "name": name,
            "command": ("python3", "-u", "-c", COUNTING, str(pause), lines),
            "roles": {"worker": role},
            "grace": "20s",
            **fields,
        }
    )


def whole(log: bytes, *, epoch: int, first: int = 0) -> int:
    """How many lines it counted to its saved end. Fails on the first byte that is not as it was written."""
    *lines, last, empty = log.split(b"\n")
    assert empty == b""
    for number, line in enumerate(lines, start=first):
        assert line == b"epoch %d line %d" % (epoch, number)
    assert last == b"epoch %d saved after %d" % (epoch, first + len(lines))
    return first + len(lines)


@asynccontextmanager
async def submitted(cluster: Cluster, spec: JobSpec) -> AsyncIterator[JobView]:
    """Running, and writing."""
    job = (await cluster.client.submit(spec)).id
    view = await cluster.state(job, JobState.RUNNING)
    await has_lines(cluster, job, 1000)
    yield view
    if not (await cluster.client.job(job)).state.final:
        await cluster.client.cancel(job)
        await cluster.ended(job)


async def has_lines(cluster: Cluster, job: str, many: int, *, epoch: int | None = None) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while (await cluster.client.read_log(job, epoch=epoch, tail=64)).count(b" line ") == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while len(await cluster.client.read_log(job, epoch=epoch)) < many * 15:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def follow(cluster: Cluster, job: str, heard: list[bytes], gaps: list[Gap]) -> None:
    async with aclosing(cluster.client.follow_log(job, gap=gaps.append)) as chunks:
        async for chunk in chunks:
            heard += [chunk]


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("logs"), nodes=2, gpus=2, settings=SHORT) as made:
        yield made


def executor_of(cluster: Cluster, node: str) -> int:
    return next(pid for name, pid in cluster.local.pids.items() if "executor" in name and name.endswith(node))


async def test_a_log_is_whole_after_an_end_and_after_a_cancel(cluster: Cluster) -> None:
    ends = await cluster.client.submit(counting("ends", lines="20000"))
    stops = await cluster.client.submit(counting("stops"))
    await cluster.ended(ends.id)
    assert whole(await cluster.client.read_log(ends.id), epoch=0) == 20000
    await has_lines(cluster, stops.id, 1000)
    await cluster.client.cancel(stops.id)
    await cluster.ended(stops.id)
    assert whole(await cluster.client.read_log(stops.id), epoch=0) > 1000


async def test_the_log_before_a_preemption_is_read_while_the_next_epoch_runs(cluster: Cluster) -> None:
    async with submitted(cluster, counting("victim", roles={"worker": Role(gpus=2, cpus=0.5)})) as victim:
        (other,) = {"node-1", "node-2"} - {victim.runs[0].node_id}
        await cluster.client.drain(other)
        try:
            urgent = await cluster.client.submit(
                JobSpec(name="urgent", command=("sleep", "1"), priority=100, roles={"worker": Role(gpus=2, cpus=0.5)})
            )
            await cluster.until(victim.id, lambda job: job.epoch == 1)
            await cluster.ended(urgent.id)
            await cluster.state(victim.id, JobState.RUNNING)
        finally:
            await cluster.client.resume(other)
        await has_lines(cluster, victim.id, 500, epoch=1)
        assert whole(await cluster.client.read_log(victim.id, epoch=0), epoch=0) > 1000
        assert (await cluster.client.read_log(victim.id)).startswith(b"epoch 1 line 0\n")


async def test_a_log_is_whole_though_its_executor_and_the_gateway_are_killed_under_its_reader(
    cluster: Cluster,
) -> None:
    async with submitted(cluster, counting("followed", pause=0.005)) as job:
        heard: list[bytes] = []
        gaps: list[Gap] = []
        following = asyncio.create_task(follow(cluster, job.id, heard, gaps))
        node = job.runs[0].node_id
        for victim in (node, "gateway", node):
            before = len(heard)
            await until(lambda before=before: len(heard) > before + 5)
            pid = executor_of(cluster, victim) if victim == node else cluster.local.pids["gateway"]
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: pid not in cluster.local.pids.values())
            await until(lambda: len(cluster.local.pids) >= 6)
        before = len(heard)
        await until(lambda: len(heard) > before + 5)
        await cluster.client.cancel(job.id)
        await cluster.ended(job.id)
        async with asyncio.timeout(SECONDS_MAX):
            await following
        assert gaps == []
        count = whole(b"".join(heard), epoch=0)
        assert whole(await cluster.client.read_log(job.id), epoch=0) == count


async def test_a_hung_nodes_log_is_told_to_be_away_and_is_whole_when_it_is_back(cluster: Cluster) -> None:
    async with submitted(cluster, counting("moved", pause=0.01)) as job:
        node = job.runs[0].node_id
        pid = executor_of(cluster, node)
        heard: list[bytes] = []
        gaps: list[Gap] = []
        following = asyncio.create_task(follow(cluster, job.id, heard, gaps))
        os.kill(pid, signal.SIGSTOP)
        try:
            await cluster.until(job.id, lambda now: now.epoch == 1 and now.state is JobState.RUNNING)
            with pytest.raises(Refused) as refused:
                await cluster.client.read_log(job.id, epoch=0)
            assert (refused.value.status, refused.value.field) == (404, "node")
            assert f"node {node}" in refused.value.reason
            assert "lost" in refused.value.reason
            await until(lambda: b"epoch 1 line 0\n" in b"".join(heard), seconds_max=110)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [(gap.epoch, gap.ends) for gap in gaps] == [(0, None)]
        await cluster.client.cancel(job.id)
        await cluster.ended(job.id)
        await asyncio.wait_for(following, SECONDS_MAX)
        log = await _when_back(cluster, job.id)
        lines = log.split(b"\n")
        assert lines[0] == b"epoch 0 line 0"
        for number, line in enumerate(lines[:-1]):
            assert line.startswith((b"epoch 0 line %d" % number, b"epoch 0 saved")), line


async def _when_back(cluster: Cluster, job: str) -> bytes:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            with suppress(Refused):
                return await cluster.client.read_log(job, epoch=0)
            await asyncio.sleep(0.2)


async def test_a_job_killed_for_memory_leaves_its_log(cluster: Cluster) -> None:
    script = "print('before', flush=True); kept = [bytearray(b'x' * 2**20) for _ in range(400)]; print('after')"
    role = Role(gpus=1, cpus=0.5, memory="64MiB")
    job = await cluster.client.submit(JobSpec(name="oom", command=("python3", "-c", script), roles={"worker": role}))
    ended = await cluster.ended(job.id)
    if ended.state is JobState.SUCCEEDED:
        pytest.skip("nodes cannot limit memory here")
    assert (await cluster.client.read_log(job.id)).startswith(b"before\n")


async def test_a_log_beyond_the_nodes_limit_keeps_its_newest_bytes_and_says_how_many_are_gone(tmp_path: Path) -> None:
    settings = {"EXECUTOR_LOG_BYTES_MAX": str(3 * GRAIN)}
    async with (
        embedded_cluster(tmp_path, nodes=1, gpus=2, settings=settings) as cluster,
        submitted(cluster, counting("chatty", pause=0.001)) as job,
    ):
        gaps: list[Gap] = []

        async def newest() -> bytes:
            chunks = cluster.client.stream_log(job.id, gap=gaps.append)
            return b"".join([chunk async for chunk in chunks])

        async with asyncio.timeout(SECONDS_MAX):
            while not gaps:
                await newest()
        await cluster.client.cancel(job.id)
        await cluster.ended(job.id)
        gaps.clear()
        log = await newest()
        (gap,) = gaps
        assert (gap.begins, gap.epoch) == (0, 0)
        assert gap.ends is not None
        assert gap.ends % GRAIN == 0
        assert len(log) >= 3 * GRAIN - 4096 or gap.ends > 0
        _, _, rest = log.partition(b"\n")
        whole(rest, epoch=0, first=int(rest.split(b"\n", 1)[0].rsplit(b" ", 1)[1]))
        with pytest.raises(Refused) as refused:
            await cluster.client.read_log(job.id, epoch=7)
        assert refused.value.field == "epoch"
