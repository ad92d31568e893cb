"""What only a real NATS server can do to a bus: go away, come back, refuse, fall silent."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
import uvloop

from tests.support.nats_server import NatsServer
from weft.bus import BusClosedError, BusError, NoAnswerError, StreamEvent
from weft.bus.nats import UNSENT_BYTES_MAX, NatsBus
from weft.credentials import Credentials, provision
from weft.messages import Message
from weft.messages.asks import AskStored, OutboxFilled
from weft.messages.nodes import NodeHinted
from weft.servers import erase, reload_users, up

SECONDS_MAX = 60.0
BUSY_SECONDS = 20.0  # a wait without a bound is longer


class Sampled(Message, frozen=True, kw_only=True):
    subject: ClassVar[str] = "weft.tests.{node_id}"
    node_id: str = "n"
    value: float = 0.0
    padding: str = ""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    value: float
    padding: str = ""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 -- the state of a connection rings no bell
            await asyncio.sleep(0.01)


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Nothing is raised where nobody can catch it."""
    loop = asyncio.get_running_loop()
    leaked: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: leaked.append(context))
    yield
    loop.set_exception_handler(None)
    assert leaked == []


async def echo(asked: Sampled) -> Answered:
    return Answered(value=asked.value)


async def test_after_a_restart_of_the_server_all_goes_on_as_before(server: NatsServer, no_leaks: None) -> None:
    heard: list[float] = []

    async def hear(message: Sampled) -> None:
        heard.append(message.value)

    async with NatsBus.connect(server.url, name="one") as one, NatsBus.connect(server.url, name="two") as two:
        await one.subscribe(Sampled, hear, node_id="listened")
        await one.answer(Sampled, echo, node_id="asked")
        for round_number in range(3):
            server.kill()
            await until(lambda: not one.connected and not two.connected)
            server.start()
            await until(lambda: one.connected and two.connected)
            await until_answered(two, round_number)
            await two.publish(Sampled(node_id="listened", value=round_number))
            await until(lambda: heard[-1:] == [round_number])  # noqa: B023 -- awaited in this round
        assert two.counts["reconnects"] == 3


