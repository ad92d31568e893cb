"""`import weft` as a person uses it, on a whole cluster: with an event loop, in a plain script, and in a notebook."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

import weft
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import heed_ctrl_c
from tests.support.proxy import Proxy
from tests.support.tree import ROOT
from weft.domain.job import JobState

T = TypeVar("T")
PATIENCE = 1.0
SECONDS_MAX = 60.0
FAILS = 'echo hello $RANK; if [ $RANK = 1 ]; then echo "ValueError: bad"; exit 7; fi; sleep 60'
SCRIPT = """
import os, signal, sys, threading, time
import weft

def interrupt():
    \"\"\"Ctrl-C, once the main thread waits in a call.\"\"\"
    while True:
        frame, names = sys._current_frames()[threading.main_thread().ident], []
        while frame:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        if names[0] == "wait" and "_call" in names:
            return os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

job = weft.run(["sh", "-c", "echo ready; sleep 60"], name="patient")
print(job.id, flush=True)
lines = job.logs(follow=True)
next(lines)
threading.Thread(target=interrupt).start()
"""
FORKED = """
import os
import weft

weft.jobs()
child = os.fork()
if not child:
    os._exit(0 if weft.jobs(limit=1) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
NOTEBOOK = """
import asyncio
import os
import weft

async def cell():
    job = weft.run("echo hello", name="cell")
    job.result()
    print(*job.logs(), job._repr_html_().count("<td>cell</td>"))

asyncio.run(cell())
"""
CELLS = """
import ast, asyncio, json, sys

async def notebook():
    names = {}
    for cell in json.loads(sys.argv[1]):
        tree = ast.parse(cell)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
        if shown is not None and shown is not names["job"].state:
            print(shown._repr_html_())

asyncio.run(notebook())
"""


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("python"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def known(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", cluster.local.url)
    monkeypatch.setenv("WEFT_TOKEN", cluster.local.token)


async def bounded(waiting: Awaitable[T]) -> T:
    async with asyncio.timeout(SECONDS_MAX):
        return await waiting


async def test_a_job_is_run_followed_and_has_its_result() -> None:
    job = await weft.aio.run(["sh", "-c", "echo one; echo two >&2; printf 'no end'"], gpus=1, name="lines")
    assert [line async for line in job.logs(follow=True)] == ["one", "two", "no end"]
    await bounded(job.result())
    assert (job.state, [line async for line in job.logs()]) == (JobState.SUCCEEDED, ["one", "two", "no end"])
    again = await weft.aio.Job.find(job.id)
    assert (again.id, again.name, again.state) == (job.id, "lines", JobState.SUCCEEDED)
    assert (await job.explain()).state is JobState.SUCCEEDED


async def test_a_job_that_fails_raises_its_first_failed_rank_with_its_last_lines() -> None:
    job = await weft.aio.submit(command=["sh", "-c", FAILS], replicas=2, name="gang")
    with pytest.raises(weft.JobFailed, match="rank 1 ended with status 7") as failed:
        await bounded(job.result())
    error = failed.value
    assert (error.job, error.rank, error.status, error.state) == (job.id, 1, 7, JobState.FAILED)
    assert error.lines == ("hello 1", "ValueError: bad")
    assert str(error).endswith("the last lines of rank 1:\n  hello 1\n  ValueError: bad")
    assert [line async for line in job.logs()] == ["hello 1", "ValueError: bad"], "the rank that failed first"


async def test_a_cancelled_job_has_no_result() -> None:
    job = await weft.aio.run("sleep 60", name="unwanted", grace="1s")
    await job.cancel()
    with pytest.raises(weft.JobFailed) as failed:
        await bounded(job.result())
    assert (failed.value.state, job.state) == (JobState.CANCELLED, JobState.CANCELLED)


async def test_a_refused_field_is_named_with_its_value_and_a_hint() -> None:
    with pytest.raises(weft.Refused) as refused:
        await weft.aio.run("true", memory="16G")
    assert (refused.value.field, refused.value.value) == ("memory", "16G")
    assert refused.value.hint == "did you mean 16GiB or 16GB?"
    with pytest.raises(weft.Refused, match="must be 0 to 64, got 65"):
        await weft.aio.submit({"name": "much", "command": ["true"]}, gpus=65)


async def test_a_wait_ends_after_its_timeout_and_the_job_goes_on() -> None:
    job = await weft.aio.run("sleep 60", name="long", grace="1s")
    with pytest.raises(TimeoutError, match=rf"long \({job.id}\) is not over after 0.2 s, and goes on"):
        await job.wait(0.2)
    with pytest.raises(TimeoutError, match=r"not over after 0\.2 s, and going on: long"):
        await anext(weft.aio.as_completed([job], timeout=0.2))
    assert not (await job.refresh()).state.final
    await job.cancel()
    await bounded(job.wait())


@pytest.mark.parametrize("fault", [Proxy.refuse, Proxy.cut])
async def test_a_gateway_that_goes_away_in_a_wait_is_unreachable_after_the_bound(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Proxy], None]
) -> None:
    async with Proxy(urlsplit(cluster.local.url).port or 0) as link:
        monkeypatch.setenv("WEFT_URL", f"http://127.0.0.1:{link.port}")
        job = await weft.aio.run("sleep 60", name="away", grace="1s")
        waiting = asyncio.create_task(job.wait(patience=PATIENCE))
        carried = link.accepted
        while link.accepted == carried:  # noqa: ASYNC110 -- a connection of the wait is no event of ours
            await asyncio.sleep(0.01)
        fault(link)
        link.reset()
        with pytest.raises(weft.Unreachable):
            await bounded(waiting)
        link.mend()
        assert not (await job.refresh()).state.final
        await job.cancel()
        await bounded(job.wait())


async def test_a_job_is_waited_for_until_it_runs() -> None:
    job = await weft.aio.run("sleep 600", name="running", grace="1s", cpus=0.1)
    assert await bounded(job.wait_until("running")) is JobState.RUNNING
    held = await weft.aio.run("true", after=[{"job": job.id}], name="held", cpus=0.1)
    with pytest.raises(TimeoutError, match=rf"held \({held.id}\) is queued, not running, after 0.2 s, and goes on"):
        await held.wait_until(JobState.RUNNING, 0.2)
    await job.cancel()
    assert await bounded(job.wait()) is JobState.CANCELLED
    assert await bounded(held.wait_until("running")) is JobState.CANCELLED


async def test_jobs_come_in_the_order_in_which_they_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = await weft.aio.run(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done"], name="slow", cpus=0.1)
    quick = await weft.aio.run("true", name="quick", cpus=0.1)
    over = await weft.aio.run("false", name="over", cpus=0.1)
    await bounded(over.wait())
    ended: list[str] = []
    async for job in weft.aio.as_completed([slow, quick, over], timeout=SECONDS_MAX):
        ended.append(job.name)
        if len(ended) == 2:
            gate.touch()
    assert ended[2] == "slow"
    assert set(ended) == {"slow", "quick", "over"}
    assert [job.state for job in (slow, quick, over)] == ["succeeded", "succeeded", "failed"]
    assert [job async for job in weft.aio.as_completed([])] == []


async def test_jobs_are_listed_by_name_label_and_state() -> None:
    job = await weft.aio.run("true", name="listed", labels={"team": "vision"})
    await bounded(job.wait())
    found = await weft.aio.jobs(name="list*", labels=["team=vision"], states=["succeeded"])
    assert [(each.id, each.state) for each in found] == [(job.id, JobState.SUCCEEDED)]
    assert await weft.aio.jobs(name="list*", states=["running"]) == []


async def test_a_job_is_submitted_once_for_each_key() -> None:
    first = await weft.aio.run("true", name="once", key="the-key")
    assert (await weft.aio.run("true", name="once", key="the-key")).id == first.id


async def test_the_steps_of_a_job_are_its_progress() -> None:
    program = "import weft; weft.step(3, of=10, loss=-0.25)"
    job = await weft.aio.run([sys.executable, "-c", program], name="steps", env={"PYTHONPATH": ":".join(sys.path)})
    await bounded(job.result())
    assert job.view is not None
    assert job.view.progress == {"step": 3.0, "steps": 10.0, "loss": -0.25}


async def test_a_process_runs_in_the_folder_in_which_it_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = await weft.aio.run("pwd", name="here")
    await bounded(job.result())
    assert [line async for line in job.logs()] == [str(tmp_path)]


async def test_files_and_the_virtual_environment_go_along(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import sys; print(sys.prefix, sorted(__import__('os').listdir('.')))")
    job = await weft.aio.run("python own.py", sync=tmp_path, venv=True, name="along")
    await bounded(job.result())
    assert [line async for line in job.logs()] == [f"{sys.prefix} ['own.py']"]
    with pytest.raises(weft.Refused, match=r"sync: .* is not a folder"):
        await weft.aio.run("true", sync=tmp_path / "none")
    with pytest.raises(weft.Refused, match="venv: is for processes"):
        await weft.aio.run("true", venv=True, image="busybox")


async def test_a_name_that_no_job_has_is_refused() -> None:
    with pytest.raises(weft.Refused, match="no job has the id or the name no-such-job"):
        await weft.aio.Job.find("no-such-job")


@pytest.mark.parametrize("last", ["job.wait()", "job.result()", "next(lines)", "next(weft.as_completed([job]))"])
async def test_a_script_that_is_interrupted_names_its_job_which_goes_on(cluster: Cluster, last: str) -> None:
    script = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT + last),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=heed_ctrl_c,
    )
    out, told = await bounded(script.communicate())
    assert script.returncode == -signal.SIGINT, told.decode()
    job = out.decode().strip()
    assert "Exception ignored" not in told.decode()
    assert f"KeyboardInterrupt: goes on: patient ({job}); weft.Job.find('{job}') returns it" in told.decode()
    assert (await cluster.client.job(job)).state is JobState.RUNNING
    await cluster.client.cancel(job)
    await cluster.ended(job)


async def test_a_forked_process_has_an_event_loop_of_its_own() -> None:
    script = await asyncio.create_subprocess_exec(sys.executable, "-c", FORKED, stdout=asyncio.subprocess.PIPE)
    out, _ = await bounded(script.communicate())
    assert (out, script.returncode) == (b"0\n", 0)


async def test_calls_work_where_an_event_loop_runs_already_as_in_a_notebook() -> None:
    notebook = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", NOTEBOOK), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await bounded(notebook.communicate())
    assert (out, err, notebook.returncode) == (b"hello 1\n", b"", 0)


@pytest.mark.parametrize(
    ("example", "last"),
    [
        ("train", "train succeeded: {'loss': "),
        ("fan_out", "the sum of the squares below 8000 is 170634668000"),
        ("sweep", "the best rate is 0.5"),
        ("batch", "26 of 40 are good"),
        ("elastic", "trained with at most 2 ranks"),
        ("pipeline", "the model: results/model.txt"),
        ("service", "echo cancelled"),
    ],
)
async def test_an_example_runs(example: str, last: str) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "examples" / f"{example}.py")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    out, _ = await bounded(running.communicate())
    assert running.returncode == 0, out.decode()
    assert out.decode().splitlines()[-1].startswith(last), out.decode()


