"""GPUs are measured on a whole cluster: by a person who asks, and by a scorer that finds that it is time."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from weft import servers
from weft.bus.nats import NatsBus
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Kind, Role
from weft.samples.benchmark_job import Measured
from weft.servers.postgres import DATABASE
from weft.store.postgres import PostgresStore
from weftd.scorer.measuring import Measuring, held_by
from weftd.scorer.settings import ScorerSettings

SECONDS_MAX = 90.0
SHORT = 0.4  # seconds of steady computing; the rest of a benchmark is to come up and to go


class Ended:
    def __init__(self, status: int | None, out: bytes, err: bytes) -> None:
        self.status, self.out, self.err = status, out.decode(), err.decode()


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("cluster"), nodes=2, gpus=2) as cluster:
        yield cluster


async def weft(cluster: Cluster, *arguments: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weftd.cli", *arguments),
        env={**os.environ, "WEFT_HOME": str(cluster.local.home.root)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, err = await process.communicate()
    return Ended(process.returncode, out, err)


async def test_a_person_sees_which_gpu_is_slow(cluster: Cluster) -> None:
    slowed = await weft(cluster, "emulate", "node-2", "1", "2")
    assert (slowed.status, slowed.out) == (0, "emulated GPU 1 of node-2 has a slowdown of 2 from now on\n")
    try:
        measured = await weft(cluster, "bench-gpu", "--wait", "--seconds", str(SHORT))
    finally:
        await weft(cluster, "emulate", "node-2", "1", "1")
    assert (measured.status, measured.err) == (0, "")
    head, *rows = measured.out.splitlines()
    assert head.split()[:4] == ["NODE", "GPU", "MODEL", "COMPUTE"]
    assert [row.split()[:2] for row in rows] == [["node-1", "0"], ["node-1", "1"], ["node-2", "0"], ["node-2", "1"]]
    assert all("Emulated GPU" in row for row in rows)
    ratios = [float(row.split()[-4].removesuffix("x")) for row in rows]
    assert 1.8 < ratios[3] < 2.2, measured.out
    assert 0.9 < min(ratios[:3]) <= max(ratios[:3]) < 1.1, measured.out


async def test_a_benchmark_gives_way_to_a_job_and_is_done_later(cluster: Cluster) -> None:
    asked = await weft(cluster, "bench-gpu", "node-1", "0", "--seconds", "2")
    bench = asked.out.split()[0]
    await cluster.state(bench, JobState.RUNNING)
    role = Role(gpus=2, cpus=1.0, memory="64MiB")
    all_of_it = {"worker": role}
    spec = JobSpec(name="urgent", kind=Kind.BATCH, command=("sleep", "1"), roles=all_of_it)
    jobs = [await cluster.client.submit(spec) for _ in range(2)]
    for job in jobs:
        assert (await cluster.ended(job.id)).state is JobState.SUCCEEDED
    done = await cluster.ended(bench)
    assert (done.state, done.epoch) == (JobState.SUCCEEDED, 1)
    assert done.progress["bench_emulated"] == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("bench-gpu", "node-9"), "weft: there is no node node-9"),
        (("bench-gpu", "node-1", "7"), "weft: node-1 has no GPU 7; its GPUs are 0-1"),
        (("emulate", "node-9", "0", "2"), "weft: there is no node node-9; there is node-1, node-2"),
        (("emulate", "node-1", "7", "2"), "weft: node-1 has no GPU 7"),
    ],
)
async def test_what_is_not_there_is_one_clear_error(cluster: Cluster, arguments: tuple[str, ...], error: str) -> None:
    ended = await weft(cluster, *arguments)
    assert (ended.status, ended.out, ended.err) == (1, "", f"{error}\n")


async def test_a_scorer_measures_gpus_that_joined_and_finds_the_slow_one(cluster: Cluster) -> None:
    """As the scorer's own users of NATS and Postgres, with a token of its own."""
    home, credentials = cluster.local.home, cluster.local.credentials
    up = await servers.status(home.root)
    assert up.nats
    assert up.postgres
    token = (await cluster.client.make_token("benchmarks", "scorer")).token
    settings = ScorerSettings(benchmark_tenants=("benchmarks",), benchmark_seconds=SHORT)
    await weft(cluster, "emulate", "node-1", "1", "1.8")
    dsn = f"postgresql://weft_scorer@127.0.0.1:{up.postgres.port}/{DATABASE}"
    async with (
        NatsBus.connect(
            f"nats://127.0.0.1:{up.nats.port}", name="test", user="scorer", password=credentials.nats_password("scorer")
        ) as bus,
        PostgresStore.connect(dsn, password=lambda: credentials.postgres_password("scorer"), connections=2) as store,
    ):
        measuring = Measuring(bus=bus, store=store, token=lambda: token, settings=settings)
        found = await _until_settled(measuring, store)
        scores = {
            (score.node_id, score.gpu_index): score
            for score in measuring.benchmarks.scores()
            if score.job_class == "compute"
        }
        again = Measuring(bus=bus, store=store, token=lambda: token, settings=settings)
        await again.turn(await store.nodes(), (), now=time.time())
    await weft(cluster, "emulate", "node-1", "1", "1")
    assert {one.uuid for one in found} == {f"EMULATED-node-{node}-{gpu}" for node in (1, 2) for gpu in (0, 1)}
    assert all(one.emulated for one in found)
    slow = scores.pop(("node-1", 1))
    assert slow.samples == 2, "measured again before it is believed"
    assert 1.6 < slow.score < 2.0
    assert slow.confidence > 0.05  # it falls as a busy machine spreads the times; unit tests hold the formula
    assert all(0.9 < score.score < 1.1 for score in scores.values())
    assert again.benchmarks.results() == measuring.benchmarks.results(), "who starts anew knows what was measured"
    assert again.benchmarks.under_way == 0


async def test_without_a_token_nothing_is_submitted_and_results_are_read(cluster: Cluster) -> None:
    credentials = cluster.local.credentials
    up = await servers.status(cluster.local.home.root)
    assert up.postgres
    dsn = f"postgresql://weft_scorer@127.0.0.1:{up.postgres.port}/{DATABASE}"
    async with PostgresStore.connect(
        dsn, password=lambda: credentials.postgres_password("scorer"), connections=1
    ) as store:
        measuring = Measuring(bus=NoBus(), store=store, token=None, settings=ScorerSettings())
        await measuring.turn(await store.nodes(), (), now=time.time())
    assert measuring.benchmarks.due(time.time()) == []
    assert len(measuring.benchmarks.results()) == 4, "those that a person asked for"


class NoBus:
    async def request_raw(self, *arguments: object, **options: object) -> bytes:
        raise AssertionError("nothing is asked")


async def _until_settled(measuring: Measuring, store: PostgresStore) -> list[Measured]:
    """Take turns until each GPU is measured and none is to be measured again: known once no GPU is held any more."""
    found: list[Measured] = []
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            jobs = await store.holding_jobs(pool="default")
            found += await measuring.turn(await store.nodes(), jobs, now=time.time())
            if len(measuring.benchmarks.results()) == 4 and not measuring.benchmarks.under_way and not held_by(jobs):
                return found
            await asyncio.sleep(0.2)
