"""A real model on a whole cluster: the autoscaler gives it more replicas under load, and takes them back."""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.support import onnx_model
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.tree import PYTHONPATH
from weft.domain.job import CauseCode, JobEvent, JobState
from weft.messages.http import JobView

SETTINGS = {"REALLOCATOR_SERVING_POLICY": "weft-quick"}
MOST, CONCURRENCY = 3, 6
TOKENS = 120
READERS = 14
FEW_PAUSE = 2.0  # a reader that never pauses asks for more than one replica streams on 0.1 CPUs
SCALE_SECONDS_MAX = 240.0


class Readers:
    """Clients, each of which reads one stream of tokens after the other, with `pause` seconds between two. `cut`: the
    streams that did not come whole."""

    def __init__(self, http: aiohttp.ClientSession, url: str, whole: dict[int, str], *, pause: float = 0.0) -> None:
        self._http, self._url, self._whole, self._pause = http, url, whole, pause
        self.read = 0
        self.cut: list[str] = []
        self._stop = asyncio.Event()

    async def one(self, number: int) -> None:
        turn = number
        while not self._stop.is_set():
            seed = turn % len(self._whole)
            turn += 1
            async with self._http.post(self._url, json=asked(seed, stream=True)) as answer:
                lines = [line async for line in answer.content if line.startswith(b"data: ")]
            text = "".join(json.loads(line[6:])["token"] for line in lines if line != b"data: [DONE]\n")
            if answer.status != 200 or text != self._whole[seed] or lines[-1] != b"data: [DONE]\n":
                self.cut.append(f"{answer.status}: {len(text)} of {TOKENS} tokens")
            self.read += 1
            await asyncio.sleep(self._pause)

    def stop(self) -> None:
        self._stop.set()


def asked(seed: int, *, stream: bool = False) -> dict[str, object]:
    return {"prompt": "a gpu that is s", "tokens": TOKENS, "seed": seed, "stream": stream}


def replicas(view: JobView) -> int:
    assert view.state is JobState.RUNNING
    assert view.service is not None
    return view.service.ready or 0


@pytest.mark.nightly
@pytest.mark.alone
@pytest.mark.timeout(600)
async def test_a_model_that_streams_gets_more_replicas_under_load_and_gives_them_back(tmp_path: Path) -> None:
    """No stream is refused or cut, none by the replicas that leave."""
    model = tmp_path / "model.onnx"
    onnx_model.make(model)
    roles = {"worker": {"gpus": 1, "cpus": 0.1, "memory": "256MiB", "replicas": {"min": 1, "want": 1, "max": MOST}}}
    served = spec(
        "letters",
        kind="inference",
        command=[sys.executable, "-m", "tests.support.onnx_model", "serve", str(model)],
        env={"PYTHONPATH": PYTHONPATH},
        roles=roles,
        grace="5s",
        service={"ready": "/healthz", "concurrency": CONCURRENCY, "drain": "30s", "start": "60s"},
    )
    async with embedded_cluster(tmp_path / "cluster", nodes=2, gpus=2, settings=SETTINGS) as cluster:
        job = (await cluster.client.submit(served)).id
        url = f"{cluster.local.router_url}/s/{job}/v1/generate"
        headers = {"Authorization": f"Bearer {cluster.local.token}"}
        await cluster.until(job, lambda view: view.state is JobState.RUNNING and replicas(view) == 1)
        async with aiohttp.ClientSession(headers=headers) as http:
            whole = {seed: await text_of(http, url, seed) for seed in range(4)}
            readers = Readers(http, url, whole)
            tasks = [asyncio.create_task(readers.one(number)) for number in range(READERS)]
            try:
                await cluster.until(job, lambda view: replicas(view) == MOST, seconds_max=SCALE_SECONDS_MAX)
                grown = readers.read
                await asyncio.sleep(2.0)
                assert readers.read > grown
                readers.stop()
                await asyncio.gather(*tasks)
                few = Readers(http, url, whole, pause=FEW_PAUSE)
                tasks = [asyncio.create_task(few.one(0))]
                await until_one(cluster, job)
                few.stop()
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
        assert (readers.cut, few.cut) == ([], [])
        assert few.read > 0
        assert await causes_of_sizes(cluster, job) == {CauseCode.LOAD}


async def text_of(http: aiohttp.ClientSession, url: str, seed: int) -> str:
    async with http.post(url, json=asked(seed)) as answer:
        assert answer.status == 200
        return str((await answer.json())["text"])


async def until_one(cluster: Cluster, job: str) -> None:
    def alone(view: JobView) -> bool:
        assert view.service is not None
        return view.service.granted == 1 and replicas(view) == 1

    await cluster.until(job, alone, seconds_max=SCALE_SECONDS_MAX)


async def causes_of_sizes(cluster: Cluster, job: str) -> set[CauseCode]:
    """Why its size was changed."""
    scaled = [event.data for event in await cluster.client.story(job) if event.type.endswith(JobEvent.SCALED)]
    return {data.cause.code for data in scaled if data.cause is not None}
