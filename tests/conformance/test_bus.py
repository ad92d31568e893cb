"""What every bus does, whether it is in one process or in a NATS server."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, ClassVar

import msgspec
import pytest
from msgspec import Meta

from tests.support.buses import SECONDS_MAX, NatsWorld, SimulatedWorld, World
from tests.support.engine import need_container, need_engine
from tests.support.nats_server import NatsServer
from weft.bus import Bus, BusClosedError, BusError, NoAnswerError, RawRequest, StreamEvent
from weft.messages import CarriesBytes, Message
from weft.messages.signals import HostSample, NodeSampled


class Sampled(Message, frozen=True, kw_only=True):
    subject: ClassVar[str] = "weft.tests.{pool}.{node_id}"
    pool: str
    node_id: str
    value: float = 0.0


class SampledStrictly(Message, frozen=True, kw_only=True):
    """What an older service takes the same subject for."""

    subject: ClassVar[str] = "weft.tests.{pool}.{node_id}"
    pool: str
    node_id: str
    value: int


class Impostor(Message, frozen=True, kw_only=True):
    """Said on the subject of one node, in the name of another."""

    subject: ClassVar[str] = "weft.tests.{pool}.{speaker}"
    pool: str
    speaker: str
    node_id: str
    value: float = 0.0


class Settled(Message, frozen=True, kw_only=True):
    subject: ClassVar[str] = "weft.settled"


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    by: str
    value: float = 0.0


class Carried(CarriesBytes, frozen=True, kw_only=True):
    by: str


class OtherAnswered(msgspec.Struct, frozen=True, kw_only=True):
    missing: int


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # testcontainers' own NatsContainer warns of its own age; this is all it does.
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    need_engine()
    testcontainers_config.ryuk_disabled = True  # We remove what we start; its helper would be one more image.
    nats = DockerContainer(os.environ.get("NATS_IMAGE", "nats:2.12-alpine")).with_command("--js --config /weft.conf")
    settings = tmp_path_factory.mktemp("nats") / "nats.conf"
    settings.write_text("max_payload: 8MB\n")  # as deploy/nats.conf
    nats.with_volume_mapping(str(settings), "/weft.conf")
    nats.with_exposed_ports(4222).waiting_for(LogMessageWaitStrategy("Server is ready"))
    try:
        nats.start()
    except Exception as error:  # its own kinds, and requests'
        need_container("NATS", error)
    try:
        yield f"nats://{nats.get_container_host_ip()}:{nats.get_exposed_port(4222)}"
    finally:
        nats.stop()


@pytest.fixture(params=["memory", "simulated", "embedded", pytest.param("container", marks=pytest.mark.docker)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made = {"memory": World, "simulated": SimulatedWorld}.get(request.param)
    async with AsyncExitStack() as stack, asyncio.timeout(SECONDS_MAX * 3):
        world = NatsWorld(request.getfixturevalue(request.param), stack) if made is None else made()
        await world.lose_stream()
        yield world


class Ear:
    """A handler that remembers, and lets a test wait for what it should hear."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    async def __call__(self, message: Any) -> None:
        self.heard.put_nowait(message)

    async def next(self) -> Any:
        async with asyncio.timeout(SECONDS_MAX):
            return await self.heard.get()


async def settle(bus: Bus) -> None:
    """What was published before this is delivered after it: on every bus it arrives in order."""
    ear = Ear()
    subscription = await bus.subscribe(Settled, ear)
    await bus.publish(Settled())
    await ear.next()
    await subscription.drain()


async def test_what_is_published_is_heard_by_all_who_listen(world: World) -> None:
    speaker, listener, other = await world.join(), await world.join(), await world.join()
    first, second = Ear(), Ear()
    await listener.subscribe(Sampled, first)
    await other.subscribe(Sampled, second)
    said = Sampled(pool="a", node_id="n-1", value=0.5)
    await speaker.publish(said)
    assert [await first.next(), await second.next()] == [said, said]
    assert speaker.connected


