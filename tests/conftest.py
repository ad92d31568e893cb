"""The Postgres servers of a test session do not wait for a disk."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import quick


@pytest.fixture(scope="session", autouse=True)
def quick_postgres() -> Iterator[None]:
    with quick():
        yield
