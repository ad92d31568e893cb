"""Three real NATS servers as one cluster: one is killed, then two; quorum returns; strangers and splits."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from libs.bus import BusError, NoAnswerError, StreamEvent
from libs.bus.nats import NatsBus
from libs.credentials import Credentials, provision
from libs.messages import Message
from tests.support.nats_cluster import SERVERS, NatsCluster, until

SECONDS_MAX = 60.0


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    value: int


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return provision(tmp_path_factory.mktemp("cluster") / "credentials", nodes=["node-1"])


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory, credentials: Credentials) -> AsyncIterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("servers"), credentials)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def bus_of(cluster: NatsCluster, credentials: Credentials, url: str = "", user: str = "scheduler") -> Any:
    return NatsBus.connect(
        url or cluster.url, name=user, user=user, password=credentials.nats_password(user), replicas=SERVERS
    )


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


async def test_one_server_is_killed_then_two_and_every_event_is_there_in_the_end(
    cluster: NatsCluster, credentials: Credentials
) -> None:
    async with bus_of(cluster, credentials) as bus:
        await until_done(bus.ensure_stream)
        await until_done(lambda: bus.emit(events("three", 50)))
        info = msgspec.json.decode(await bus.request_raw("$JS.API.STREAM.INFO.WEFT_EVENTS", b"", seconds_max=5))
        print(info["config"]["num_replicas"], info["cluster"])
