"""Functions as jobs, on a whole cluster: called, mapped, and what becomes of errors."""

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import heed_ctrl_c
from weft.domain.arrays import element_id
from weft.domain.job import JobState

SECONDS_MAX = 90.0
MODULE = """
import dataclasses
import os
import sys
import time
import weft

@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0

@weft.aio.function(cpus=0.1)
def double(point: Point, *, times: int = 2) -> Point:
    return Point(point.x * times, point.y * times)

@weft.aio.function(cpus=0.1)
def fails(number: int) -> int:
    if number % 3 == 1:
        raise ValueError(f"no {number}")
    return number * number

@weft.aio.function(cpus=0.1)
def unsendable(what: str):
    return {"huge": "x" * (17 << 20), "object": object(), "nan": float("nan"), "none": None}[what]

@weft.aio.function(cpus=0.1)
def dies(number: int) -> int:
    os._exit(3)

@weft.aio.function(cpus=0.1)
def untrue() -> int:
    return "text"

@weft.aio.function(cpus=0.1, grace="1s")
def measured(rate: float, kind: str) -> float:
    assert type(rate) is float
    if kind == "bad":
        raise ValueError("no bad")
    if kind == "slow":
        time.sleep(600)
    loss = (rate - 1) ** 2
    weft.step(1, of=1, loss=loss)
    return loss

@weft.aio.function(cpus=0.1, pickle=True)
def pickled(value):
    return {"a set": {value}, "a tuple": (1, 2)}

@weft.aio.function(cpus=0.1)
def where() -> tuple[str, str]:
    return os.environ["WEFT_JOB_ID"], sys.executable
"""
SCRIPT = """
import weft

@weft.function(cpus=0.1)
def add(a: int, b: int = 1) -> int:
    return a + b

if __name__ == "__main__":
    print(add(1), add.remote(1, b=5), list(add.map(range(5), at_once=2)), add.spawn(3).result())
"""

INTERRUPTED = """
import os, signal, sys, threading, time
import weft

@weft.function(cpus=0.1)
def slow(number: int) -> int:
    time.sleep(60 * number)
    return number

def interrupt():
    \"\"\"Ctrl-C, once the main thread waits for the second result.\"\"\"
    came.wait()
    while True:
        frame, names = sys._current_frames()[threading.main_thread().ident], []
        while frame:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        if names[0] == "wait" and "_call" in names:
            return os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

if __name__ == "__main__":
    came = threading.Event()
    threading.Thread(target=interrupt).start()
    for result in slow.map([0, 1], chunk=1):
        came.set()
"""


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("functions"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def known(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", cluster.local.url)
    monkeypatch.setenv("WEFT_TOKEN", cluster.local.token)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module of a user's own, beside no other."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "functions_of_mine.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("functions_of_mine")
    sys.path.remove(str(folder))


@pytest.mark.usefixtures("known")
async def test_a_call_returns_what_the_function_returned_by_its_type(mine: Any) -> None:
    assert mine.double(mine.Point(1.5)) == mine.Point(3.0)
    job = await mine.double.spawn(mine.Point(1.5, -2.0), times=3)
    assert await job.result(SECONDS_MAX) == mine.Point(4.5, -6.0)
    assert job.name == "double"
    assert str(await mine.unsendable.remote("nan")) == "nan"
    assert await mine.unsendable.remote("none") is None
    assert await mine.pickled.remote("x") == {"a set": {"x"}, "a tuple": (1, 2)}
    found, python = await mine.where.remote()
    assert (found.startswith("j-"), python) == (True, sys.executable)


@pytest.mark.usefixtures("known")
async def test_a_function_that_raises_is_a_failed_job_with_its_traceback(mine: Any) -> None:
    job = await mine.fails.spawn(4)
    with pytest.raises(weft.JobFailed, match=r"fails \(j-\w+\) failed: ValueError: no 4") as failed:
        await job.result(SECONDS_MAX)
    assert failed.value.error == "ValueError: no 4"
    assert 'raise ValueError(f"no {number}")' in failed.value.traceback
    assert (failed.value.rank, failed.value.status) == (0, 1)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("huge", "the result, a str, cannot be sent: it has 17825794 bytes, 16777216 at most are sent"),
        ("object", "the result, a object, cannot be sent: Encoding objects of type object is unsupported"),
    ],
)
@pytest.mark.usefixtures("known")
async def test_a_result_that_cannot_be_sent_says_so(mine: Any, what: str, reason: str) -> None:
    with pytest.raises(weft.JobFailed, match=reason):
        await mine.unsendable.remote(what)


@pytest.mark.usefixtures("known")
async def test_a_result_of_another_type_is_refused(mine: Any) -> None:
    with pytest.raises(weft.Refused, match="the result is not the annotated"):
        await mine.untrue.remote()