async def test_tokens_fix_parts_of_the_subject(world: World) -> None:
    bus = await world.join()
    only, every = Ear(), Ear()
    await bus.subscribe(Sampled, only, node_id="n-1")
    await bus.subscribe(Sampled, every)
    for node_id in ("n-2", "n-1", "n-3"):
        await bus.publish(Sampled(pool="a", node_id=node_id))
    assert [(await every.next()).node_id for _ in range(3)] == ["n-2", "n-1", "n-3"]
    assert (await only.next()).node_id == "n-1"
    await settle(bus)
    assert only.heard.empty()


@pytest.mark.parametrize("token", ["a.b", "*", ">", "a b", "", "a\r\nPUB x 0", "ä", "x" * 256])
async def test_a_token_that_could_go_elsewhere_never_gets_onto_the_wire(world: World, token: str) -> None:
    bus = await world.join()
    with pytest.raises(ValueError, match="node_id"):
        await bus.publish(Sampled(pool="a", node_id=token))
    with pytest.raises(ValueError, match="node_id"):
        await bus.request(Sampled(pool="a", node_id=token), Answered, seconds_max=1)
    with pytest.raises(ValueError, match="node_id"):
        await bus.subscribe(Sampled, Ear(), node_id=token)


async def test_a_token_that_the_subject_does_not_have_is_refused(world: World) -> None:
    bus = await world.join()
    with pytest.raises(ValueError, match="nonsense"):
        await bus.subscribe(Sampled, Ear(), nonsense="x")


async def test_one_of_a_group_hears_each_message(world: World) -> None:
    speaker, one, two = await world.join(), await world.join(), await world.join()
    group, alone = Ear(), Ear()
    await one.subscribe(Sampled, group, group="readers")
    await two.subscribe(Sampled, group, group="readers")
    await two.subscribe(Sampled, alone)
    for value in range(20):
        await speaker.publish(Sampled(pool="a", node_id="n", value=value))
    assert [(await alone.next()).value for _ in range(20)] == list(range(20))
    assert sorted([(await group.next()).value for _ in range(20)]) == list(range(20))
    await settle(one)
    await settle(two)
    assert group.heard.empty()


async def test_a_request_is_answered(world: World) -> None:
    asker, answerer = await world.join(), await world.join()

    async def answer(asked: Sampled) -> Answered:
        return Answered(by="me", value=asked.value * 2)

    await answerer.answer(Sampled, answer, group="answerers")
    asked = [
        asker.request(Sampled(pool="a", node_id="n", value=value), Answered, seconds_max=SECONDS_MAX)
        for value in range(50)
    ]
    assert [found.value for found in await asyncio.gather(*asked)] == [value * 2 for value in range(50)]


@pytest.mark.parametrize("data", [b"", b"\n", bytes(range(256)) * 4096])
async def test_bytes_that_an_answer_carries_come_as_they_are(world: World, data: bytes) -> None:
    asker, answerer = await world.join(), await world.join()

    async def answer(asked: Sampled) -> Carried:
        return Carried(by="me", data=data)

    await answerer.answer(Sampled, answer)
    found = await asker.request(Sampled(pool="a", node_id="n"), Carried, seconds_max=SECONDS_MAX)
    assert found == Carried(by="me", data=data)


async def test_a_request_that_nobody_hears_fails_at_once(world: World) -> None:
    bus = await world.join()
    async with asyncio.timeout(SECONDS_MAX):
        with pytest.raises(NoAnswerError, match=r"weft\.tests\.a\.n"):
            await bus.request(Sampled(pool="a", node_id="n"), Answered, seconds_max=3600)


async def test_a_request_that_is_heard_and_not_answered_ends_within_its_bound(world: World) -> None:
    bus = await world.join()

    async def leave_it(asked: Sampled) -> Answered | None:
        return None

    async def fail(asked: Sampled) -> Answered:
        raise RuntimeError("on purpose")

    await bus.answer(Sampled, leave_it, pool="silent")
    await bus.answer(Sampled, fail, pool="failing")
    await bus.subscribe(Sampled, Ear(), pool="listening")
    for pool in ("silent", "failing", "listening"):
        with pytest.raises(NoAnswerError, match=r"within 0\.05 s"):
            await bus.request(Sampled(pool=pool, node_id="n"), Answered, seconds_max=0.05)


