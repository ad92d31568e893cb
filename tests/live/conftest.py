"""What a live test of one executor needs: a NATS of its own, and a control plane of a few lines on it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.bus.nats import NatsBus
from tests.support.control_plane import ControlPlane
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