async def until_answered(bus: NatsBus, value: float) -> None:
    """The one who answers may be back a moment after the one who asks."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                found = await bus.request(Sampled(node_id="asked", value=value), Answered, seconds_max=2)
            except NoAnswerError:
                continue
            assert found.value == value
            return


async def test_while_the_server_is_away_news_are_dropped_and_counted(server: NatsServer, no_leaks: None) -> None:
    heard: list[float] = []

    async def hear(message: Sampled) -> None:
        heard.append(message.value)

    async with NatsBus.connect(server.url, name="test") as bus:
        await bus.subscribe(Sampled, hear)
        server.kill()
        await until(lambda: not bus.connected)
        for value in range(1500):
            await bus.publish(Sampled(value=value))
        assert bus.counts["dropped"] == 1500
        server.start()
        await until(lambda: bus.connected)
        await bus.publish(Sampled(value=-1))
        await until(lambda: bool(heard))
        assert heard == [-1]


async def test_while_the_server_is_away_requests_end_within_their_bound(server: NatsServer, no_leaks: None) -> None:
    async with NatsBus.connect(server.url, name="test") as bus:
        server.kill()
        await until(lambda: not bus.connected)
        async with asyncio.timeout(BUSY_SECONDS):
            with pytest.raises(NoAnswerError):
                await bus.request(Sampled(), Answered, seconds_max=0.2)
            with pytest.raises(NoAnswerError):
                await asyncio.gather(*[bus.request(Sampled(), Answered, seconds_max=0.2) for _ in range(100)])


async def test_a_request_under_way_when_the_server_dies_ends_within_its_bound(server: NatsServer) -> None:
    asked = asyncio.Event()

    async def never(message: Sampled) -> Answered | None:
        asked.set()
        return None

    async with NatsBus.connect(server.url, name="test") as bus:
        await bus.answer(Sampled, never)
        asking = asyncio.ensure_future(bus.request(Sampled(), Answered, seconds_max=0.5))
        await asked.wait()
        server.kill()
        async with asyncio.timeout(BUSY_SECONDS):
            with pytest.raises(NoAnswerError):
                await asking


async def test_a_request_made_while_the_server_is_away_is_answered_once_it_is_back(server: NatsServer) -> None:
    async with NatsBus.connect(server.url, name="test") as bus:
        await bus.answer(Sampled, echo)
        server.kill()
        await until(lambda: not bus.connected)
        asking = asyncio.ensure_future(bus.request(Sampled(value=7), Answered, seconds_max=SECONDS_MAX))
        server.start()
        assert (await asking).value == 7


async def test_listening_begun_while_the_server_is_away_works_once_it_is_back(server: NatsServer) -> None:
    async with NatsBus.connect(server.url, name="test") as bus:
        server.kill()
        await until(lambda: not bus.connected)
        gone = await bus.answer(Sampled, echo, node_id="gone")
        await bus.answer(Sampled, echo, node_id="asked")
        await gone.drain()
        server.start()
        await until_answered(bus, 3)
        with pytest.raises(NoAnswerError):
            await bus.request(Sampled(node_id="gone"), Answered, seconds_max=1)


LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@LOOPS  # uvloop's transports, which the services have, fail in another way than asyncio's own
def test_a_connection_that_broke_unnoticed_is_made_anew_by_those_that_listen(
    server: NatsServer, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def listen_over_a_broken_connection() -> None:
        async with NatsBus.connect(server.url, name="test") as bus:
            await bus.answer(Sampled, echo)
            await break_unnoticed(bus)
            for node_id in ("m", "o"):
                await bus.answer(Sampled, echo, node_id=node_id)
            await until(lambda: bus.connected)
            for node_id in ("n", "m", "o"):
                answer = await bus.request(Sampled(node_id=node_id, value=2.0), Answered, seconds_max=SECONDS_MAX)
                assert answer.value == 2.0

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(listen_over_a_broken_connection())


@LOOPS
def test_a_bus_whose_connection_broke_unnoticed_closes_without_an_error(
    server: NatsServer, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def close_over_a_broken_connection() -> None:
        async with NatsBus.connect(server.url, name="test") as bus:
            await bus.answer(Sampled, echo)
            await break_unnoticed(bus)
            await bus.publish(Sampled())

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(close_over_a_broken_connection())


async def break_unnoticed(bus: NatsBus) -> None:
    """The connection is gone, and the reader, which would notice, has had no turn yet."""
    assert bus._client._reading_task is not None
    bus._client._reading_task.cancel()
    bus._client.abort()
    await asyncio.sleep(0.05)
    assert bus.connected


async def test_events_survive_a_restart_and_are_still_recognised(server: NatsServer, no_leaks: None) -> None:
    events = [StreamEvent(subject="weft.events.jobs.placed", id=f"{number}", payload=b"{}") for number in range(1200)]
    async with NatsBus.connect(server.url, name="test") as bus:
        made = await bus.ensure_stream()
        await bus.emit(events[:700])
        server.kill()
        await until(lambda: not bus.connected)
        server.start()
        await until_done(lambda: bus.emit(events))
        assert await bus.ensure_stream() == made
        info = await bus.request_raw("$JS.API.STREAM.INFO.WEFT_EVENTS", b"", seconds_max=5)
        assert msgspec.json.decode(info)["state"]["messages"] == len(events)


async def until_done(what: Callable[[], Awaitable[None]]) -> None:
    """What a relay does: again, until it is confirmed."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                return await what()
            except NoAnswerError:
                await asyncio.sleep(0.05)


async def test_a_stream_of_another_shape_is_brought_up_to_date(server: NatsServer) -> None:
    async with NatsBus.connect(server.url, name="test") as bus:
        older = b'{"name":"WEFT_EVENTS","subjects":["weft.events.>"],"storage":"file","num_replicas":1}'
        await bus.request_raw("$JS.API.STREAM.CREATE.WEFT_EVENTS", older, seconds_max=5)
        events = [StreamEvent(subject="weft.events.jobs.placed", id=f"{number}", payload=b"{}") for number in range(3)]
        await bus.emit(events)  # It takes no batches yet.
        before = msgspec.json.decode(await bus.request_raw("$JS.API.STREAM.INFO.WEFT_EVENTS", b"", seconds_max=5))
        assert await bus.ensure_stream() == before["created"]
        config = msgspec.json.decode(await bus.request_raw("$JS.API.STREAM.INFO.WEFT_EVENTS", b"", seconds_max=5))[
            "config"
        ]
        assert config["allow_atomic"] is True
        assert config["max_age"] == 24 * 3600 * 10**9
        await bus.emit(events)


