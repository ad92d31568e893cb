"""The `ulimits` of a job on their way from its specification to its runs, and the operator's bounds of them."""

from pathlib import Path

import pytest

from tests.support.scheduler import world
from tests.support.service_lives import rounds
from weft.domain.ulimits import NO_LIMIT, is_beyond, ulimit_text
from weft.service import SettingsError, load
from weftd.executor.settings import ExecutorSettings


def test_an_order_has_the_ulimits_of_their_job_as_numbers() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1, spec={"ulimits": {"memlock": "unlimited", "stack": "64MiB", "nofile": 4096}})
    rounds(w)
    [read] = w.runs_of("node-1")
    assert read.ulimits == {"memlock": NO_LIMIT, "stack": 64 << 20, "nofile": 4096}


def settings(bounds: str) -> ExecutorSettings:
    environ = {"EXECUTOR_NODE_ID": "n-1", "EXECUTOR_HOME": str(Path("unused")), "EXECUTOR_ULIMITS_MAX": bounds}
    return load(ExecutorSettings, prefix="EXECUTOR_", environ=environ)


def test_an_operator_writes_bounds_as_a_job_writes_limits_and_a_mistake_names_the_setting() -> None:
    assert settings('{"nofile": 65536, "memlock": "8GiB"}').ulimits_max == {"nofile": 65536, "memlock": "8GiB"}
    for odd in ('{"nofiles": 1}', '{"nofile": "many"}', '{"stack": -2}'):
        with pytest.raises(SettingsError) as refused:
            settings(odd)
        assert str(refused.value).startswith("ulimits_max: ")


@pytest.mark.parametrize(
    ("number", "bound", "beyond"),
    [(1, 1, False), (2, 1, True), (NO_LIMIT, 1, True), (1, NO_LIMIT, False), (NO_LIMIT, NO_LIMIT, False)],
)
def test_no_limit_is_more_than_every_bound_but_no_bound(number: int, bound: int, beyond: bool) -> None:
    assert is_beyond(number, bound) is beyond


def test_a_limit_is_told_as_a_person_writes_it() -> None:
    assert ulimit_text("nofile", 4096) == "4096"
    assert ulimit_text("stack", 64 << 20) == "64MiB"
    assert ulimit_text("memlock", NO_LIMIT) == "unlimited"
