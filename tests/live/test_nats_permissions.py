"""A real NATS server lets each user say and hear what it should, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from weft.bus.nats import NatsBus
from weft.credentials import Credentials, inbox_prefix, permissions_by_user, provision
from weft.credentials.permissions import READER
from weft.servers import Servers, erase, up

SECONDS_MAX = 60
NODES = ["node-1", "node-2"]

# Said of each user by a second hand: what it may not publish, what it may not hear.
REFUSED = {
    "gateway": (
        ["weft.events.job", "weft.hints.node-1", "weft.sync.default.node-1", "weft.scores.p", "weft.submit", "other"],
        ["weft.>", "weft.sync.*.*", "weft.asks.*", "weft.hints.*", "weft.outbox", "weft.scores.*", ">", "$SYS.>"],
    ),
    "scheduler": (
        [
            "weft.sync.default.node-1",
            "weft.scores.p",
            "weft.findings.p",
            "weft.submit",
            "$JS.API.STREAM.DELETE.WEFT_EVENTS",
        ],
        ["weft.>", "weft.telemetry.*", "weft.submit", "weft.progress.*", "weft.events.>", "$JS.API.>"],
    ),
    "scorer": (
        ["weft.telemetry.node-1", "weft.events.job", "weft.hints.node-1", "weft.outbox", "$JS.API.INFO"],
        ["weft.>", "weft.events.>", "weft.scores.*", "weft.sync.*.*"],
    ),
    "reallocator": (
        ["weft.scores.p", "weft.hints.node-1", "weft.events.job", "weft.submit", "$JS.API.INFO"],
        ["weft.>", "weft.findings.*", "weft.sync.*.*", "weft.asks.*", "weft.scores.*", "weft.events.>"],
    ),
    "router": (
        ["weft.endpoints.node-1", "weft.asks.p", "weft.submit", "weft.events.job", "weft.hints.node-1", "$JS.API.INFO"],
        ["weft.>", "weft.asks.*", "weft.sync.*.*", "weft.telemetry.*", "weft.progress.*", "weft.submit"],
    ),
    "executor-node-1": (
        [
            "weft.sync.default.node-2",
            "weft.endpoints.node-2",
            "weft.serving.r",
            "weft.progress.node-2",
            "weft.secrets.node-2",
            "weft.telemetry.node-1",
            "weft.hints.node-1",
            "weft.events.j",
        ],
        [
            "weft.>",
            "weft.hints.*",
            "weft.hints.node-2",
            "weft.logs.node-2",
            "weft.secrets.*",
            "weft.secrets.node-1",
            "weft.sync.*.node-1",
            "weft.events.>",
            "weft.endpoints.*",
        ],
    ),
    "telemetry-node-1": (
        ["weft.telemetry.node-2", "weft.progress.node-1", "weft.sync.default.node-1", "$JS.API.INFO"],
        ["weft.>", "weft.telemetry.*", "weft.hints.node-1"],
    ),
    "operator": (
        [
            "weft.submit",
            "weft.events.job",
            "weft.outbox",
            "$JS.API.STREAM.PURGE.WEFT_EVENTS",
            "$JS.API.STREAM.CREATE.X",
        ],
        [">", "$SYS.>", "$JS.API.>", "_INBOX_gateway.>"],
    ),
    "integrator": (
        [
            "weft.events.job",
            "weft.outbox",
            "weft.asks.p",
            "$JS.API.STREAM.DELETE.WEFT_EVENTS",
            "$JS.API.CONSUMER.CREATE.WEFT_EVENTS",
            "$JS.API.CONSUMER.DURABLE.CREATE.WEFT_EVENTS.mine",
            "$JS.API.CONSUMER.DELETE.WEFT_EVENTS.integrator",
        ],
        ["weft.>", "weft.submit", "weft.telemetry.*"],
    ),
    "provisioner": (
        ["weft.events.job", "weft.submit", "$JS.API.STREAM.DELETE.WEFT_EVENTS"],
        ["weft.>", "weft.events.>"],
    ),
}


class Heard(msgspec.Struct):
    """A client, and what the server refused it: a refusal reaches only the error callback, in lower case."""

    client: Client
    refusals: asyncio.Queue[str]

    async def refused(self, *, last: str) -> set[str]:
        """Everything refused up to and including that subject; the server refuses in the order of asking."""
        found: set[str] = set()
        async with asyncio.timeout(SECONDS_MAX):
            while last not in found:
                found.add((await self.refusals.get()).split('"')[1])
        return found


class Cluster(msgspec.Struct):
    servers: Servers
    credentials: Credentials
    clients: list[Client]

    async def connect(self, user: str) -> Heard:
        refusals: asyncio.Queue[str] = asyncio.Queue()

        async def note(error: Exception) -> None:
            refusals.put_nowait(str(error))

        client = await nats.connect(
            self.servers.nats_url,
            user=user,
            password=self.credentials.nats_password(user),
            inbox_prefix=inbox_prefix(user).encode(),
            error_cb=note,
            allow_reconnect=False,
            connect_timeout=SECONDS_MAX,
        )
        self.clients.append(client)
        return Heard(client, refusals)


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Servers, Credentials]]:
    folder: Path = tmp_path_factory.mktemp("permissions")
    credentials = provision(folder / "credentials", nodes=NODES)
    yield await up(folder / "home", credentials=credentials, pg_dsn="postgresql://not-wanted"), credentials
    await erase(folder / "home")


@pytest.fixture
async def cluster(servers: tuple[Servers, Credentials]) -> AsyncIterator[Cluster]:
    cluster = Cluster(*servers, clients=[])
    yield cluster
    for client in cluster.clients:
        await client.close()


@pytest.fixture
async def stream(cluster: Cluster) -> None:
    async with NatsBus.connect(
        cluster.servers.nats_url,
        name="scheduler",
        user="scheduler",
        password=cluster.credentials.nats_password("scheduler"),
    ) as bus:
        await bus.ensure_stream()
    await (await cluster.connect("scheduler")).client.jetstream().publish("weft.events.job-1", b"started")


def concrete(subject: str) -> str:
    return subject.replace("*", "x").replace(">", "x")


def lowered(*subjects: str) -> set[str]:
    return {subject.lower() for subject in subjects}


def test_every_user_has_a_list_of_refusals() -> None:
    assert REFUSED.keys() == {user for user in permissions_by_user(NODES) if not user.endswith("node-2")}


@pytest.mark.parametrize("user", REFUSED)
async def test_a_user_may_say_what_it_should_and_nothing_else(cluster: Cluster, user: str) -> None:
    heard = await cluster.connect(user)
    for subject in permissions_by_user(NODES)[user].publish:
        if subject.startswith("weft."):
            await heard.client.publish(concrete(subject), b"{}")
    for subject in [*REFUSED[user][0], f"_INBOX_{user}.mine", "last"]:
        await heard.client.publish(subject, b"{}")
    assert await heard.refused(last="last") == lowered(*REFUSED[user][0], f"_INBOX_{user}.mine", "last")


@pytest.mark.parametrize("user", REFUSED)
async def test_a_user_may_hear_what_it_should_and_nothing_else(cluster: Cluster, user: str) -> None:
    heard = await cluster.connect(user)
    for subject in [*permissions_by_user(NODES)[user].subscribe, f"_INBOX_{user}.mine.>"]:
        await heard.client.subscribe(subject)
    foreign = ["_INBOX_scorer.>" if user != "scorer" else "_INBOX_gateway.>"]
    if user != "integrator":
        foreign.append("_INBOX.>")
    for subject in [*REFUSED[user][1], *foreign, "last"]:
        await heard.client.subscribe(subject)
    assert await heard.refused(last="last") == lowered(*REFUSED[user][1], *foreign, "last")


async def test_an_executor_is_answered_about_its_node_and_no_other(cluster: Cluster) -> None:
    scheduler = await cluster.connect("scheduler")

    async def answer(message: Msg) -> None:
        await message.respond(b"desired of " + message.subject.encode())

    await scheduler.client.subscribe("weft.sync.*.*", cb=answer)
    await scheduler.client.flush()
    executor = await cluster.connect("executor-node-1")
    reply = await executor.client.request("weft.sync.default.node-1", b"{}", timeout=SECONDS_MAX)
    assert reply.data == b"desired of weft.sync.default.node-1"
    with pytest.raises(TimeoutError):
        await executor.client.request("weft.sync.default.node-2", b"{}", timeout=0.2)
    assert await executor.refused(last="weft.sync.default.node-2") == {"weft.sync.default.node-2"}


@pytest.mark.parametrize(
    ("asker", "answerer", "subject"),
    [
        ("integrator", "gateway", "weft.submit"),
        ("gateway", "scheduler", "weft.asks.default"),
        ("gateway", "executor-node-1", "weft.logs.node-1"),
    ],
)
async def test_who_asks_is_answered(cluster: Cluster, asker: str, answerer: str, subject: str) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b"heard")

    answering = await cluster.connect(answerer)
    await answering.client.subscribe(subject, cb=answer)
    await answering.client.flush()
    asking = await cluster.connect(asker)
    assert (await asking.client.request(subject, b"{}", timeout=SECONDS_MAX)).data == b"heard"


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("user", ["integrator", "operator"])
async def test_events_can_be_read_from_the_stream(cluster: Cluster, user: str) -> None:
    heard = await cluster.connect(user)
    events = heard.client.jetstream()
    assert (await events.stream_info("WEFT_EVENTS")).state.messages > 0
    assert (await events.get_msg("WEFT_EVENTS", 1)).data == b"started"
    assert (await events.get_last_msg("WEFT_EVENTS", "weft.events.job-1", direct=True)).data == b"started"
    assert heard.refusals.empty()


@pytest.mark.usefixtures("stream")
async def test_an_integrator_pulls_events_by_the_consumer_that_the_scheduler_made(cluster: Cluster) -> None:
    heard = await cluster.connect("integrator")
    events = heard.client.jetstream()
    assert (await events.get_msg("WEFT_EVENTS", 1, direct=True)).data == b"started"
    pulling = await events.pull_subscribe_bind(consumer=READER, stream="WEFT_EVENTS")
    (first, *_) = await pulling.fetch(1, timeout=SECONDS_MAX)
    await first.ack_sync(timeout=SECONDS_MAX)
    assert (await events.consumer_info("WEFT_EVENTS", READER)).num_ack_pending == 0
    assert heard.refusals.empty()


@pytest.mark.usefixtures("stream")
@pytest.mark.parametrize("consumer", [None, "mine", READER])
async def test_an_integrator_makes_no_consumer_that_speaks_where_it_may_not(
    cluster: Cluster, consumer: str | None
) -> None:
    """The attack: a push consumer delivers to the subject that its maker names, and outlives its maker."""
    heard = await cluster.connect("integrator")
    node = (await cluster.connect("executor-node-1")).client
    hints = await node.subscribe("weft.hints.node-1")
    await node.flush()
    wanted = ConsumerConfig(name=consumer, deliver_subject="weft.hints.node-1", ack_policy=AckPolicy.NONE)
    with pytest.raises((TimeoutError, nats.errors.Error)):
        await heard.client.jetstream(timeout=0.3).add_consumer("WEFT_EVENTS", wanted)
    operator = (await cluster.connect("operator")).client.jetstream()
    made = [info.config.deliver_subject for info in await operator.consumers_info("WEFT_EVENTS")]
    assert [subject for subject in made if subject] == []
    with pytest.raises(TimeoutError):
        await hints.next_msg(timeout=0.1)


@pytest.mark.usefixtures("stream")
async def test_an_integrator_deletes_no_consumer(cluster: Cluster) -> None:
    heard = await cluster.connect("integrator")
    with pytest.raises((TimeoutError, nats.errors.Error)):
        await heard.client.jetstream(timeout=0.3).delete_consumer("WEFT_EVENTS", READER)
    operator = (await cluster.connect("operator")).client.jetstream()
    assert (await operator.consumer_info("WEFT_EVENTS", READER)).name == READER


async def test_a_plain_client_of_an_integrator_is_answered_in_its_usual_inbox(cluster: Cluster) -> None:
    async def answer(message: Msg) -> None:
        await message.respond(b"heard")

    gateway = await cluster.connect("gateway")
    await gateway.client.subscribe("weft.submit", cb=answer)
    await gateway.client.flush()
    password = cluster.credentials.nats_password("integrator")
    plain = await nats.connect(cluster.servers.nats_url, user="integrator", password=password, allow_reconnect=False)
    cluster.clients.append(plain)
    assert (await plain.request("weft.submit", b"{}", timeout=SECONDS_MAX)).data == b"heard"


@pytest.mark.usefixtures("stream")
async def test_the_stream_is_made_by_the_provisioner_as_well(cluster: Cluster) -> None:
    provisioner = (await cluster.connect("provisioner")).client.jetstream()
    info = await provisioner.stream_info("WEFT_EVENTS")
    assert (await provisioner.update_stream(info.config)).config.name == "WEFT_EVENTS"


@pytest.mark.parametrize("login", [{"user": "gateway", "pass": "wrong"}, {"user": "nobody", "pass": "x"}, {}])
async def test_who_has_no_password_is_not_let_in(cluster: Cluster, login: dict[str, str]) -> None:
    # Without the client library, which leaves the connection of a refused login open.
    port = int(cluster.servers.nats_url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(SECONDS_MAX):
        assert (await reader.readline()).startswith(b"INFO ")
        writer.write(b"CONNECT " + msgspec.json.encode({"verbose": False, **login}) + b"\r\nPING\r\n")
        assert await reader.readline() == b"-ERR 'Authorization Violation'\r\n"
        writer.close()
        await writer.wait_closed()
