"""A subscription that was given up while its server was away is gone. NATS lets a user answer each request once, and
counts a message that comes twice, so one that stayed would make every answer of its process forbidden."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.live.test_network_nats import Answered, Said
from tests.support.nats_server import NatsServer
from tests.support.proxy import Proxy
from tests.support.runs import until
from weft.bus.nats import NatsBus
from weft.credentials.folder import render
from weft.credentials.permissions import Permissions

USERS = {
    "asker": Permissions(publish=("weft.tests.>",)),
    "answerer": Permissions(publish=("weft.elsewhere",), subscribe=("weft.tests.>",), answers=True),
}
PASSWORDS = {"asker": "a", "answerer": "b"}
SECONDS_MAX = 30.0
RECOVERY_SECONDS_MAX = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path, users=render(USERS, PASSWORDS))
    yield server
    server.stop()


@asynccontextmanager
async def both(server: NatsServer) -> AsyncIterator[tuple[Proxy, NatsBus, NatsBus]]:
    """The link of the one that answers, it, and the one that asks, which has a link of its own."""

    def bus(name: str, url: str) -> AbstractAsyncContextManager[NatsBus]:
        return NatsBus.connect(url, name=name, user=name, password=PASSWORDS[name])

    async with (
        Proxy(server.port) as link,
        bus("answerer", f"nats://127.0.0.1:{link.port}") as answerer,
        bus("asker", server.url) as asker,
    ):
        yield link, answerer, asker


async def answer(_: Said) -> Answered:
    return Answered()


async def back(link: Proxy, bus: NatsBus) -> None:
    reconnects = bus.counts["reconnects"]
    link.mend()
    await until(lambda: bus.counts["reconnects"] > reconnects, seconds_max=RECOVERY_SECONDS_MAX)


async def all_are_answered(asker: NatsBus, answerer: NatsBus) -> None:
    for _ in range(3):
        await asker.request(Said(), Answered, seconds_max=SECONDS_MAX)
    assert not answerer.counts["forbidden"]


async def test_what_was_begun_and_given_up_while_the_server_was_away_is_gone(server: NatsServer) -> None:
    async with both(server) as (link, answerer, asker):
        link.cut()
        await until(lambda: not answerer.connected)
        await (await answerer.answer(Said, answer)).drain()
        await answerer.answer(Said, answer)
        await back(link, answerer)
        await all_are_answered(asker, answerer)


async def test_what_was_given_up_while_the_server_stood_still_is_gone(server: NatsServer) -> None:
    async with both(server) as (link, answerer, asker):
        begun = await answerer.answer(Said, answer)
        await all_are_answered(asker, answerer)
        link.freeze()
        await begun.drain()
        link.cut()
        await until(lambda: not answerer.connected)
        await back(link, answerer)
        await answerer.answer(Said, answer)
        await all_are_answered(asker, answerer)


async def test_what_waits_to_be_sent_as_the_link_ends_is_not_sent_beside_the_new_beginning(server: NatsServer) -> None:
    async with both(server) as (link, answerer, asker):
        link.freeze()
        begun = await answerer.answer(Said, answer)
        link.cut()
        await until(lambda: not answerer.connected)
        await begun.drain()
        await answerer.answer(Said, answer)
        await back(link, answerer)
        await all_are_answered(asker, answerer)