@pytest.mark.usefixtures("known")
async def test_the_results_of_a_map_come_in_order_each_with_its_error(cluster: Cluster, mine: Any) -> None:
    found = [each async for each in mine.fails.map(range(7), chunk=2, at_once=3, return_exceptions=True)]
    assert [each if isinstance(each, int) else each.error for each in found] == [
        0,
        "ValueError: no 1",
        4,
        9,
        "ValueError: no 4",
        25,
        36,
    ]
    (array,) = (await cluster.client.arrays()).arrays
    assert (array.name, array.elements, array.at_once) == ("fails", 4, 3)
    with pytest.raises(weft.JobFailed, match="ValueError: no 1"):
        assert [each async for each in mine.fails.map([0, 1])] == []
    assert [each async for each in mine.fails.map([])] == []


@pytest.mark.usefixtures("known")
async def test_a_function_is_swept_over_values_and_its_best_element_found(cluster: Cluster, mine: Any) -> None:
    study = await mine.measured.sweep({"rate": [1, 0.5, 2.0], "kind": ["a", "b"]}, at_once=3)
    table = await (await study.wait(SECONDS_MAX)).table(metric="loss")
    assert [(row.state, row.values["kind"], row.best) for row in table.rows] == [
        ("succeeded", kind, loss) for loss in (0.0, 0.25, 1.0) for kind in "ab"
    ]
    drawn = await mine.measured.sweep({"rate": {"min": 0.5, "max": 2.0}, "kind": ["a"]}, n=2, seed=3)
    best = await (await drawn.wait(SECONDS_MAX)).best()
    assert best is not None
    assert best.best == pytest.approx((float(best.values["rate"]) - 1) ** 2, abs=1e-6)
    with pytest.raises(weft.Refused, match=r"set `sample`"):
        await mine.measured.sweep({"rate": {"min": 0.5, "max": 2.0}})


class Halves:
    """A tuner that looks where the last value was better."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Any]] = []

    def ask(self) -> dict[str, Any]:
        return {"rate": 4.0 / 2 ** len(self.told), "kind": "bad" if len(self.told) == 1 else "a"}

    def tell(self, point: Any, job: str, result: Any) -> None:
        assert job
        self.told.append((point["rate"], result))


@pytest.mark.parametrize("local", ["0", "1"])
@pytest.mark.usefixtures("known")
async def test_a_tuner_chooses_the_points_of_a_search(mine: Any, monkeypatch: pytest.MonkeyPatch, local: str) -> None:
    monkeypatch.setenv("WEFT_LOCAL", local)
    tuner: weft.Tuner = (halves := Halves())
    await mine.measured.tune(tuner, n=3, at_once=1)
    (first, second, third) = halves.told
    assert (first, third) == ((4.0, 9.0), (1.0, 0.0))
    assert second[1].error == "ValueError: no bad"


@pytest.mark.usefixtures("known")
async def test_a_search_that_is_ended_cancels_its_jobs_and_tells_them(mine: Any) -> None:
    halves = Halves()
    search = asyncio.create_task(mine.measured.tune(SlowHalves(halves), n=3, at_once=2))
    async with asyncio.timeout(SECONDS_MAX):
        while len(going := await weft.aio.jobs(name="measured", states=["running"])) < 2:  # noqa: ASYNC110 -- no event
            await asyncio.sleep(0.05)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert [result.state for _, result in halves.told] == [JobState.CANCELLED] * 2
    assert [await job.wait(SECONDS_MAX) for job in going] == [JobState.CANCELLED] * 2


class SlowHalves:
    def __init__(self, inner: Halves) -> None:
        self._inner = inner

    def ask(self) -> dict[str, Any]:
        return {"rate": 1.0, "kind": "slow"}

    def tell(self, point: Any, job: str, result: Any) -> None:
        self._inner.tell(point, job, result)


@pytest.mark.usefixtures("known")
async def test_a_process_that_dies_in_a_map_is_the_error_of_its_calls(mine: Any) -> None:
    (died,) = [each async for each in mine.dies.map([1], return_exceptions=True)]
    assert (died.status, died.state, "status 3" in died.verdict) == (3, "failed", True), died


async def test_what_no_job_could_do_is_refused_before_anything_is_sent(
    mine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WEFT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("WEFT_TOKEN", "none")

    @weft.aio.function
    def inner() -> None: ...

    with pytest.raises(weft.Refused, match="define it at the top level of a module"):
        await inner.spawn()
    with pytest.raises(weft.Refused, match=r"cannot be sent: .*@weft\.function\(pickle=True\)"):
        await mine.pickled.__class__(mine.untrue, mine.untrue._remote).spawn(object())
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.4\n")
    other.chmod(0o755)
    older = weft.aio.function(python=str(other))(mine.where.__wrapped__)
    with pytest.raises(weft.Refused, match=r"is Python 3\.4, and this is 3\.\d+"):
        await older.spawn()
    missing = weft.aio.function(python=str(tmp_path / "none"))(mine.where.__wrapped__)
    with pytest.raises(weft.Refused, match="cannot be run here"):
        await missing.spawn()


@pytest.mark.usefixtures("known")
async def test_a_function_that_is_not_there_in_the_job_says_so(mine: ModuleType) -> None:
    gone = weft.aio.function(mine.where.__wrapped__)
    gone._remote.function.__qualname__ = "moved"
    try:
        with pytest.raises(weft.JobFailed, match="functions_of_mine:moved cannot be imported in the job"):
            await gone.remote()
    finally:
        gone._remote.function.__qualname__ = "where"


async def test_with_weft_local_everything_runs_here(mine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_LOCAL", "1")
    monkeypatch.delenv("WEFT_URL", raising=False)
    assert await mine.double.remote(mine.Point(2.0)) == mine.Point(4.0)
    assert [each async for each in mine.fails.map([0, 2])] == [0, 4]
    job = await mine.fails.spawn(1)
    assert (job.state, [each.id async for each in weft.aio.as_completed([job])]) == ("failed", [job.id])
    with pytest.raises(weft.JobFailed, match="ValueError: no 1"):
        await job.result()
    with pytest.raises(weft.Refused, match="the result is not the annotated"):
        await mine.untrue.remote()


POOLED = """
import concurrent.futures, sys, threading, time
import weft

