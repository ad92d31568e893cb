"""What live tests need: of one executor a NATS and a control plane of a few lines, of a gateway a world around it, of a
router a town, of the hook an emulated GPU and the arbiter that a test plays."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.compiled import Built, build
from tests.support.control_plane import ControlPlane
from tests.support.gateway import Place, place
from tests.support.gateway_world import World, opened
from tests.support.nats_server import NatsServer
from tests.support.routers import Town, town
from tests.support.scripted_arbiter import ScriptedArbiter
from weft.bus.nats import NatsBus
from weft.sharing.native import NotBuilt
from weft.store import GatewayStore


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
async def store(servers: Place) -> GatewayStore:
    """A store with two tenants and nothing else."""
    await servers.stores.clear()
    for tenant in ("alice", "bob"):
        await servers.stores.gateway.add_token(tenant.encode().ljust(32), tenant=tenant, admin=False, label="", at=0.0)
    return servers.stores.gateway


@pytest.fixture
async def world(servers: Place) -> AsyncIterator[World]:
    async with opened(servers) as made:
        yield made


@pytest.fixture
async def there(servers: Place, tmp_path: Path) -> AsyncIterator[Town]:
    """A router, with a node that the test plays."""
    async with town(servers, tmp_path) as made:
        yield made


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of services, with as many connections as it has requests at once."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture(scope="session")
def built() -> Built:
    """The hook and the emulated driver."""
    found = build()
    if isinstance(found, NotBuilt):
        pytest.skip(found.reason)
    return found


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """The folder of an emulated GPU."""
    folder = tmp_path / "device"
    folder.mkdir()
    return folder


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    """The folder of a job that shares it."""
    return tmp_path / "slot"


@pytest.fixture
def arbiter(slot: Path) -> Iterator[ScriptedArbiter]:
    with ScriptedArbiter(slot) as arbiter:
        yield arbiter