async def test_what_one_leaves_another_may_answer(world: World) -> None:
    bus = await world.join()

    async def leave_it(asked: Sampled) -> Answered | None:
        return None

    async def answer(asked: Sampled) -> Answered | None:
        return Answered(by="second")

    await bus.answer(Sampled, leave_it)
    await bus.answer(Sampled, answer)
    found = await bus.request(Sampled(pool="a", node_id="n"), Answered, seconds_max=SECONDS_MAX)
    assert found.by == "second"


async def test_an_answer_of_another_kind_is_an_error_that_says_so(world: World) -> None:
    bus = await world.join()

    async def answer(asked: Sampled) -> Answered:
        return Answered(by="me")

    await bus.answer(Sampled, answer)
    with pytest.raises(BusError, match="OtherAnswered"):
        await bus.request(Sampled(pool="a", node_id="n"), OtherAnswered, seconds_max=SECONDS_MAX)


async def test_a_raw_request_is_seen_with_its_bytes_and_headers(world: World) -> None:
    asker, answerer = await world.join(), await world.join()
    seen = []

    async def answer(asked: RawRequest) -> Answered:
        seen.append(asked)
        return Answered(by="raw")

    await answerer.answer_raw("weft.tests.raw", answer, group="g")
    found = await asker.request_raw(
        "weft.tests.raw", b"kind: yaml", headers={"Idempotency-Key": "k1"}, seconds_max=SECONDS_MAX
    )
    assert msgspec.json.decode(found, type=Answered) == Answered(by="raw")
    (request,) = seen
    assert (request.payload, request.headers) == (b"kind: yaml", {"Idempotency-Key": "k1"})


async def test_a_message_not_understood_or_a_failing_handler_ends_nothing(world: World) -> None:
    bus = await world.join()
    ear = Ear()

    async def hear(message: SampledStrictly) -> None:
        if message.value == 2:
            raise RuntimeError("on purpose")
        await ear(message)

    await bus.subscribe(SampledStrictly, hear)
    for value in (0.5, 2, 3):  # not understood, failing, good
        await bus.publish(Sampled(pool="a", node_id="n", value=value))
    assert (await ear.next()).value == 3
    assert (bus.counts["undecodable"], bus.counts["failed"]) == (1, 1)


class Bounded(Message, frozen=True, kw_only=True):
    """The same subject, with bounds and an answer for what is outside of them."""

    subject: ClassVar[str] = "weft.tests.{pool}.{node_id}"
    pool: str
    node_id: str
    value: Annotated[float, Meta(le=1.0)] = 0.0

    @classmethod
    def refusal(cls, why: str) -> Answered:
        return Answered(by=why)


async def test_a_request_out_of_its_bounds_is_answered_with_the_field_and_reaches_no_handler(world: World) -> None:
    bus, reached = await world.join(), []

    async def answer(message: Bounded) -> Answered:
        reached.append(message.value)
        return Answered(by="handler")

    await bus.answer(Bounded, answer)
    refused = await bus.request(Sampled(pool="a", node_id="n", value=2.0), Answered, seconds_max=SECONDS_MAX)
    assert "$.value" in refused.by
    taken = await bus.request(Sampled(pool="a", node_id="n", value=1.0), Answered, seconds_max=SECONDS_MAX)
    assert (taken.by, reached, bus.counts["undecodable"]) == ("handler", [1.0], 1)


class Unbounded(Message, frozen=True, kw_only=True):
    """Whatever a node's user can publish on the subject of its samples."""

    subject: ClassVar[str] = NodeSampled.subject
    node_id: str
    pool: str = "default"
    at: float = 0.0
    host: HostSample = HostSample(cpus=1.0, memory_total=1, memory_used=1)
    gpus: tuple[Any, ...] = ()
    seq: int = 1


