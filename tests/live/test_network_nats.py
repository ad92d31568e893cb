"""The link to NATS fails as links do: every wait is bounded, and all goes on by itself when it is whole again."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from tests.support.nats_server import NatsServer
from tests.support.proxy import Proxy, Way
from tests.support.runs import until
from weft.bus import NoAnswerError
from weft.bus.nats import UNSENT_BYTES_MAX, NatsBus
from weft.messages import Message

PING_SECONDS = 1  # instead of 5: the tests need not wait for what is the same three times
UNNOTICED_SECONDS_MAX = 20.0
RECOVERY_SECONDS_MAX = 60.0
ANSWER_SECONDS_MAX = 0.5
LATE_SECONDS_MAX = 3.0  # a machine that is busy is not a wait without a bound
REPORT_BYTES = 20_000


class Said(Message, frozen=True, kw_only=True):
    subject: ClassVar[str] = "weft.tests.{node_id}"
    node_id: str = "n"
    padding: str = ""


class Answered(msgspec.Struct, frozen=True):
    pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.bus.nats.PING_SECONDS", PING_SECONDS)


@pytest.fixture
async def no_leaks() -> AsyncIterator[None]:
    """Nothing is raised where nobody can catch it."""
    loop = asyncio.get_running_loop()
    leaked: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: leaked.append(context))
    yield
    loop.set_exception_handler(None)
    assert leaked == []


class Clients:
    """One that only listens, one that talks without pause, one that asks without pause, over one link."""

    def __init__(self, idle: NatsBus, talking: NatsBus, asking: NatsBus) -> None:
        self.all = (idle, talking, asking)
        self.idle, self.talking, self.asking = self.all
        self.heard = self.answered = 0
        self.longest = 0.0

    async def listen(self, message: Said) -> None:
        self.heard += 1

    async def talk(self) -> None:
        while True:
            await self._timed(self.talking.publish(Said(node_id="talk", padding="x" * REPORT_BYTES)))
            await asyncio.sleep(0.01)

    async def ask(self) -> None:
        while True:
            try:
                await self._timed(self.asking.request(Said(node_id="ask"), Answered, seconds_max=ANSWER_SECONDS_MAX))
                self.answered += 1
            except NoAnswerError:
                pass
            await asyncio.sleep(0.01)

    async def _timed(self, work: object) -> None:
        began = asyncio.get_running_loop().time()
        try:
            await work  # type: ignore[misc]
        finally:
            self.longest = max(self.longest, asyncio.get_running_loop().time() - began)

    async def all_work(self, there: NatsBus) -> None:
        """Return when each of them is heard, answered, or hears again."""
        heard, answered = self.heard, self.answered

        async def works() -> bool:
            await there.publish(Said(node_id="idle"))
            return self.heard > heard and self.answered > answered

        async with asyncio.timeout(RECOVERY_SECONDS_MAX):
            while not await works():  # noqa: ASYNC110 - what is waited for is heard from afar
                await asyncio.sleep(0.02)


@asynccontextmanager
async def clients(server: NatsServer) -> AsyncIterator[tuple[Proxy, Clients, NatsBus]]:
    """The link, its clients, and who is not behind it: answers, and hears those who talk."""

    async def answer(_: Said) -> Answered:
        return Answered()

    async with (
        Proxy(server.port) as link,
        NatsBus.connect(server.url, name="there") as there,
        NatsBus.connect(f"nats://127.0.0.1:{link.port}", name="idle") as idle,
        NatsBus.connect(f"nats://127.0.0.1:{link.port}", name="talking") as talking,
        NatsBus.connect(f"nats://127.0.0.1:{link.port}", name="asking") as asking,
    ):
        found = Clients(idle, talking, asking)
        await there.answer(Said, answer, node_id="ask")
        await idle.subscribe(Said, found.listen, node_id="idle")
        working = [asyncio.create_task(found.talk()), asyncio.create_task(found.ask())]
        try:
            await found.all_work(there)
            yield link, found, there
        finally:
            link.mend()
            for task in working:
                task.cancel()
            await asyncio.wait(working)
            assert all(task.cancelled() for task in working), "a cancellation was swallowed"


FAULTS: dict[str, Callable[[Proxy], None]] = {
    "cut": lambda link: link.cut(),
    "swallow": lambda link: link.swallow(),
    "freeze": lambda link: link.freeze(),
    "deaf": lambda link: link.freeze(Way.TO_CLIENT),
    "mute": lambda link: link.freeze(Way.TO_SERVER),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_link_that_is_dead_and_does_not_say_so_is_noticed_and_left(
    server: NatsServer, no_leaks: None, fault: str
) -> None:
    async with clients(server) as (link, found, there):
        FAULTS[fault](link)
        await until(lambda: not any(bus.connected for bus in found.all), seconds_max=UNNOTICED_SECONDS_MAX)
        await asyncio.sleep(1.0)  # long enough for an attempt to connect over it, which must not be in the way later
        link.mend()
        await found.all_work(there)
        assert found.longest < ANSWER_SECONDS_MAX + LATE_SECONDS_MAX


@pytest.mark.parametrize("seed", range(2))
async def test_a_link_that_fails_again_and_again_leaves_nothing_behind(
    server: NatsServer, no_leaks: None, seed: int
) -> None:
    """Also in the middle of connecting: whatever was begun is ended, and one connection of each is left."""
    dice = random.Random(seed)
    async with clients(server) as (link, found, there):
        for _ in range(15):
            link.mend()
            await asyncio.sleep(dice.uniform(0.0, 0.3))
            if dice.random() < 0.5:
                link.reset()
            if dice.random() < 0.8:
                FAULTS[dice.choice(list(FAULTS))](link)
                await asyncio.sleep(dice.uniform(0.0, 0.3))
                link.reset()
        link.mend()
        await found.all_work(there)
        assert found.longest < ANSWER_SECONDS_MAX + LATE_SECONDS_MAX
        # A connection that failed and is still being read would keep its number above one for ever.
        await until(lambda: link.connections == 3 and all(_tasks_of(bus) == 1 for bus in found.all))


def _tasks_of(bus: NatsBus) -> int:
    """How many tasks read this client's connection."""
    return sum(
        "_read_loop" in repr(task.get_coro())
        and task.get_coro().cr_frame is not None  # type: ignore[union-attr]
        and task.get_coro().cr_frame.f_locals.get("self") is bus._client  # type: ignore[union-attr]
        for task in asyncio.all_tasks()
    )


