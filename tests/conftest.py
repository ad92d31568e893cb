"""The Postgres servers of a test session do not wait for a disk, and its properties are tried as its tier says."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgres import quick
from tests.support.tier import examples

# No property fails because the machine is busy.
settings.register_profile(
    "weft", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("weft")


@pytest.fixture(scope="session", autouse=True)
def quick_postgres() -> Iterator[None]:
    with quick():
        yield
