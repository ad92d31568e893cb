"""Each runtime in turn, and each store."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.doubles.store import MemoryStore
from tests.support.rig import Rig, opened
from tests.support.stores import REAL, Servers, World, simulated, world_of

HERE = Path(__file__).parent

# Stores and runtimes that repeat what another of their kind shows: in `make test` these files alone try them.
REPEATS = {
    "container": ("test_store_leases.py",),
    "simulated": ("test_store.py", "test_store_leases.py", "test_runtime.py", "test_stopping.py"),
    "process": ("test_stopping.py",),
    "docker-beside": ("test_limits.py::test_the_next_executor_finds_the_limits_as_they_were_left",),
}


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        variants = getattr(item, "callspec", None) and {
            value for value in item.callspec.params.values() if isinstance(value, str)
        }
        for variant in REPEATS.keys() & (variants or set()):
            if item.path.is_relative_to(HERE) and not any(kept in item.nodeid for kept in REPEATS[variant]):
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(
    params=["fake", "simulated", "process", "process-cgroups", pytest.param("docker", marks=pytest.mark.docker)]
)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened(request.param, tmp_path) as built:
        yield built


@pytest.fixture(scope="session")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield Servers(tmp_path_factory, stack)


@pytest.fixture(params=["memory", "simulated", *REAL])
async def world(request: pytest.FixtureRequest, servers: Servers) -> World:
    if request.param in ("memory", "simulated"):
        store = MemoryStore() if request.param == "memory" else simulated()
        return World(store, store, store, store, store, store)
    stores = await servers.empty(request.param)
    return world_of(stores)


@pytest.fixture(params=REAL)
async def real(request: pytest.FixtureRequest, servers: Servers) -> postgres.Stores:
    return await servers.empty(request.param)