async def test_to_a_server_that_takes_nothing_only_so_much_is_kept(server: NatsServer, no_leaks: None) -> None:
    loop = asyncio.get_running_loop()
    async with Proxy(server.port) as link, NatsBus.connect(f"nats://127.0.0.1:{link.port}", name="talks") as bus:
        link.freeze(Way.TO_SERVER)
        began = loop.time()
        for _ in range(2000):
            await bus.publish(Said(padding="x" * 100_000))
        took = loop.time() - began
        assert bus._client.pending_data_size <= UNSENT_BYTES_MAX
        assert bus.counts["dropped"] > 1500
        assert took < LATE_SECONDS_MAX, "who talks does not wait"
        link.mend()
        await until(lambda: bus.connected)


async def test_to_a_server_that_takes_nothing_only_one_large_one_is_kept(server: NatsServer, no_leaks: None) -> None:
    loop = asyncio.get_running_loop()
    large = 5 << 20
    async with Proxy(server.port) as link, NatsBus.connect(f"nats://127.0.0.1:{link.port}", name="talks") as bus:
        link.freeze(Way.TO_SERVER)
        began = loop.time()
        for _ in range(20):
            await bus.publish(Said(padding="x" * large))
        took = loop.time() - began
        assert bus._client.pending_data_size < large + UNSENT_BYTES_MAX
        assert bus.counts["dropped"] > 15
        assert took < LATE_SECONDS_MAX, "who talks does not wait"
        link.mend()
        await until(lambda: bus.connected)


async def test_all_goes_on_after_a_server_that_stood_still(server: NatsServer, no_leaks: None) -> None:
    async with clients(server) as (_, found, there):
        server.stand_still()
        try:
            await until(lambda: not any(bus.connected for bus in found.all), seconds_max=UNNOTICED_SECONDS_MAX)
        finally:
            server.go_on()
        await found.all_work(there)
        assert found.longest < ANSWER_SECONDS_MAX + LATE_SECONDS_MAX
