"""Shells, commands, ports and copies in jobs of a whole cluster, as people have them and as nobody should."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person, Terminal
from tests.support.runs import until
from weft.client import Client, Refused
from weft.client.sessions import RunSession
from weft.domain.job import JobState
from weft.messages.sessions import WINDOW_BYTES, SessionKind

SECONDS_MAX = 60.0
PER_TENANT_MAX = 8


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    settings = {"GATEWAY_SESSIONS_PER_TENANT_MAX": str(PER_TENANT_MAX), "GATEWAY_SESSIONS_OFF_POOLS": '["closed"]'}
    async with embedded_cluster(tmp_path_factory.mktemp("entering"), nodes=1, gpus=2, settings=settings) as made:
        yield made


@pytest.fixture
async def job(cluster: Cluster) -> AsyncIterator[str]:
    """One that runs until it is cancelled."""
    made = await cluster.client.submit(spec("open", command=["sh", "-c", "while :; do sleep 1; done"]))
    await cluster.state(made.id, JobState.RUNNING)
    yield made.id
    if not (await cluster.client.job(made.id)).state.final:
        await cluster.client.cancel(made.id)
        await cluster.ended(made.id)


async def all_of(session: RunSession) -> bytes:
    async with asyncio.timeout(SECONDS_MAX):
        return b"".join([data async for _, data in session.output()])


async def beyond(session: RunSession, wanted: bytes) -> bytes:
    """The output up to this text."""
    found = b""
    async with asyncio.timeout(SECONDS_MAX), aclosing(session.output()) as pieces:
        async for _, data in pieces:
            found += data
            if wanted in found:
                return found
    raise AssertionError(found)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def told(client: Client, job: str, count: int) -> list[str]:
    """The sentences of who entered and left, once there are so many."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            story = [event.data.cause for event in await client.story(job) if event.type == "weft.jobs.entered"]
            if len(story) >= count:
                return [cause.sentence for cause in story if cause is not None]
            await asyncio.sleep(0.1)


async def test_a_command_gets_this_ones_input_and_gives_its_status_and_the_story_tells(
    cluster: Cluster, job: str
) -> None:
    person = Person(cluster, cluster.local.token)
    found = await person.types("exec", "open", "--", "sh", "-c", "cat; echo wrong >&2; exit 5", stdin=b"typed")
    assert (found.status, found.out, found.err) == (5, "typed", "wrong\n")
    opened, left = await told(cluster.client, job, 2)
    assert opened == "admin opened a command in rank 0: sh -c cat; echo wrong >&2; exit 5"
    assert left.startswith(opened.removeprefix("admin opened "))
    assert "admin left after " in left
    assert left.endswith(", with status 5")
    entry = [one for one in (await cluster.client.audit()).entries if one.act == "enter"][-1]
    assert (entry.outcome, entry.detail) == ("done", f"{opened.removeprefix('admin opened ')} of open ({job})")
    assert (await cluster.client.job(job)).state is JobState.RUNNING


async def test_the_end_of_a_session_whose_gateway_was_killed_is_told_by_the_next_one(
    cluster: Cluster, job: str, tmp_path: Path
) -> None:
    waits = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; exit 7"
    headers = {"Authorization": f"Bearer {cluster.local.token}"}
    url = f"{cluster.local.url}/v1/jobs/{job}/attach?kind=exec&rank=0"
    async with aiohttp.ClientSession() as http, http.ws_connect(url, headers=headers) as socket:
        await socket.send_json({"command": ["sh", "-c", waits]})
        assert (await socket.receive_json(timeout=SECONDS_MAX))["rank"] == 0
        (opened,) = await told(cluster.client, job, 1)
        pid = cluster.local.pids["gateway"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: cluster.local.pids.get("gateway", pid) != pid, seconds_max=SECONDS_MAX)
    (tmp_path / "go").touch()
    _, left = await told(cluster.client, job, 2)
    assert left.startswith(opened.removeprefix("admin opened "))
    assert "admin left after " in left
    assert left.endswith(", with status 7")


async def test_a_shell_is_a_terminal_with_this_ones_size_and_leaves_it_as_it_was(cluster: Cluster, job: str) -> None:
    terminal = Terminal(Person(cluster, cluster.local.token), "shell", job, "--", "sh", "-c", "echo begun; exec sh")
    await terminal.begin()
    await terminal.shows(b"begun")
    terminal.types(b"stty size; echo $WEFT_JOB_ID$((6*7)); trap 'echo caught' INT\n")
    await terminal.shows(b"30 120")
    await terminal.shows(b"42")
    terminal.types(b"\x03")
    await terminal.shows(b"caught")
    terminal.resize(40, 100)
    async with asyncio.timeout(SECONDS_MAX):
        while b"40 100" not in terminal.seen:  # keys may overtake a signal
            terminal.types(b"stty size\n")
            await asyncio.sleep(0.2)
    assert await terminal.ends(key=b"exit 3\n") == 3


