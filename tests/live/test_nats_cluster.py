"""Three real NATS servers as one cluster: one killed, then two, then quorum again; a server cut off; strangers."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tests.support.nats_cluster import DEPLOY, SERVERS, NatsCluster, until
from tests.support.postgres_pair import commands
from tests.support.tls import Authority
from weft.bus import BusError, NoAnswerError, StreamEvent
from weft.bus.nats import NatsBus
from weft.credentials import Credentials, provision
from weft.messages import Message
from weft.servers.find import find_nats
from weft.service.keys import client_tls
from weftd.cli.local.ports import free_port

SECONDS_MAX = 60.0
LEFT_SECONDS = 0.3
INFO = "$JS.API.STREAM.INFO.WEFT_EVENTS"

# A server of a stranger, who knows where the others are and not the password with which they join.
STRANGER = """
server_name: stranger
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{data}" }}
cluster {{ name: weft, listen: 127.0.0.1:{route_port}, routes: [{routes}] }}
"""


class Asked(Message, frozen=True, kw_only=True):
    subject: ClassVar[str] = "weft.sync.default.{node_id}"
    node_id: str = "node-1"
    value: int = 0


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    value: int


async def echo(asked: Asked) -> Answered:
    return Answered(value=asked.value)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return provision(tmp_path_factory.mktemp("cluster") / "credentials", nodes=["node-1"])


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory, credentials: Credentials) -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("servers"), credentials)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a quorum nothing is confirmed, however long it is waited for."""
    monkeypatch.setattr("weft.bus.nats_stream.STORE_SECONDS_MAX", 1.5)
    monkeypatch.setattr("weft.bus.nats_stream.API_SECONDS_MAX", 1.5)


@pytest.fixture
async def cluster(running: NatsCluster) -> NatsCluster:
    """Whole, whatever the test before did."""
    running.mend()
    for number in range(SERVERS):
        running.run(number)
        await running.up(number)
    return running


class Users:
    """Those who connect to the cluster, each as its own user."""

    def __init__(self, cluster: NatsCluster, credentials: Credentials) -> None:
        self._cluster = cluster
        self._credentials = credentials

    def bus(self, user: str, *, url: str = "", **options: Any) -> AbstractAsyncContextManager[NatsBus]:
        password = self._credentials.nats_password(user)
        return NatsBus.connect(url or self._cluster.url, name=user, user=user, password=password, **options)

    def scheduler(self, *, url: str = "", replicas: int = SERVERS) -> AbstractAsyncContextManager[NatsBus]:
        return self.bus("scheduler", url=url, replicas=replicas)

    def executor(self, **options: Any) -> AbstractAsyncContextManager[NatsBus]:
        return self.bus("executor-node-1", **options)


@pytest.fixture
def users(cluster: NatsCluster, credentials: Credentials) -> Users:
    return Users(cluster, credentials)


def events(name: str, count: int) -> list[StreamEvent]:
    return [
        StreamEvent(subject="weft.events.jobs.placed", id=f"{name}-{number}", payload=b"{}") for number in range(count)
    ]


async def until_done(what: Callable[[], Awaitable[object]]) -> None:
    """What a relay does: again, until it is confirmed."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                await what()
            except NoAnswerError:
                await asyncio.sleep(0.1)
            else:
                return


async def stored(bus: NatsBus) -> Any:
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return msgspec.json.decode(await bus.request_raw(INFO, b"", seconds_max=2))
            except NoAnswerError:
                await asyncio.sleep(0.1)


async def spread(bus: NatsBus, *, messages: int | None = None) -> Any:
    """The stream's state once each of the three servers has all of it, and so many `messages` are in it: a leader of
    before, which was cut off, may answer for a moment."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            info = await stored(bus)
            replicas = info["cluster"].get("replicas", [])
            whole = messages in (None, info["state"]["messages"])
            if whole and len(replicas) == SERVERS - 1 and all(replica["current"] for replica in replicas):
                return info
            await asyncio.sleep(0.1)


async def answered(bus: NatsBus, value: int) -> None:
    async def asks() -> None:
        found = await bus.request(Asked(value=value), Answered, seconds_max=1.0)
        assert found.value == value

    await until_done(asks)


def number_of(name: str) -> int:
    return int(name.removeprefix("nats-")) - 1


