"""Typical use of `weft`, whose types are checked and which never runs."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, assert_type

import weft
from weft.messages.files import JobFile
from weft.messages.metrics import MetricsView
from weft.messages.sweeps import SweepRow


@weft.function(gpus=1, memory="4GiB", retries=2, env={"HF_HOME": "/data"})
def train(rate: float, *, seed: int = 0) -> float:
    return rate * seed


@weft.function
def plain(name: str) -> list[str]:
    return [name]


@weft.aio.function(cpus=0.5)
def counted(number: int) -> int:
    return number


def with_functions() -> None:
    assert_type(train(0.1, seed=3), float)
    job = train.spawn(0.1, seed=3)
    assert_type(job, weft.Job[float])
    assert_type(job.result(timeout=60), float)
    assert_type(train.remote(0.1), float)
    assert_type(train.map([0.1, 0.2], at_once=2), Iterator[float])
    assert_type(plain.remote("a"), list[str])
    assert_type(train.sweep({"rate": [0.1, 0.2]}, n=8).wait().best(), SweepRow | None)
    with weft.Executor(max_workers=2, gpus=1) as pool:
        assert_type(pool.submit(train, 0.1, seed=3), Future[float])
        assert_type(pool.submit(len, "abc"), Future[int])


def with_jobs() -> None:
    job = weft.run(["python", "train.py"], gpus=1, replicas=2, name="mnist", checkpoints={"on_stop": True})
    assert_type(job, weft.Job[None])
    assert_type(weft.submit("job.yaml", priority=10), weft.Job[None])
    assert_type(weft.submit({"command": "true"}, key="once"), weft.Job[None])
    assert_type(job.id, str)
    assert_type(job.logs(follow=True, rank=0), Iterator[str])
    assert_type(job.files("results"), list[JobFile])
    assert_type(job.fetch("model.pt", Path("here")), list[Path])
    assert_type(job.metrics().last("loss"), float | None)
    assert_type(job.metrics(), MetricsView)
    assert_type(job.explain().sentence, str)
    job.wait_until("running", timeout=60)
    assert_type(weft.jobs(states=["running"], labels=["team=vision"]), list[weft.Job[None]])
    for ended in weft.as_completed([train.spawn(rate) for rate in (0.1, 0.3)]):
        assert_type(ended.result(), float)
    assert_type(weft.Study.find("tune").best(metric="loss", goal="min"), SweepRow | None)
    try:
        job.result()
    except weft.JobFailed as failed:
        assert_type(failed.rank, int | None)
        assert_type(failed.traceback, str)
    except weft.Refused as refused:
        assert_type(refused.hint, str)
    with weft.Cluster.local(nodes=1, gpus=2) as cluster:
        assert_type(cluster.url, str)


async def with_a_loop() -> None:
    job = await counted.spawn(3)
    assert_type(await job.result(), int)
    assert_type(await counted.remote(3), int)
    assert_type(await job, int)
    lines: AsyncIterator[str] = job.logs(follow=True)
    async for line in lines:
        assert_type(line, str)
    async for number in counted.map(range(3)):
        assert_type(number, int)
    async with weft.aio.Cluster.local() as cluster:
        assert_type(cluster.token, str)


def inside_a_job() -> None:
    weft.step(1, of=10, loss=0.5)
    weft.metric("accuracy", 0.9)
    assert_type(weft.should_stop(), bool)
    assert_type(weft.checkpoint_dir, Path)
    assert_type(weft.rank(), int)


def mistakes() -> None:
    train("fast")  # type: ignore[arg-type]
    train.spawn(0.1, seeds=3)  # type: ignore[call-arg]
    weft.run("true", gpu=1)  # type: ignore[call-arg]
    job: weft.Job[str] = train.spawn(0.1)  # type: ignore[assignment]
    anything: Any = job
    anything.result()