async def test_a_broken_line_is_made_again_and_nothing_is_lost_or_doubled(cluster: Cluster, job: str) -> None:
    script = "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; echo ready; cat; echo over"
    async with cluster.client.enter(job, SessionKind.EXEC, command=["sh", "-c", script]) as session:
        found, cut = b"", 0
        async with asyncio.timeout(SECONDS_MAX):
            async for _, data in session.output():
                found += data
                if cut < 2 and len(found) > 1000 * cut:
                    cut += 1
                    assert session._socket is not None
                    session._socket._writer.transport.abort()
                if found.endswith(b"ready\n"):
                    await session.write(b"x" * 300_000)
                    await session.close_input()
        assert found == b"".join(b"%d\n" % number for number in range(3000)) + b"ready\n" + b"x" * 300_000 + b"over\n"
        assert session.lines > 1
        assert session.status == 0


async def test_a_reader_who_takes_nothing_stops_the_writer_within_a_window(cluster: Cluster, job: str) -> None:
    url, headers = f"{cluster.local.url}/v1/jobs/{job}/attach", {"Authorization": f"Bearer {cluster.local.token}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.ws_connect(f"{url}?kind=exec") as socket:
        await socket.send_str('{"command": ["yes"]}')
        found = 0
        with suppress(TimeoutError):
            while True:  # It acknowledges nothing.
                frame = await socket.receive(timeout=3.0)
                assert frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
                found += len(frame.data) - 1 if frame.type is aiohttp.WSMsgType.BINARY else 0
        assert 0 < found <= WINDOW_BYTES
        async with cluster.client.enter(job, SessionKind.EXEC, command=["echo", "hello"]) as other:
            assert await all_of(other) == b"hello\n"


async def test_what_is_no_legal_word_on_a_line_ends_it_and_nothing_else(cluster: Cluster, job: str) -> None:
    url, headers = f"{cluster.local.url}/v1/jobs/{job}/attach", {"Authorization": f"Bearer {cluster.local.token}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for first in ('{"command": 5}', "[]", "\x00", '{"command": ["a\\u0000b"]}', "{}", '{"command": [""]}'):
            async with http.ws_connect(f"{url}?kind=exec") as socket:
                await socket.send_str(first)
                answer = await socket.receive_json(timeout=SECONDS_MAX)
                assert answer["refused"] == 400, (first, answer)
        async with http.ws_connect(f"{url}?kind=exec&session=nosuchsession") as socket:
            assert (await socket.receive_json(timeout=SECONDS_MAX))["refused"] == 410
        for later in ('{"rows": 99999999999, "columns": 1}', '{"acked": -5}', '{"acked": 999999999999}'):
            async with http.ws_connect(f"{url}?kind=exec&tty=1") as socket:
                await socket.send_str('{"command": ["sh", "-c", "read x; echo got"]}')
                await socket.send_str(later)
                await socket.send_bytes(b"\n")
                async with asyncio.timeout(SECONDS_MAX):
                    while (frame := await socket.receive()).type is not aiohttp.WSMsgType.CLOSE:
                        assert frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
    for wrong in ("kind=x", "rank=-1", "rows=1001", "term=;", "port=70000", "port=1", "kind=port", "session=A"):
        async with aiohttp.ClientSession(headers=headers) as http, http.get(f"{url}?{wrong}") as response:
            assert response.status == 400, wrong
    assert (await cluster.client.job(job)).state is JobState.RUNNING


async def test_another_tenants_job_is_not_there_and_a_revoked_token_ends_its_sessions(cluster: Cluster) -> None:
    admin = cluster.client
    ada, bob = [(await admin.make_token(tenant, "test")).token for tenant in ("ada", "bob")]
    async with Client(cluster.local.url, ada) as client, Client(cluster.local.url, bob) as other:
        made = await client.submit(spec("hers", command=["sleep", "1000"]))
        await cluster.state(made.id, JobState.RUNNING)
        with pytest.raises(Refused) as refused:
            async with other.enter(made.id):
                pass
        assert refused.value.status == 404
        async with client.enter(made.id, SessionKind.EXEC, command=["sh", "-c", "echo $$; exec sleep 1000"]) as session:
            pid = int((await beyond(session, b"\n")).split()[0])
            assert lives(pid)
            await admin.revoke("ada", "test")
            with pytest.raises(Refused) as cut:
                await all_of(session)
            assert cut.value.status == 401
        await until(lambda: not lives(pid), seconds_max=SECONDS_MAX)
        await admin.cancel(made.id)
        await cluster.ended(made.id)


async def test_sessions_beyond_the_bound_are_refused_and_the_cluster_goes_on(cluster: Cluster, job: str) -> None:
    async def one() -> str:
        try:
            async with cluster.client.enter(job, SessionKind.EXEC, command=["sh", "-c", "sleep 2; echo in"]) as session:
                return (await all_of(session)).decode()
        except Refused as error:
            return str(error.status)

    async with asyncio.timeout(SECONDS_MAX * 2):
        found = await asyncio.gather(*(one() for _ in range(200)))
    assert {"in\n"} < set(found) <= {"in\n", "429", "503"}
    async with cluster.client.enter(job, SessionKind.EXEC, command=["echo", "still"]) as session:
        assert await all_of(session) == b"still\n"


async def test_a_session_ends_with_its_run_and_says_so(cluster: Cluster, job: str) -> None:
    async with cluster.client.enter(job, SessionKind.EXEC, command=["sh", "-c", "echo $$; exec sleep 1000"]) as session:
        pid = int((await beyond(session, b"\n")).split()[0])
        await cluster.client.cancel(job)
        await all_of(session)
        assert session.status in (None, 129, 137)
    await cluster.ended(job)
    await until(lambda: not lives(pid), seconds_max=SECONDS_MAX)
    with pytest.raises(Refused) as refused:
        async with cluster.client.enter(job):
            pass
    assert refused.value.status == 409
    assert refused.value.reason == "open does not run: it is cancelled"


async def test_an_executor_that_is_killed_leaves_no_process_of_a_session_and_its_runs_go_on(
    cluster: Cluster, job: str
) -> None:
    script = "trap '' HUP; echo $$; while :; do sleep 1; done"
    async with cluster.client.enter(job, SessionKind.EXEC, command=["sh", "-c", script]) as session:
        pid = int((await beyond(session, b"\n")).split()[0])
        os.kill(cluster.local.pids["executor-node-1"], signal.SIGKILL)
        await all_of(session)
        assert session.status is None
        assert session.reason
    await until(lambda: not lives(pid), seconds_max=SECONDS_MAX)
    assert (await cluster.client.job(job)).state is JobState.RUNNING
    assert (await cluster.client.job(job)).epoch == 0


async def test_ports_and_files_go_both_ways(cluster: Cluster, tmp_path: Path) -> None:
    person = Person(cluster, cluster.local.token)
    serve = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "0"]
    made = await cluster.client.submit(spec("served", command=["sh", "-c", f"exec {' '.join(serve)} 2>&1"]))
    await cluster.state(made.id, JobState.RUNNING)
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "data").write_bytes(os.urandom(1_000_000))
    (source / "escape").symlink_to("/etc/passwd")
    assert (await person.types("cp", str(source), "served:copied")).status == 0
    fetched = await person.types("cp", "served:copied", str(tmp_path / "back"))
    assert fetched.status == 0
    assert "left out: ./escape: a link to /etc/passwd" in fetched.err
    assert (tmp_path / "back/inner/data").read_bytes() == (source / "inner/data").read_bytes()
    assert not (tmp_path / "back/escape").is_symlink()
    assert (await person.types("cp", "served:nothing", str(tmp_path))).err == "weft: nothing: no such file or folder\n"

    log = b""
    async with asyncio.timeout(SECONDS_MAX):
        while b" port " not in log:
            log = await cluster.client.read_log(made.id)
            await asyncio.sleep(0.1)
    port = int(log.partition(b" port ")[2].split()[0])
    forwarding = await person.begins("port-forward", "served", f"0:{port}", "0:22")
    try:
        assert forwarding.stdout is not None
        here, closed = [(await forwarding.stdout.readline()).split()[0].decode() for _ in range(2)]
        async with aiohttp.ClientSession() as http:

            async def listed() -> bytes:
                async with http.get(f"http://{here}/copied/inner/") as response:
                    return await response.read()

            pages = await asyncio.gather(*(listed() for _ in range(6)))
            assert all(b"data" in page for page in pages)
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"http://{closed}/")
    finally:
        forwarding.send_signal(signal.SIGINT)
        _, errors = await forwarding.communicate()
    assert b"no process of this run listens on port 22" in errors
    assert any("connections to port" in one for one in await told(cluster.client, made.id, 1))
    await cluster.client.cancel(made.id)
    await cluster.ended(made.id)
