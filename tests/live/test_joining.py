"""A node joins by the one command that `weft node add` prints, on real servers; every other use of its token fails."""

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.cluster import Cluster, embedded_cluster, until
from weft import servers
from weft.client import Client, Refused
from weft.client.joining import exchange
from weft.credentials.joining import token_of
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import FINAL, JobState

SECONDS_MAX = 60
LOOK_SECONDS = 0.05
JOIN_SECONDS_MAX = 30.0


class Weft:
    """`weft` on the machine of the cluster, and on the machine of a node that knows nothing of it."""

    def __init__(self, cluster: Cluster, elsewhere: Path) -> None:
        self.cluster, self.elsewhere = cluster, elsewhere
        self._plain = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "EXECUTOR_"))}

    async def start(self, *words: str, here: bool = False) -> asyncio.subprocess.Process:
        home = self.cluster.local.home.root if here else self.elsewhere
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "weftd.cli", *words),
            env={**self._plain, "WEFT_HOME": str(home)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *words: str, here: bool = False) -> tuple[int, str, str]:
        async with asyncio.timeout(SECONDS_MAX):
            process = await self.start(*words, here=here)
            out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def added(self, node: str, *words: str) -> list[str]:
        """The words of the printed command, behind `weft`."""
        status, out, err = await self.run("node", "add", node, *words, here=True)
        assert status == 0, err
        (line,) = out.splitlines()
        command = shlex.split(line)
        assert command[:4] == ["weft", "node", "join", node]
        return command[1:]


@pytest.fixture(scope="module")
async def weft(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Weft]:
    folder = tmp_path_factory.mktemp("joining")
    async with embedded_cluster(folder / "here", nodes=1, gpus=1, settings={"SCORER_BENCHMARKS": "off"}) as cluster:
        yield Weft(cluster, folder / "elsewhere")


async def ready(client: Client, node: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not any(one.id == node and one.ready for one in (await client.nodes()).nodes):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)


async def test_a_node_joins_by_one_command_runs_jobs_and_starts_again_without_a_token(weft: Weft) -> None:
    command, client = await weft.added("node-2"), weft.cluster.client
    began = time.monotonic()
    process = await weft.start(*command, "--emulated-gpus", "2")
    try:
        await ready(client, "node-2")
        assert time.monotonic() - began < JOIN_SECONDS_MAX
        wanted = b'{"name": "there", "command": ["true"], "roles": {"worker": {"gpus": 2}}}'
        job = await client.submit(decode_spec(wanted))
        view = await until(client, job.id, lambda one: one.state in FINAL)
        assert view.state is JobState.SUCCEEDED, view
        status, _, err = await weft.run("node", "join", "node-2")
        assert (status, "the node of" in err, "runs already" in err) == (1, True, True), err
        status, _, err = await weft.run("node", "add", "node-2", here=True)
        assert (status, "node-2 is in the cluster already, and ready" in err) == (1, True), err
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), SECONDS_MAX)
    assert process.returncode == 0, err
    assert b"node-2 is stopped" in out
    assert not list((weft.elsewhere / "joined" / "node-2" / "nodes" / "node-2").glob("runs/*/pid"))
    again = await weft.start("node", "join", "node-2", "--emulated-gpus", "2")
    try:
        assert again.stdout
        assert b"node-2 runs" in await asyncio.wait_for(again.stdout.readline(), SECONDS_MAX)
    finally:
        again.send_signal(signal.SIGTERM)
        await asyncio.wait_for(again.communicate(), SECONDS_MAX)


async def test_every_other_use_of_a_join_token_ends_in_one_sentence(weft: Weft, tmp_path: Path) -> None:
    command = await weft.added("node-5")
    gateway, token = command[command.index("--gateway") + 1], command[command.index("--token") + 1]

    async def refused(node: str, given: str, at: str = gateway) -> str:
        there = ("--home", str(tmp_path / "refused"))
        status, out, err = await weft.run("node", "join", node, "--gateway", at, "--token", given, *there)
        assert (status, out, len(err.splitlines())) == (1, "", 1), err
        assert given not in err or len(given) < 10
        return err

    assert "this join token is for node node-5, not for node-6" in await refused("node-6", token)
    assert "what was given is no join token" in await refused("node-5", "garbage")
    other = "join_" + "a" * 43
    assert "this join token is not known" in await refused("node-5", other)
    assert "http://127.0.0.1:9" in await refused("node-5", token, "http://127.0.0.1:9")
    into = ("--into", str(tmp_path / "compose"))
    status, out, err = await weft.run(*command, *into)  # none of those has used it up
    assert (status, "has its credentials" in out) == (0, True), err
    assert {one.name for one in (tmp_path / "compose").iterdir()} >= {"executor", "telemetry", "compose.yml", ".env"}
    assert "this join token was used at" in await refused("node-5", token)
    command = await weft.added("node-5", "--for", "1s")
    short = command[command.index("--token") + 1]
    assert "or a newer one has replaced it" in await refused("node-5", token)
    await asyncio.sleep(1.0)  # until it has expired: the gateway's clock is the machine's
    assert "this join token expired at" in await refused("node-5", short)


async def test_of_many_who_bring_one_join_token_one_gets_the_credentials(weft: Weft) -> None:
    command = await weft.added("node-7")
    token = token_of(command[command.index("--token") + 1])

    async def bring() -> int:
        try:
            joined = await exchange(weft.cluster.local.url, "node-7", token.public_part, seconds=20)
        except Refused as error:
            return error.status
        assert token.open(joined.sealed, node_id="node-7").node_id == "node-7"
        return 200

    assert sorted(await asyncio.gather(*(bring() for _ in range(8)))) == [200, *[410] * 7]


async def test_neither_the_database_nor_the_audit_log_has_a_token_or_a_password(weft: Weft) -> None:
    command = await weft.added("node-8")
    token = command[command.index("--token") + 1]
    credentials = weft.cluster.local.credentials
    up = await servers.up(weft.cluster.local.home.root, credentials=credentials)
    connection = await asyncpg.connect(up.pg_dsn, password=credentials.postgres_password("owner"), ssl=False)
    try:
        rows = [*await connection.fetch("SELECT * FROM join_tokens"), *await connection.fetch("SELECT * FROM audit")]
    finally:
        await connection.close()
    kept = "".join(str(dict(row)) for row in rows)
    assert "node-8" in kept
    for secret in (token, credentials.nats_password("executor-node-8"), credentials.nats_password("telemetry-node-8")):
        assert secret not in kept


@pytest.mark.parametrize("name", ["Node", "-a", "a" * 41, "a.b", ""])
async def test_a_name_that_no_node_can_have_is_refused_and_changes_nothing(weft: Weft, name: str) -> None:
    users = weft.cluster.local.credentials.nats_users_file
    before = users.read_bytes()
    status, out, err = await weft.run("node", "add", "--for=1h", "--", name, here=True)
    assert (status, out) == (2, ""), err
    assert users.read_bytes() == before
