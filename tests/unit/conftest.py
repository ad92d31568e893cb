"""What several modules of unit tests need."""

from collections.abc import AsyncIterator

import pytest

from tests.support.told_gateway import ToldGateway, told_gateway


@pytest.fixture
async def gateway() -> AsyncIterator[ToldGateway]:
    async with told_gateway() as gateway:
        yield gateway
