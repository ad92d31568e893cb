"""One browser and one set of servers for all that is looked at in this process."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from tests.support.chromium import chromium, need_chromium
from tests.support.gateway import Place, place
from tests.support.gateway_world import World, opened


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium(need_chromium()) as running:
        yield running


@pytest.fixture(scope="session")
async def servers(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    """Behind the browser: where there is none, no server is started in vain."""
    async with place(tmp_path_factory.mktemp("gateway")) as made:
        yield made


@pytest.fixture
async def world(servers: Place) -> AsyncIterator[World]:
    async with opened(servers) as made:
        yield made
