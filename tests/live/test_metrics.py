"""The numbers that jobs report, over HTTP, by `weft metrics` and in Python, on a whole cluster."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

import pytest

import weft
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person
from weft.client import Client

SECONDS_MAX = 60.0
PROGRAM = """
import os
import weft
tries = weft.checkpoint_dir / "tries"
first = not tries.exists()
tries.touch()
for step in range(5 if first else 10):
    weft.step(step, reward=-step / 2)
weft.metric("score", 1e-9 if first else 2.0)
os._exit(1 if first else 0)
"""


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("metrics"), nodes=1, gpus=1) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def known(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", cluster.local.url)
    monkeypatch.setenv("WEFT_TOKEN", cluster.local.token)


async def test_the_numbers_of_all_tries_are_series_after_the_end_of_the_job(cluster: Cluster) -> None:
    job = await weft.aio.run(
        [sys.executable, "-c", PROGRAM],
        name="rewards",
        retries={"max": 1, "backoff": "1s"},
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    waits = await weft.aio.run("true", name="waits", after=[{"job": job.id}])
    with pytest.raises(weft.Refused, match="waits has no metrics: rank 0 of it has run on no node yet"):
        await waits.metrics()
    async with asyncio.timeout(SECONDS_MAX):
        await job.result()
    found = await job.metrics()
    assert found.series["step"] == (*range(5), None, *range(10), None)
    assert found.series["reward"][:3] == (0.0, -0.5, -1.0)
    assert (found.last("score"), found.last("reward"), found.points) == (2.0, -4.5, 17)
    assert list(found.at) == sorted(found.at)
    few = await job.metrics(points=2)
    assert (len(few.at), few.points, few.last("score")) == (2, 17, 2.0)
    token = (await cluster.client.make_token("bob", "test")).token
    async with Client(cluster.local.url, token) as bob:
        with pytest.raises(weft.Refused, match="no job has the id"):
            await bob.metrics(job.id)
    person = Person(cluster, cluster.local.token)
    shown = (await person.types("metrics", "rewards")).out.splitlines()
    assert [line.split()[:4] for line in shown] == [
        ["METRIC", "LAST", "LEAST", "MOST"],
        ["reward", "-4.5", "-4.5", "0"],
        ["score", "2", "1e-09", "2"],
        ["step", "9", "0", "9"],
    ]
    lines = (await person.types("metrics", "rewards", "--csv")).out.splitlines()
    assert (lines[0], lines[1].split(",")[1:], len(lines)) == ("at,reward,score,step", ["0.0", "", "0.0"], 18)
    assert json.loads((await person.types("metrics", "rewards", "--json")).out)["points"] == 17
