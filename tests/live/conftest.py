"""What live tests need: of one executor a NATS and a control plane of a few lines, of a gateway a world around it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.bus.nats import NatsBus
from tests.support.control_plane import ControlPlane
from tests.support.gateway import Place, place
from tests.support.gateway_world import World, opened
from tests.support.nats_server import NatsServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    (tmp_path / "nats").mkdir()
    started = NatsServer(tmp_path / "nats")
    yield started
    started.stop()


@pytest.fixture
async def control(server: NatsServer) -> AsyncIterator[ControlPlane]:
    async with NatsBus.connect(server.url, name="control") as bus:
        plane = ControlPlane(bus)
        await plane.listen()
        yield plane


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
async def world(servers: Place) -> AsyncIterator[World]:
    async with opened(servers) as made:
        yield made