async def test_a_sample_out_of_its_bounds_is_counted_and_dropped_and_the_next_is_heard(world: World) -> None:
    bus, heard = await world.join(), asyncio.Queue[int]()

    async def hear(sample: NodeSampled) -> None:
        heard.put_nowait(sample.seq)

    await bus.subscribe(NodeSampled, hear)
    gpu = {"index": 1 << 62, "uuid": "u", "model": "m"}
    for odd in (Unbounded(node_id="n", gpus=(gpu,)), Unbounded(node_id="n", seq=-1), Unbounded(node_id="n", at=-1.0)):
        await bus.publish(odd)
    await bus.publish(Unbounded(node_id="n", seq=7))
    async with asyncio.timeout(SECONDS_MAX):
        assert await heard.get() == 7
    assert bus.counts["undecodable"] == 3


async def test_who_speaks_in_the_name_of_another_is_not_heard_and_not_answered(world: World) -> None:
    bus = await world.join()
    ear = Ear()

    async def answer(message: Sampled) -> Answered:
        return Answered(by=message.node_id)

    await bus.subscribe(Sampled, ear)
    await bus.answer(Sampled, answer, group="answering")
    impostor = Impostor(pool="a", speaker="node-1", node_id="node-2", value=1)
    with pytest.raises(NoAnswerError):
        await bus.request(impostor, Answered, seconds_max=0.3)
    honest = await bus.request(Sampled(pool="a", node_id="node-1", value=2), Answered, seconds_max=5)
    assert honest.by == "node-1"
    assert (await ear.next()).value == 2
    assert bus.counts["misplaced"] == 2


async def test_of_a_sender_that_says_all_too_often_the_newest_is_heard_and_others_are_heard_at_once(
    world: World,
) -> None:
    bus, ear = await world.join(), Ear()
    times: list[float] = []
    now = asyncio.get_running_loop().time

    async def hear(message: Sampled) -> None:
        if message.node_id == "n-1":
            times.append(now())
        await ear(message)

    subscription = await bus.subscribe(Sampled, hear, apart_seconds=0.4)
    for value in range(500):
        await bus.publish(Sampled(pool="a", node_id="n-1", value=float(value)))
    await bus.publish(Sampled(pool="a", node_id="n-2"))
    heard: list[Sampled] = []
    while not heard or heard[-1].value < 499.0:
        heard.append(await ear.next())
    loud = [message.value for message in heard if message.node_id == "n-1"]
    assert loud == sorted(loud)
    assert loud[0] == 0.0
    assert len(loud) <= 2 + (times[-1] - times[0]) / 0.4
    # Over two gaps: on a busy machine a handler begins late, and the next one in time.
    assert all(later - earlier > 0.39 for earlier, later in zip(times, times[2:], strict=False))
    assert [message.node_id for message in heard].index("n-2") <= 1 + (times[-1] - times[0]) / 0.4
    await bus.publish(Sampled(pool="a", node_id="n-1", value=500.0))
    await settle(bus)
    await subscription.drain()
    assert (await ear.next()).value == 500.0, "what waits at the end is heard"


async def test_handlers_run_at_once_up_to_the_limit(world: World) -> None:
    bus = await world.join()
    started: asyncio.Queue[float] = asyncio.Queue()
    go = asyncio.Event()

    async def hear(message: Sampled) -> None:
        started.put_nowait(message.value)
        await go.wait()

    subscription = await bus.subscribe(Sampled, hear, at_once=2)
    for value in (1, 2, 3):
        await bus.publish(Sampled(pool="a", node_id="n", value=value))
    async with asyncio.timeout(SECONDS_MAX):
        assert {await started.get(), await started.get()} == {1, 2}
    await settle(bus)
    assert started.empty()
    go.set()
    await subscription.drain()
    assert await started.get() == 3


