"""Services as a person uses them, each command a process of its own, on a whole cluster with its router."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from msgspec import Struct

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.programs import program
from weft.domain.job import JobState

SECONDS_MAX = 60.0
WEFT = (sys.executable, "-m", "weftd.cli")
# JupyterLab's arguments, and an answer that says below which path it was asked.
JUPYTER = """#!{python}
import http.server, sys
given = dict(word[2:].split("=", 1) for word in sys.argv[2:] if "=" in word)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        token = f"{{self.headers.get('Authorization')}} {{self.headers.get('Cookie', '')}}"
        body = f"{{given['ServerApp.base_url']}} {{self.path}} {{token}}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer((given["ip"], int(given["port"])), Handler).serve_forever()
"""


class Typed(Struct, frozen=True):
    status: int
    out: str
    err: str


class Typist(Struct, frozen=True):
    cluster: Cluster
    path: str = os.environ["PATH"]

    async def types(self, *typed: str) -> Typed:
        process = await asyncio.create_subprocess_exec(
            *(*WEFT, *typed),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "PATH": self.path,
                "WEFT_URL": self.cluster.local.url,
                "WEFT_TOKEN": self.cluster.local.token,
            },
        )
        try:
            async with asyncio.timeout(SECONDS_MAX):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        return Typed(process.returncode, out.decode(), err.decode())

    async def serves(self, name: str, *options: str) -> str:
        """The id of a service of the emulated model, once a replica is ready."""
        typed = ("run", "--kind", "inference", "--name", name, "--ready", "/healthz", "--env", "SERVICE_MS=10")
        began = await self.types(*typed, *options, "--", *program("model"))
        assert began.status == 0, began.err
        job_id = began.out.strip()
        await self.cluster.until(job_id, lambda job: job.service is not None and bool(job.service.ready))
        return job_id


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("services"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def ada(cluster: Cluster) -> Typist:
    return Typist(cluster)


async def test_a_service_is_run_called_seen_and_ended(ada: Typist) -> None:
    job = await ada.serves("chat", "--gpus", "1")
    called = await ada.types("call", "chat", "/v1/generate?q=1", "-d", '{"tokens": 3}', "-i")
    assert called.status == 0, called.err
    assert called.out.startswith("200 OK\n")
    assert json.loads(called.out.rpartition("\n\n")[2])["tokens"] == 3
    streamed = await ada.types("call", job, "/v1/generate", "-d", '{"stream": true, "tokens": 5}')
    assert streamed.out.count("data: ") == 6
    refused = await ada.types("call", job, "/v1/caf\u00e9")
    assert (refused.status, refused.err) == (22, "weft: chat answered 404 Not Found\n")
    assert "/v1/caf%C3%A9" in refused.out
    assert "1/1 ready" in (await ada.types("ps")).out
    listed = json.loads((await ada.types("endpoints", "chat", "--json")).out)
    assert [(each["rank"], each["ready"]) for each in listed["endpoints"]] == [(0, True)]
    opened = (await ada.types("open", "chat")).out.strip()
    assert opened.startswith(f"{listed['url']}?weft_code=")
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        async with browser.get(opened.replace("?", "healthz?")) as answer:
            assert answer.status == 200
            assert "weft_code" not in str(answer.url)
        async with browser.get(f"{listed['url']}healthz") as answer:
            assert answer.status == 200
    async with aiohttp.ClientSession() as stranger, stranger.get(listed["url"]) as answer:
        assert answer.status == 401
    for command in ("describe", "explain"):
        told = (await ada.types(command, "chat")).out
        assert "1 ready" in told
        assert listed["url"] in told
    assert (await ada.types("cancel", "chat")).status == 0
    ended = await ada.cluster.ended(job)
    assert ended.state is JobState.CANCELLED
    after = await ada.types("call", job)
    assert after.status in (1, 22)
    assert after.err.count("\n") == 1


async def test_an_update_replaces_every_replica_while_the_service_answers(ada: Typist) -> None:
    job = await ada.serves("roll")
    updated = await ada.types("update", "roll", "--env", "SERVICE_MS=20", "--", *program("model"))
    assert updated.status == 0, updated.err
    answers = []
    while True:
        answers.append((await ada.types("call", "roll", "/healthz")).status)
        view = await ada.cluster.client.job(job)
        assert view.service is not None
        if view.service.revision == 1 and view.service.update is None and view.service.ready:
            break
        assert len(answers) < 60, view.service
    assert set(answers) == {0}
    assert [run.revision for run in view.runs if not run.leaving] == [1]
    await ada.types("cancel", "roll")


async def test_a_refusal_is_one_sentence_and_an_exit_status(ada: Typist) -> None:
    listens = 'exec "$0" -m http.server --bind 127.0.0.1 "$WEFT_PORT"'
    began = await ada.types(
        *("run", "--kind", "inference", "--name", "files", "--service-port", "8000", "--public"),
        *("--", "sh", "-c", listens, sys.executable),
    )
    await ada.cluster.until(began.out.strip(), lambda job: job.service is not None and bool(job.service.ready))
    missing = await ada.types("call", "files", "/no-such-file")
    assert (missing.status, missing.err) == (22, "weft: files answered 404 Not Found\n")
    assert (await ada.types("call", "files", "/../etc")).status == 2
    assert "?" not in (await ada.types("open", "files")).out  # it is public: no token is handed over
    training = (await ada.types("run", "--name", "trains", "--", "sleep", "60")).out.strip()
    refused = await ada.types("update", "trains", "--env", "A=b")
    assert (refused.status, "is no service" in refused.err) == (1, True)
    refused = await ada.types("call", training)
    assert (refused.status, "serves no requests" in refused.err) == (1, True)
    await ada.types("cancel", "files", "trains")


async def test_a_notebook_answers_below_its_own_path_and_never_sees_the_token(cluster: Cluster, tmp_path: Path) -> None:
    jupyter = tmp_path / "jupyter"
    jupyter.write_text(JUPYTER.format(python=sys.executable))
    jupyter.chmod(0o755)
    ada = Typist(cluster, path=f"{tmp_path}:{os.environ['PATH']}")
    began = await ada.types("notebook", "--json")
    assert began.status == 0, began.err
    told = json.loads(began.out)
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as browser, browser.get(told["url"]) as answer:
        path = f"/s/{told['id']}/"
        assert (await answer.text()) == f"{path} {path} None "
    await ada.types("cancel", told["id"])


async def test_a_notebook_without_jupyter_says_so(cluster: Cluster, tmp_path: Path) -> None:
    ada = Typist(cluster, path=str(tmp_path))
    ended = await ada.types("notebook", "--name", "none", "--env", f"PATH={tmp_path}")
    assert ended.status == 1
    assert "there is no jupyter in the environment of the job" in ended.err