@pytest.mark.parametrize("size", [3 << 20, 5 << 20, 7 << 20])
async def test_a_large_request_and_its_large_answer_get_through(server: NatsServer, no_leaks: None, size: int) -> None:
    """A node whose report or answer is refused for its size would never sync again."""

    async def echo_all(asked: Sampled) -> Answered:
        return Answered(value=asked.value, padding=asked.padding)

    async with NatsBus.connect(server.url, name="one") as one, NatsBus.connect(server.url, name="two") as two:
        await one.answer(Sampled, echo_all, node_id="asked")
        for value in range(3):
            for _ in range(5):
                await two.publish(Sampled(node_id="small", padding="x" * 10_000))  # waits before it
            asked = Sampled(node_id="asked", value=value, padding="x" * size)
            answer = await two.request(asked, Answered, seconds_max=SECONDS_MAX)
            assert (answer.value, len(answer.padding)) == (value, size)
        assert not one.counts
        assert not two.counts


async def test_many_large_answers_at_once_wait_for_room_and_none_is_dropped(server: NatsServer, no_leaks: None) -> None:
    size = UNSENT_BYTES_MAX // 8

    async def pad(asked: Sampled) -> Answered:
        return Answered(value=asked.value, padding="x" * size)

    async with NatsBus.connect(server.url, name="one") as one, NatsBus.connect(server.url, name="two") as two:
        await one.answer(Sampled, pad, node_id="asked")
        asked = [
            two.request(Sampled(node_id="asked", value=value), Answered, seconds_max=SECONDS_MAX) for value in range(64)
        ]
        answers = await asyncio.gather(*asked)
        assert [(answer.value, len(answer.padding)) for answer in answers] == [(value, size) for value in range(64)]
        assert not one.counts


async def test_more_than_nats_carries_is_an_error_that_says_so(server: NatsServer) -> None:
    async with NatsBus.connect(server.url, name="test") as bus:
        with pytest.raises(BusError, match="more than NATS takes"):
            await bus.request(Sampled(padding="x" * (9 << 20)), Answered, seconds_max=1)
        await bus.answer(Sampled, echo, node_id="asked")
        await until_answered(bus, 1)


async def test_closing_while_the_server_is_away_is_quick(server: NatsServer, no_leaks: None) -> None:
    async with asyncio.timeout(BUSY_SECONDS):
        async with NatsBus.connect(server.url, name="test") as bus:
            await bus.answer(Sampled, echo)
            server.kill()
            await until(lambda: not bus.connected)
    assert not bus.connected


async def test_no_server_is_an_error_that_names_it(server: NatsServer) -> None:
    server.stop()
    address = server.url.removeprefix("nats://")
    async with asyncio.timeout(BUSY_SECONDS):
        with pytest.raises(BusError, match=address) as refused:
            async with NatsBus.connect(f"nats://someone:secret@{address}", name="test", connect_seconds_max=0.5):
                pass
    assert "secret" not in str(refused.value)


async def test_a_server_that_starts_a_little_later_is_waited_for(server: NatsServer) -> None:
    server.stop()
    connecting = asyncio.ensure_future(connect_and_leave(server.url))
    await asyncio.sleep(0.1)
    server.start()
    async with asyncio.timeout(SECONDS_MAX):
        assert await connecting


async def connect_and_leave(url: str) -> bool:
    async with NatsBus.connect(url, name="test") as bus:
        return bus.connected