async def test_draining_finishes_what_is_in_hand_and_takes_nothing_more(world: World) -> None:
    bus = await world.join()
    started, go, done = asyncio.Event(), asyncio.Event(), []

    async def hear(message: Sampled) -> None:
        started.set()
        await go.wait()
        done.append(message.value)

    subscription = await bus.subscribe(Sampled, hear)
    await bus.publish(Sampled(pool="a", node_id="n", value=1))
    async with asyncio.timeout(SECONDS_MAX):
        await started.wait()
    draining = asyncio.ensure_future(subscription.drain())
    await settle(bus)
    assert not draining.done()
    go.set()
    async with asyncio.timeout(SECONDS_MAX):
        await draining
    await bus.publish(Sampled(pool="a", node_id="n", value=2))
    await settle(bus)
    assert done == [1]
    await subscription.drain()  # Again is harmless.


async def test_a_closed_bus_stays_closed(world: World) -> None:
    bus = await world.join()
    await world.leave()
    message = Sampled(pool="a", node_id="n")
    with pytest.raises(BusClosedError):
        await bus.publish(message)
    with pytest.raises(BusClosedError):
        await bus.request(message, Answered, seconds_max=1)
    with pytest.raises(BusClosedError):
        await bus.subscribe(Sampled, Ear())
    assert not bus.connected


def event(number: int, kind: str = "placed", payload: str = "") -> StreamEvent:
    return StreamEvent(
        subject=f"weft.events.jobs.{kind}", id=f"event-{number}", payload=(payload or f"{number}").encode()
    )


async def test_the_stream_is_made_once_and_another_has_another_identity(world: World) -> None:
    one, two = await world.join(), await world.join()
    first = await one.ensure_stream()
    assert [await one.ensure_stream(), await two.ensure_stream()] == [first, first]
    await one.emit([event(1)])
    assert await two.ensure_stream() == first
    await world.lose_stream()
    second = await two.ensure_stream()
    assert await one.ensure_stream() == second
    assert len({"", first, second}) == 3
    assert await world.stored() == []


async def test_events_are_stored_in_order_and_once(world: World) -> None:
    bus = await world.join()
    await bus.ensure_stream()
    await bus.emit([])
    await bus.emit([event(1)])  # alone
    await bus.emit([event(number) for number in range(2, 6)])  # as one
    await bus.emit([event(number) for number in range(4, 9)])  # some of them again
    await bus.emit([event(1), event(8)])  # all of them again
    assert await world.stored() == [("weft.events.jobs.placed", f"{number}") for number in range(1, 9)]


async def test_more_events_than_a_batch_holds_are_all_stored(world: World) -> None:
    bus = await world.join()
    await bus.ensure_stream()
    await bus.emit([event(number) for number in range(2001)])
    assert [payload for _, payload in await world.stored()] == [f"{number}" for number in range(2001)]


async def test_events_without_a_stream_are_not_stored_and_that_is_said(world: World) -> None:
    bus = await world.join()
    await bus.ensure_stream()
    await world.lose_stream()
    for events in ([event(1)], [event(1), event(2)]):
        with pytest.raises(NoAnswerError):
            await bus.emit(events)
    await bus.ensure_stream()
    await bus.emit([event(1), event(2)])
    assert len(await world.stored()) == 2


async def test_who_listens_to_the_subject_of_an_event_hears_it(world: World) -> None:
    class JobPlaced(Message, frozen=True, kw_only=True):
        subject: ClassVar[str] = "weft.events.jobs.placed"
        job_id: str

    bus, listener = await world.join(), await world.join()
    ear = Ear()
    await listener.subscribe(JobPlaced, ear)
    await bus.ensure_stream()
    await bus.emit([event(1, payload='{"job_id":"j-1"}'), event(2, payload='{"job_id":"j-2"}')])
    assert [(await ear.next()).job_id, (await ear.next()).job_id] == ["j-1", "j-2"]


@pytest.mark.parametrize("subject", ["weft.hints.n", "weft.events.", "weft.events.a b", "weft.events.*", "events.a"])
async def test_an_event_that_would_go_elsewhere_is_refused(world: World, subject: str) -> None:
    bus = await world.join()
    with pytest.raises(ValueError, match="not a subject"):
        await bus.emit([StreamEvent(subject=subject, id="1", payload=b"")])