@pytest.mark.timeout(200)
async def test_one_server_is_killed_then_two_and_every_event_is_there_once_in_the_end(
    cluster: NatsCluster, users: Users
) -> None:
    """A stream of one server is spread over three first, while it is used."""
    async with users.scheduler(replicas=1) as before:
        await until_done(before.ensure_stream)
        await until_done(lambda: before.emit(events("one", 20)))
        made = await before.ensure_stream()
    async with users.scheduler() as bus, users.executor() as node:
        await bus.answer(Asked, echo, node_id="node-1")
        await until_done(bus.ensure_stream)
        await until_done(lambda: bus.emit(events("three", 20)))
        info = await spread(bus)
        assert info["created"] == made
        leader = number_of(info["cluster"]["leader"])
        cluster.end(leader)
        await until_done(lambda: bus.emit(events("two", 20)))
        await answered(node, 2)

        follower = (leader + 1) % SERVERS
        cluster.end(follower)
        await answered(node, 1)  # what services say to each other needs no quorum
        with pytest.raises(NoAnswerError):
            await bus.emit(events("none", 20))

        cluster.run(follower)
        await until_done(bus.ensure_stream)
        await until_done(lambda: bus.emit(events("none", 20)))
        cluster.run(leader)
        await until_done(lambda: bus.emit(events("again", 20)))
        info = await stored(bus)
        assert (info["state"]["messages"], info["created"], await bus.ensure_stream()) == (5 * 20, made, made)


@pytest.mark.timeout(200)
async def test_a_node_whose_server_is_cut_off_from_the_others_finds_another(cluster: NatsCluster, users: Users) -> None:
    """Its connection is whole, and nobody whom it asks is there. Neither side of a split loses or doubles an event."""
    async with (
        users.scheduler(url=cluster.url_of(0)) as bus,
        users.scheduler(url=cluster.url_of(2)) as apart,
        users.executor(url=f"{cluster.url_of(2)},{cluster.url_of(0)}", leaves_after_seconds=LEFT_SECONDS) as node,
        users.executor(url=cluster.url_of(2), leaves_after_seconds=LEFT_SECONDS) as nowhere,
    ):
        await bus.answer(Asked, echo, node_id="node-1")
        await until_done(bus.ensure_stream)
        await answered(node, 1)
        began = (await spread(bus))["state"]["messages"]
        cluster.cut_off(2)
        await answered(node, 2)
        with pytest.raises(NoAnswerError):
            await nowhere.request(Asked(value=3), Answered, seconds_max=1.0)
        assert nowhere.counts["left"] == 0, "where only one server is named there is no other"
        await until_done(lambda: bus.emit(events("split", 10)))
        with pytest.raises(NoAnswerError):
            await apart.emit(events("apart", 10))
        await answered(node, 4)
        cluster.mend()
        await until_done(lambda: apart.emit(events("apart", 10)))
        await spread(apart, messages=began + 20)


async def test_a_server_that_does_not_know_the_password_of_routes_does_not_join(
    cluster: NatsCluster, users: Users, tmp_path: Path
) -> None:
    """Nor does a node with its own user and password: that one is for clients."""
    port = free_port()
    node = f"executor-node-1:{users._credentials.nats_password('executor-node-1')}@"
    routes = ", ".join(f'"nats-route://{who}127.0.0.1:{each}"' for each in cluster.route_ports for who in ("", node))
    config = tmp_path / "stranger.conf"
    config.write_text(STRANGER.format(port=port, data=tmp_path / "data", route_port=free_port(), routes=routes))
    before = [_refused(cluster, number) for number in range(SERVERS)]
    with (tmp_path / "log").open("wb") as log:
        stranger = subprocess.Popen([find_nats().path, "-c", config], stdout=log, stderr=log)  # noqa: ASYNC220 - at once
    try:
        # Every route of it is refused by both sides' words, and it never hears what the others say.
        await until(lambda: all(_refused(cluster, number) > before[number] + 1 for number in range(SERVERS)))
        async with (
            NatsBus.connect(f"nats://127.0.0.1:{port}", name="stranger") as listens,
            users.scheduler() as bus,
        ):
            heard: list[int] = []

            async def hear(message: Asked) -> None:
                heard.append(message.value)

            await listens.subscribe(Asked, hear)
            await listens.answer(Asked, echo, node_id="node-1")
            await until_done(bus.ensure_stream)
            with pytest.raises(NoAnswerError):
                await bus.request(Asked(value=5), Answered, seconds_max=0.5)
            assert heard == []
            assert (await stored(bus))["cluster"]["leader"] != "stranger"
    finally:
        stranger.kill()
        stranger.wait()