@asynccontextmanager
async def silent_link(to_port: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A way to the server that can be made to swallow everything without closing: a half-open link."""
    silent, over = asyncio.Event(), asyncio.Event()
    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Future[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        first = len(writers) == 1
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", to_port)
        if over.is_set():
            to_writer.transport.abort()
            return
        writers.append(to_writer)

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if first and silent.is_set():
                    await asyncio.Event().wait()
                sink.write(data)

        pumps = [asyncio.ensure_future(carry(reader, to_writer)), asyncio.ensure_future(carry(to_reader, writer))]
        tasks.extend(pumps)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield listener.sockets[0].getsockname()[1], silent
    over.set()
    listener.close()
    for task in tasks:
        task.cancel()
    for writer in writers:
        writer.transport.abort()


async def test_a_link_that_falls_silent_under_load_is_left_for_another(server: NatsServer, no_leaks: None) -> None:
    """nats-py alone stays in this state for ever: it waits for the dead peer to take the last bytes."""
    async with (
        silent_link(server.port) as (port, silent),
        NatsBus.connect(f"nats://127.0.0.1:{port}", name="test") as bus,
    ):
        await bus.answer(Sampled, echo, node_id="asked")
        await until_answered(bus, 1)
        silent.set()
        async with asyncio.timeout(30):
            await publish_until_reconnected(bus)
        await until_answered(bus, 2)


async def publish_until_reconnected(bus: NatsBus) -> None:
    while not bus.counts["reconnects"]:
        for _ in range(200):
            await bus.publish(Sampled(padding="x" * 10_000))
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, Credentials]]:
    """A server that lets each user do only what is its own."""
    folder = tmp_path_factory.mktemp("guarded")
    credentials = provision(folder / "credentials", nodes=["node-1", "node-2"])
    servers = await up(folder / "home", credentials=credentials, pg_dsn="postgresql://not-used")
    yield servers.nats_url, credentials
    await erase(folder / "home")


def as_user(guarded: tuple[str, Credentials], user: str) -> AbstractAsyncContextManager[NatsBus]:
    url, credentials = guarded
    return NatsBus.connect(url, name=user, user=user, password=credentials.nats_password(user), connect_seconds_max=2)


async def test_users_do_what_is_theirs(guarded: tuple[str, Credentials], no_leaks: None) -> None:
    hinted = asyncio.Event()

    async def hear(message: NodeHinted) -> None:
        hinted.set()

    async with as_user(guarded, "scheduler") as scheduler, as_user(guarded, "executor-node-1") as executor:
        await executor.subscribe(NodeHinted, hear, node_id="node-1")
        await scheduler.publish(NodeHinted(node_id="node-1"))
        async with asyncio.timeout(SECONDS_MAX):
            await hinted.wait()
        await scheduler.ensure_stream()
        await scheduler.emit(
            [StreamEvent(subject="weft.events.a", id=f"{number}", payload=b"{}") for number in range(3)]
        )
        assert not scheduler.counts
        assert not executor.counts


async def test_listening_where_one_may_not_is_an_error(guarded: tuple[str, Credentials]) -> None:
    async def hear(message: NodeHinted) -> None: ...

    async with as_user(guarded, "executor-node-1") as executor:
        with pytest.raises(BusError, match=r"weft\.hints\.node-2: NATS does not permit"):
            await executor.subscribe(NodeHinted, hear, node_id="node-2", group="g")
        assert executor.counts["forbidden"] == 1
        await executor.subscribe(NodeHinted, hear, node_id="node-1")


async def test_speaking_where_one_may_not_is_counted_and_logged(
    guarded: tuple[str, Credentials], caplog: pytest.LogCaptureFixture
) -> None:
    async with as_user(guarded, "scorer") as scorer:
        await scorer.publish(OutboxFilled())
        await until(lambda: scorer.counts["forbidden"] == 1)
        with pytest.raises(NoAnswerError, match="does not permit"):
            await scorer.request(AskStored(pool="p"), Answered, seconds_max=0.2)
    assert "weft.outbox" in caplog.text


async def test_a_wrong_password_is_an_error_that_says_so(guarded: tuple[str, Credentials]) -> None:
    with pytest.raises(BusError, match=r"(?i)authorization violation"):
        async with NatsBus.connect(guarded[0], name="x", user="scorer", password="wrong", connect_seconds_max=1):
            pass


async def test_a_user_that_was_removed_is_told_so_and_comes_back_when_it_is_restored(tmp_path: Path) -> None:
    credentials = provision(tmp_path / "credentials", nodes=["node-1"])
    servers = await up(tmp_path / "home", credentials=credentials, pg_dsn="postgresql://not-used")
    users = credentials.nats_users_file.read_text()
    try:
        async with as_user((servers.nats_url, credentials), "scorer") as scorer:
            credentials.nats_users_file.write_text(users.replace('user: "scorer"', 'user: "someone"'))
            await reload_users(tmp_path / "home")
            await until(lambda: scorer.counts["refused"] > 0)
            credentials.nats_users_file.write_text(users)
            await reload_users(tmp_path / "home")
            await until(lambda: scorer.connected)
    finally:
        await erase(tmp_path / "home")


async def test_a_server_that_closes_us_for_good_ends_the_service() -> None:
    """The one thing after which a bus does not come back."""
    go, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"version":"2.15.1","max_payload":1048576,"headers":true}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await go.wait()
        writer.write(b"-ERR 'Maximum Subscriptions Exceeded'\r\n")
        writer.close()

    async def live_until_closed(url: str) -> None:
        async with NatsBus.connect(url, name="test", on_closed=closed.set) as bus:
            go.set()
            await closed.wait()
            with pytest.raises(BusClosedError):
                await bus.request(Sampled(), Answered, seconds_max=1)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener, asyncio.timeout(SECONDS_MAX):
        with pytest.raises(BusClosedError, match="maximum subscriptions exceeded"):
            await live_until_closed(f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