async def test_the_notebook_runs_as_jupyter_runs_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jupyter compiles each cell so, in a process whose event loop runs, and shows the last value as HTML."""
    cells = [
        "".join(cell["source"])
        for cell in json.loads((ROOT / "examples/notebook.ipynb").read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    notebook = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", CELLS, json.dumps(cells)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await bounded(notebook.communicate())
    assert (err, notebook.returncode) == (b"", 0)
    first, second, last = out.decode().splitlines()
    assert ("<td>from-notebook</td>" in first, "<td>succeeded</td>" in second, last) == (True, True, "hello")
    assert "<td>loss 0.5</td>" in second


async def test_the_example_resumes_from_the_checkpoint_at_which_it_was_stopped(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "WEFT_CHECKPOINT_DIR": str(tmp_path)}
    progress = tmp_path / "progress"
    os.mkfifo(progress)  # the first step waits until somebody reads it, so the stop comes in time
    command = (sys.executable, str(ROOT / "examples/train.py"), "here")
    first = await asyncio.create_subprocess_exec(
        *command, env={**environment, "WEFT_PROGRESS": str(progress)}, stdout=asyncio.subprocess.PIPE
    )
    assert first.stdout is not None
    assert await bounded(first.stdout.readline()) == b"begins\n"
    first.send_signal(signal.SIGTERM)
    reading = await asyncio.to_thread(progress.read_text)
    assert await bounded(first.wait()) == 1
    stopped_at = reading.splitlines()[-1].split()[0].removeprefix("step=")
    second = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    out, _ = await bounded(second.communicate())
    assert out.decode().splitlines() == [f"resumed at step {stopped_at}", "weight 3.000 after 200 steps"]


async def test_a_cluster_of_its_own_lasts_as_long_as_its_block() -> None:
    before = dict(os.environ)
    async with weft.aio.Cluster.local(nodes=1, gpus=1) as own:
        assert (os.environ["WEFT_URL"], os.environ["WEFT_TOKEN"]) == (own.url, own.token)
        job = await weft.aio.run("echo hello", gpus=1)
        await bounded(job.result())
        assert [line async for line in job.logs()] == ["hello"]
        await weft.aio.run("sleep 600")
        assert [each.name for each in await weft.aio.jobs()] == ["sleep", "echo"]
    assert os.environ == before
    with pytest.raises(weft.Unreachable):
        await job.refresh()


async def test_a_cluster_that_cannot_start_says_why() -> None:
    with pytest.raises(weft.ClientError, match=r"the local cluster did not start; `weft up` said:\nweft: .*0 nodes"):
        async with weft.aio.Cluster.local(nodes=0):
            pass