def _refused(cluster: NatsCluster, number: int) -> int:
    return cluster.log(number).read_text().count("authentication error")


async def test_a_node_cannot_have_a_stream_change_its_leader_or_lose_a_server(
    cluster: NatsCluster, users: Users
) -> None:
    async with users.scheduler() as bus, users.executor() as node:
        await until_done(bus.ensure_stream)
        for what in ("LEADER.STEPDOWN", "PEER.REMOVE", "DELETE", "UPDATE"):
            with pytest.raises(BusError, match="permit"):
                await node.request_raw(f"$JS.API.STREAM.{what}.WEFT_EVENTS", b'{"peer":"nats-1"}', seconds_max=0.5)
        with pytest.raises(BusError, match="permit"):
            await node.request_raw("$JS.API.META.LEADER.STEPDOWN", b"", seconds_max=0.5)


@pytest.mark.timeout(120)
async def test_with_tls_servers_and_clients_show_each_other_certificates(
    tmp_path: Path, credentials: Credentials
) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("127.0.0.1", into="nats")
    cluster = NatsCluster(tmp_path / "servers", credentials, config="nats-cluster-tls.conf")
    cluster.environment = {
        "WEFT_NATS_CERT": str(pair.cert),
        "WEFT_NATS_KEY": str(pair.key),
        "WEFT_NATS_CA": str(authority.ca_file),
    }
    users = Users(cluster, credentials)
    try:
        await cluster.start()
        async with users.bus(
            "scheduler", replicas=SERVERS, tls=lambda: client_tls(ca_file=str(authority.ca_file))
        ) as bus:
            await until_done(bus.ensure_stream)
            assert (await stored(bus))["config"]["num_replicas"] == SERVERS
        with pytest.raises(BusError, match="certificate verify failed"):
            async with users.bus("scheduler", tls=lambda: client_tls(ca_file=""), connect_seconds_max=SECONDS_MAX / 10):
                pass
    finally:
        await cluster.stop()


@pytest.mark.timeout(120)
async def test_the_commands_of_the_page_make_the_secrets_and_start_a_server(tmp_path: Path) -> None:
    """As they are written, but for the addresses: here a test may listen on this machine alone."""
    program, environment = Path(sys.executable).parent, {"LC_ALL": "C", "HOME": str(tmp_path)}
    environment["PATH"] = f"{program}:{os.environ['PATH']}"

    async def run(title: str) -> asyncio.subprocess.Process:
        text = commands(title).replace("/data", str(tmp_path / "data"))
        for port in ("4222", "6222", "8222"):
            text = re.sub(rf"(0\.0\.0\.0|127\.0\.0\.1):{port}", f"127.0.0.1:{ports[port]}", text)
        return await asyncio.create_subprocess_exec(
            *("sh", "-euc", text.replace("nats-server --config", "exec nats-server --config")),
            cwd=tmp_path,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
        )

    ports = {port: free_port() for port in ("4222", "6222", "8222")}
    assert await (await run("make the secrets")).wait() == 0
    made = Credentials(tmp_path / "credentials")
    assert made.nats_routes_file.read_text().count("nats-route://") == SERVERS
    (tmp_path / "secrets").mkdir()
    for file in (made.nats_users_file, made.nats_routes_file, DEPLOY / "nats-cluster.conf"):
        shutil.copy(file, tmp_path if file.parent == DEPLOY else tmp_path / "secrets")
    server = await run("start a server")
    try:
        url = f"nats://127.0.0.1:{ports['4222']}"
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    async with NatsBus.connect(
                        url,
                        name="x",
                        user="scheduler",
                        password=made.nats_password("scheduler"),
                        connect_seconds_max=1.0,
                    ) as bus:
                        assert bus.connected
                    break
                except BusError:
                    assert server.returncode is None
    finally:
        if server.returncode is None:
            server.kill()
        await server.wait()
