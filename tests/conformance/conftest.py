"""Each runtime in turn."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.rig import Rig, opened


@pytest.fixture(
    params=["fake", "simulated", "process", "process-cgroups", pytest.param("docker", marks=pytest.mark.docker)]
)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened(request.param, tmp_path) as built:
        yield built