@weft.function(cpus=0.1)
def square(number: int) -> int:
    if number == 3:
        raise ValueError("no three")
    assert weft.should_stop() is False  # it handles signals: in a thread of its own it could not
    return number * number

def slow(seconds: float) -> None:
    time.sleep(seconds)

if __name__ == "__main__":
    with weft.Executor(max_workers=2, cpus=0.1) as pool:
        futures = [pool.submit(square, number) for number in range(4)]
        done, _ = concurrent.futures.wait(futures)
        print(sorted(each.result() for each in done if each.exception() is None), futures[3].exception().error)
        print(list(pool.map(square, [1, 2])))
    try:
        pool.submit(square, 1)
    except RuntimeError as error:
        print(error)
    if sys.argv[1:] == ["cluster"]:
        with weft.Executor(max_workers=1, cpus=0.1, grace="1s") as pool:
            first, behind = pool.submit(slow, 600), pool.submit(slow, 601)
            while not (jobs := weft.jobs(name="slow", states=["running"])):
                time.sleep(0.05)
            print(behind.cancel(), first.cancel())
            pool.shutdown()
            print(jobs[0].wait().value, len(weft.jobs(name="slow")))
"""


@pytest.mark.parametrize("where", ["cluster", "here"])
async def test_an_executor_runs_calls_as_jobs_and_cancels_them(cluster: Cluster, tmp_path: Path, where: str) -> None:
    (tmp_path / "pooled.py").write_text(POOLED)
    known = {"WEFT_URL": cluster.local.url, "WEFT_TOKEN": cluster.local.token, "WEFT_LOCAL": str(int(where == "here"))}
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, str(tmp_path / "pooled.py"), where),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), **known},
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, _ = await running.communicate()
    said = ["[0, 1, 4] ValueError: no three", "[1, 4]", "cannot submit after shutdown"]
    assert out.decode().splitlines() == [*said, *(["True True", "cancelled 1"] if where == "cluster" else [])]


@pytest.mark.parametrize("local", ["0", "1"])
async def test_a_script_maps_its_own_functions(cluster: Cluster, tmp_path: Path, local: str) -> None:
    (tmp_path / "my-script.py").write_text(SCRIPT)
    where = {"WEFT_URL": cluster.local.url, "WEFT_TOKEN": cluster.local.token, "WEFT_LOCAL": local}
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, str(tmp_path / "my-script.py")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), **where},
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, _ = await running.communicate()
    assert out.decode() == "2 6 [1, 2, 3, 4, 5] 4\n"


@pytest.mark.usefixtures("known")
async def test_a_map_that_is_interrupted_names_its_array_which_goes_on_until_it_is_cancelled(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    script = await asyncio.create_subprocess_exec(
        *(sys.executable, str(tmp_path / "interrupted.py")),
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
    )
    async with asyncio.timeout(SECONDS_MAX):
        _, told = await script.communicate()
    assert script.returncode == -signal.SIGINT, told.decode()
    array = next(one for one in (await cluster.client.arrays()).arrays if one.name == "slow")
    last = told.decode().splitlines()[-1]
    assert last.startswith(f"KeyboardInterrupt: goes on: slow ({array.id}); weft.Study.find('{array.id}') returns it")
    assert "concurrent/futures" not in told.decode()
    assert (await cluster.client.job(element_id(array.id, 1))).state is not JobState.CANCELLED
    await (await weft.aio.Study.find(array.id)).cancel()
    assert (await cluster.ended(element_id(array.id, 1))).state is JobState.CANCELLED
